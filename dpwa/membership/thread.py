"""MembersThread: asks members how they are, knocks where others may be, and calls back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

import zmq

from dpwa.config import Config
from dpwa.membership.calls import Calls, Question
from dpwa.membership.circle import Circle
from dpwa.membership.means import Means
from dpwa.membership.seeds import Seeds
from dpwa.membership.service import ANSWER_WITHIN_S, CallBack
from dpwa.policy.member_states import HIGHEST_HEARSAY, Entry
from dpwa.transport.mailbox import Mailbox
from dpwa.types import Frame
from dpwa.wire.members import Here, JoinRequest, Roster, TurnedAway, Welcome, WhoIs, unpack_entries
from dpwa.wire.messages import Message, printable

log = logging.getLogger("dpwa.members")

TICK_MS = 200
ASK_EVERY_S = 0.5
TOLD_AT_ONCE = 3  # members that hear of a change before they would be asked
CALL_TIMEOUT_S = 3.0
JOIN_TIMEOUT_S = 6.0  # with the call back


@dataclass
class Verdict:
    """What became of knocking, for the thread that waits for it.

    Attributes:
        is_in: somebody has let this node in.
        refused: why it can never be let in; empty if nobody said so.
        problems: what is wrong, by address of those where it knocks.
        undecided: of these, who has said that it is to knock again.
        changed: notified when one of these does.
    """

    is_in: bool = False
    refused: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    undecided: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def is_clear(self, knocked: Collection[str]) -> bool:
        """Tell whether somebody has let this node in, or nobody does that it has knocked at."""
        decided = self.problems.keys() - self.undecided
        return self.is_in or bool(self.refused) or decided >= set(knocked)


class MembersThread(threading.Thread):
    """Keeps a node among the members.

    Args:
        circle: of this node.
        config: of this node.
        means: of this node.
        connect: brings the peers of the node in line with the members.
        called_back: is told how calling back went.

    Attributes:
        verdict: what became of knocking so far.
        has_looked: whether members have become peers at least once.
    """

    def __init__(
        self,
        circle: Circle,
        config: Config,
        means: Means,
        connect: Callable[[tuple[Entry, ...]], None],
        called_back: Callable[[CallBack, str], None],
    ) -> None:
        super().__init__(name=f"dpwa-members-{circle.own.name}", daemon=True)
        self._circle = circle
        self._algorithm = config.algorithm
        self._courier = means.courier
        self._clock = means.clock
        self._connect = connect
        self._called_back = called_back
        self._seeds = Seeds(config.seeds, means.rng)
        self._seed_endpoints = frozenset(seed.endpoint for seed in config.seeds)
        self._met: dict[str, str] = {}  # who was there, by endpoint
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._mailbox: Mailbox[CallBack | None] = Mailbox(self._context)
        self._poller = zmq.Poller()
        self._calls = Calls(self._context, self._poller, means.keyring, self._clock)
        self._to_call: list[tuple[CallBack, float]] = []  # and until when that is of use
        self._asked_at = self._clock.now()
        self._is_stopping = False
        self.has_looked = False
        self.verdict = Verdict()

    def call_back(self, who: CallBack) -> None:
        """Have a node called that wants to join; from any thread."""
        self._mailbox.put(who)

    def wake(self) -> None:
        """Have it look at the members at once; from any thread."""
        self._mailbox.put(None)

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end; return whether it did within the time."""
        self._is_stopping = True
        self.wake()
        if self.ident is not None:
            self.join(timeout_s)
            if self.is_alive():
                return False
        self._mailbox.close()
        self._context.term()
        return True

    def run(self) -> None:
        """Own the sockets from here to the end."""
        self._poller.register(self._mailbox.receiver, zmq.POLLIN)
        try:
            while not self._is_stopping:
                self._step()
                self._poller.poll(TICK_MS)
        finally:
            self._calls.close()

    def _step(self) -> None:
        try:
            self._calls.go_on()
            self._call_back_all()
            self._circle.tick()
            self._connect(self._circle.peers)
            self.has_looked = True
            if not self._circle.is_replaced:
                self._tell_changes()
                self._ask()
                self._knock()
                self._check()
        except Exception:
            log.exception("membership: something unforeseen; the node goes on")

    # Members

    def _ask(self) -> None:
        """Ask a member, and again those who have not answered; they may come to be suspected."""
        now = self._clock.now()
        if now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            for entry in self._circle.to_ask():
                self._tell(entry.name)

    def _tell_changes(self) -> None:
        """Tell some members at once of what has changed."""
        for name in self._circle.to_tell(TOLD_AT_ONCE):
            self._tell(name)

    def _tell(self, name: str) -> None:
        own = self._circle.own
        roster = Roster(
            request=0,
            name=own.name,
            incarnation=own.incarnation,
            digest=self._circle.digest(),
            asks=True,
        )
        self._courier.tell(name, roster, self._circle.news(name))

    # Others

    def _knock(self) -> None:
        own, peers = self._circle.own, self._circle.peers
        names = {own.name, *(entry.name for entry in peers)}
        known = {entry.endpoint for entry in peers}
        # One place may have several addresses.
        known.update(endpoint for endpoint, name in self._met.items() if name in names)
        for seed in self._seeds.due(self._clock.now(), known, is_alone=not peers):
            self._knock_at(seed.name, seed.endpoint)
        for entry in self._circle.to_retry():
            self._knock_at(entry.name, entry.endpoint)

    def _knock_at(self, name: str, endpoint: str) -> None:
        stamp = self._circle.own.stamp

        def message() -> tuple[Message, Frame]:
            own = self._circle.own
            request = JoinRequest(
                request=1,
                name=own.name,
                incarnation=own.incarnation,
                endpoint=own.endpoint,
                algorithm=self._algorithm,
                expects=name,
            )
            return request, self._circle.news(name or None, their_digest=b"")

        def answered(message: Message, payload: Frame) -> None:
            match message:
                case Welcome():
                    self._welcomed(endpoint, message, unpack_entries(payload))
                    if self._circle.own.stamp != stamp:  # it has to hear what this node contradicts
                        self._knock_at(name, endpoint)
                case TurnedAway():
                    self._turned_away(endpoint, message)
                case _:
                    self._failed(endpoint, f"answered with {message.type!r}")

        self._calls.start(
            Question(
                name,
                endpoint,
                message,
                answered,
                lambda problem: self._failed(endpoint, problem),
                JOIN_TIMEOUT_S,
                is_knock=True,
            )
        )

    def _welcomed(self, endpoint: str, message: Welcome, entries: tuple[Entry, ...]) -> None:
        if endpoint in self._seed_endpoints:
            self._met[endpoint] = message.name
        own = self._circle.own
        if message.name == own.name:  # it knocked at itself
            with self.verdict.changed:
                self.verdict.problems[endpoint] = "this node itself is there"
                self.verdict.changed.notify_all()
            return
        if not self.verdict.is_in:
            self._circle.outlive(entries)
        self._circle.hear(entries)
        self._let_in()

    # Who is there

    def _check(self) -> None:
        """Call those of whom it is said that they are another process now, or elsewhere."""
        for claim in self._circle.to_check():
            if not self._look_into(claim):
                self._circle.unchecked(claim)

    def _look_into(self, claim: Entry) -> bool:
        def missing(_problem: str) -> None:
            self._circle.checked(claim, None)

        return self._call(claim, partial(self._circle.checked, claim), missing)

    def _call_back_all(self) -> None:
        """Call who wants to join, as soon as there is room for the call."""
        now = self._clock.now()
        new = [(who, now + ANSWER_WITHIN_S) for who in self._mailbox.take_all() if who is not None]
        waiting = [*self._to_call, *new]
        self._to_call = [
            (who, expires) for who, expires in waiting if not self._dial(who) and now < expires
        ]

    def _dial(self, who: CallBack) -> bool:
        """Call a node that wants to join; tell whether there was room for it."""
        entry = who.entry

        def found(incarnation: int) -> None:
            is_it = incarnation >= entry.incarnation
            self._called_back(who, "" if is_it else "an earlier process of this name is there")

        if self._call(entry, found, partial(self._called_back, who)):
            return True
        is_knocking = self._calls.is_knocking(entry.endpoint, entry.name)
        if is_knocking and entry.incarnation <= HIGHEST_HEARSAY:
            self._called_back(who, "")  # two that knock at each other: that call tells who is there
            return True
        return False

    def _call(
        self, entry: Entry, found: Callable[[int], None], failed: Callable[[str], None]
    ) -> bool:
        """Ask who is where a node should be; tell its incarnation, or why it was not found."""

        def answered(message: Message, _payload: Frame) -> None:
            if isinstance(message, Here) and message.name == entry.name:
                found(message.incarnation)
            else:
                failed("another node is there")

        return self._calls.start(
            Question(
                entry.name,
                entry.endpoint,
                lambda: (WhoIs(request=1), None),
                answered,
                failed,
                CALL_TIMEOUT_S,
            )
        )

    # What came of it

    def _let_in(self) -> None:
        with self.verdict.changed:
            self.verdict.is_in = True
            self.verdict.changed.notify_all()

    def _turned_away(self, endpoint: str, message: TurnedAway) -> None:
        reason = printable(message.reason)
        with self.verdict.changed:
            if message.kind == "name" and not self.verdict.is_in:
                self.verdict.refused = reason
        self._failed(endpoint, reason, is_undecided=message.kind == "busy")

    def _failed(self, endpoint: str, problem: str, *, is_undecided: bool = False) -> None:
        """Log each problem of each seed once, as long as it stays the same."""
        if endpoint not in self._seed_endpoints:
            return
        if self.verdict.problems.get(endpoint) != problem:
            own = self._circle.own.name
            log.warning("%s: not let in at %s: %s", own, endpoint, problem)
        with self.verdict.changed:
            self.verdict.problems[endpoint] = problem
            (self.verdict.undecided.add if is_undecided else self.verdict.undecided.discard)(
                endpoint
            )
            self.verdict.changed.notify_all()
