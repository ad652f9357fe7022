"""Asking: a node's probes, its requests for admission, and its connections to joining nodes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import zmq

from dpwa.config import Config
from dpwa.config.endpoints import Seed, split_tcp
from dpwa.errors import AddressError
from dpwa.membership.context import MembershipContext
from dpwa.membership.joining import JoinAnswer, JoinOutcome, Seeds
from dpwa.membership.member_list import MemberList
from dpwa.node.serving.service import Listener
from dpwa.policy.members.states import HIGHEST_HEARSAY, MemberEntry
from dpwa.runtime import Background
from dpwa.transport.addresses import is_name
from dpwa.transport.calls import MAX_CALLS, Calls, Question
from dpwa.transport.link import LinkState
from dpwa.transport.sockets import Context
from dpwa.types import Frame
from dpwa.wire.members import (
    Here,
    JoinRequest,
    ProbeAnswer,
    ProbeRequest,
    Roster,
    TurnedAway,
    Welcome,
    WhoIs,
)
from dpwa.wire.messages import Message, printable

log = logging.getLogger("dpwa.members")

TICK_S = 0.2
ASK_EVERY_S = 0.5
TELL_EVERY_S = 0.1
TOLD_AT_ONCE = 3  # number of members that are notified of changes at once
CALL_TIMEOUT_S = 3.0
JOIN_TIMEOUT_S = 2 * CALL_TIMEOUT_S  # including the call back
ANSWER_WITHIN_S = 5.0  # the time in which a node that wants to join must get its answer
TO_JOIN, TRIAL = "to join", "trial"  # purposes of a question; a trial asks a dead node
MAX_TRIALS = MAX_CALLS // 2  # at once, so that there is room for other calls

Done = Callable[[str], None]  # receives the problem, or "" if there was none


class Asking(Listener):
    """Probes members and requests admission for a node. It runs on the node's TxThread.

    It receives the states of connections, and the answers of members.
    """

    handles = (Roster, ProbeAnswer)

    def __init__(
        self,
        member_list: MemberList,
        config: Config,
        context: MembershipContext,
        # connects the node to all members, and disconnects it from former members
        connect: Callable[[tuple[MemberEntry, ...]], None],
    ) -> None:
        self._member_list = member_list
        self._algorithm = config.algorithm
        self._heard = context.unpack_news
        self._tx = context.tx
        self._clock = context.runtime
        self._connect = connect
        told = [seed.endpoint for seed in config.seeds]
        self._seeds = Seeds([*config.seeds, *context.remembered], context.rng)
        self._told = frozenset(told)
        self._look_up = context.look_up
        self._background = Background(member_list.own.name, context.runtime)
        self._memory = context.memory
        self._met: dict[str, str] = {}  # the names of the nodes that answered, by address
        self._problems: dict[str, str] = {}  # the logged problems, by place
        self._calls = Calls(context.keyring, self._clock)
        # the nodes that wait for a call back, with the times when they expire
        self._to_call: list[tuple[MemberEntry, Done, float]] = []
        self._asked_at = self._clock.now()
        self._told_at = -math.inf
        self._has_ended = context.runtime.event()
        self.has_looked = False  # whether members have become peers at least once
        places = [*told, *(seed.endpoint for seed in context.remembered)]
        self.outcome = JoinOutcome(places, context.runtime)

    # Any thread

    def call_back(self, entry: MemberEntry, done: Done) -> None:
        """Connect to a joining node, to check its endpoint. The TxThread then calls `done`."""
        self._soon(self._call_back, entry, done)

    def ask_there(self, seed: Seed) -> None:
        """Ask the node at an address for admission."""
        self._soon(self._add_seed, seed)

    def members_changed(self) -> None:
        """Connect this node to new members, and send recent changes to some members."""
        self._soon(self._take_changes)

    def _soon(self, act: Callable[..., None], *given: Any) -> None:
        self._tx.call_soon(self._safely, act, *given)

    def stop(self, timeout_s: float) -> bool:
        """Stop all requests, and save the member list. Return False after a timeout."""
        self._tx.detach(self)
        has_ended = self._has_ended.wait(timeout_s)
        if self._memory is not None:
            self._memory.finish(self._member_list, self._background)
        return has_ended

    # The TxThread

    def link_changed(self, peer: str, state: LinkState) -> None:
        """Suspect a member whose connection is lost or cannot be made."""
        if state is LinkState.DOWN:
            self._member_list.lost(peer)

    def removed(self, peer: str) -> None:
        """Do nothing for a removed peer, because the member list itself has removed the peer."""

    def receive(self, peer: str, message: Roster | ProbeAnswer, payload: Frame) -> None:
        if isinstance(message, ProbeAnswer):
            self._member_list.others_heard_from(message.target, message.incarnation, peer)
            return
        self._member_list.heard_from(message.name, message.incarnation)
        entry = self._member_list.entry(peer)
        over_file = entry is not None and not entry.endpoint.startswith("tcp://")
        self._member_list.receive_entries(self._heard(payload, is_local=over_file))

    def attached(self, zmq_context: Context, poller: zmq.Poller) -> None:
        self._calls.open(zmq_context, poller)

    def ended(self) -> None:
        self._calls.close()
        self._has_ended.set()

    def poll_sockets(self) -> None:
        self._safely(self._calls.go_on)

    def tick(self, now: float) -> float:  # noqa: ARG002
        self.poll_sockets()
        self._safely(self._tick)
        return math.inf if self._has_ended.is_set() else TICK_S

    def _safely(self, act: Callable[..., None], *given: Any) -> None:
        try:
            act(*given)
        except Exception:
            log.exception(
                "membership: an unexpected error occurred. The node continues [DPWA-W018]"
            )

    def _tick(self) -> None:
        self._call_waiting()
        self._member_list.tick()
        self._take_changes()
        if self._has_ended.is_set():
            return
        if self._memory is not None:
            self._memory.save_members(self._member_list, self._background, self._clock.now())
        if not self._member_list.is_replaced:
            self._ask()
            self._ask_to_join()
            self._check()

    def _take_changes(self) -> None:
        if self._has_ended.is_set():
            return
        self._connect(self._member_list.peers)
        self.has_looked = True
        if not self._member_list.is_replaced:
            self._tell_changes()

    # Members

    def _ask(self) -> None:
        """Probe some members, and let other members probe the members that have not answered."""
        now = self._clock.now()
        if now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            for entry in self._member_list.to_ask():
                self._tell(entry.name)
            for entry, other in self._member_list.to_ask_others():
                probe = ProbeRequest(request=0, target=entry.name, incarnation=entry.incarnation)
                self._tx.send_message(other, probe)

    def _tell_changes(self) -> None:
        """Send recent changes of the member list to some members, in one message to each."""
        now = self._clock.now()
        if now - self._told_at < TELL_EVERY_S:
            return
        self._told_at, state_of = now, self._tx.state_of
        names = [entry.name for entry in self._member_list.peers]
        self._member_list.connected_to({n for n in names if state_of(n) is LinkState.UP})
        for name in sorted(self._member_list.to_tell(TOLD_AT_ONCE)):
            self._tell(name)

    def _tell(self, name: str) -> None:
        self._tx.send_message(name, *self._member_list.roster(name, asks=True), must=False)

    # Other nodes

    def _add_seed(self, seed: Seed) -> None:
        if self._member_list.waits:
            self._seeds.add_seed(seed)
            self._ask_to_join()

    def _ask_to_join(self) -> None:
        own, peers = self._member_list.own, self._member_list.peers
        now, waits = self._clock.now(), self._member_list.waits
        if waits:  # even at known members, which may have admitted this node without its knowledge
            known = {address for address, name in self._met.items() if name == own.name}
            for entry in peers:
                self._seeds.add_seed(Seed(entry.endpoint, entry.name))
        else:
            names = {own.name, *(entry.name for entry in peers)}
            known = {entry.endpoint for entry in peers}
            # A place may have several addresses.
            known.update(address for address, name in self._met.items() if name in names)
            addresses = self.outcome.addresses
            known.update(place for place in self._told if known.issuperset(addresses(place)))
        for seed in self._seeds.pop_due(now, known, is_alone=waits or not peers):
            self._ask_at_seed(seed, known)
        if not waits and self._calls.has_room(TRIAL, MAX_TRIALS):
            for entry in self._member_list.to_retry():
                self._ask_at(entry.name, entry.endpoint, TRIAL)

    def _ask_at_seed(self, seed: Seed, known: Collection[str]) -> None:
        """Request admission at all addresses of an endpoint, after a look-up of its host name."""
        address = split_tcp(seed.endpoint)
        if address is None or not is_name(address[0]):
            self._ask_at(seed.name, seed.endpoint)
            return

        def look_up() -> None:
            try:
                found: tuple[str, ...] | str = self._look_up(seed.endpoint)
            except AddressError as error:
                found = error.text
            self._soon(self._ask_at_address, seed, found, known)

        self._background.start(seed.endpoint, look_up)

    def _ask_at_address(
        self, seed: Seed, found: tuple[str, ...] | str, known: Collection[str]
    ) -> None:
        """Request admission at `found` addresses not in `known`, or record a failed look-up."""
        if isinstance(found, str):
            self._failed(seed.endpoint, JoinAnswer(found))
            return
        self.outcome.located(seed.endpoint, found)
        for address in found:
            if address not in known:
                self._ask_at(seed.name, address)

    def _ask_at(self, name: str, endpoint: str, purpose: str = TO_JOIN) -> None:
        stamp = self._member_list.own.stamp

        def message() -> tuple[Message, Frame]:
            own = self._member_list.own
            request = JoinRequest(
                request=1,
                name=own.name,
                incarnation=own.incarnation,
                endpoint=own.endpoint,
                algorithm=self._algorithm,
                expects=name,
            )
            return request, self._member_list.pack_news(name or None, their_digest=b"")

        def answered(message: Message, payload: Frame) -> None:
            match message:
                case Welcome():
                    entries = self._heard(payload, is_local=not endpoint.startswith("tcp://"))
                    self._welcomed(endpoint, message, entries)
                    if (
                        self._member_list.own.stamp != stamp
                    ):  # the peer must receive this node's refutation
                        self._ask_at(name, endpoint, purpose)
                case TurnedAway():
                    self._turned_away(endpoint, message)
                case _:
                    self._failed(endpoint, JoinAnswer(f"answered with {message.type!r}"))

        self._calls.start(
            Question(
                name,
                endpoint,
                message,
                answered,
                lambda failure: self._failed(endpoint, JoinAnswer(failure.problem)),
                JOIN_TIMEOUT_S,
                purpose=purpose,
            )
        )

    def _welcomed(self, endpoint: str, message: Welcome, entries: tuple[MemberEntry, ...]) -> None:
        own = self._member_list.own
        if self.outcome.has_asked(endpoint):
            self._met[endpoint] = message.name
        if message.name == own.name:  # this node asked itself
            self.outcome.record_answer(
                endpoint, JoinAnswer("this node itself has this address", "self")
            )
            return
        if not self.outcome.is_in:
            self._member_list.outlive(entries)
        self._member_list.receive_entries(entries)
        self._member_list.waits = False
        self._seeds.keep_only(self._told)  # from now on, the members report the other nodes
        if self._memory is not None:
            self._memory.forget_last_life()
        self._connect(self._member_list.peers)  # before the thread that waits for the outcome runs
        self.outcome.let_in()

    # Checks

    def _check(self) -> None:
        """Connect to nodes to check reports that their process or endpoint has changed."""
        for claim in self._member_list.to_check():
            if not self._look_into(claim):
                self._member_list.unchecked(claim)

    def _look_into(self, claim: MemberEntry) -> bool:
        def missing(_problem: str) -> None:
            self._member_list.checked(claim, None)

        return self._call(claim, partial(self._member_list.checked, claim), missing)

    def _call_back(self, entry: MemberEntry, done: Done) -> None:
        self._to_call.append((entry, done, self._clock.now() + ANSWER_WITHIN_S))
        self._call_waiting()

    def _call_waiting(self) -> None:
        """Connect to the nodes that wait for admission, if not too many calls are in progress."""
        now, waiting = self._clock.now(), self._to_call
        self._to_call = [
            (entry, done, expires)
            for entry, done, expires in waiting
            if not self._dial(entry, done) and now < expires
        ]

    def _dial(self, entry: MemberEntry, done: Done) -> bool:
        def found(incarnation: int) -> None:
            is_it = incarnation >= entry.incarnation
            done("" if is_it else "an earlier process of this name has this address")

        if self._call(entry, found, done):
            return True
        question = self._calls.question_at(entry.endpoint)
        asks_to_join = question is not None and question.purpose in (TO_JOIN, TRIAL)
        is_of_it = question is not None and question.name in ("", entry.name)
        if asks_to_join and is_of_it and entry.incarnation <= HIGHEST_HEARSAY:
            done("")  # both nodes ask each other, so that call finds out
            return True
        return False

    def _call(self, entry: MemberEntry, found: Callable[[int], None], failed: Done) -> bool:
        """Ask a process for its identity. Report its incarnation, or why there is none."""

        def answered(message: Message, _payload: Frame) -> None:
            if isinstance(message, Here) and message.name == entry.name:
                found(message.incarnation)
            else:
                failed("a different node has this address")

        return self._calls.start(
            Question(
                entry.name,
                entry.endpoint,
                lambda: (WhoIs(request=1), None),
                answered,
                lambda failure: failed(failure.problem),
                CALL_TIMEOUT_S,
            )
        )

    # Answers

    def _turned_away(self, endpoint: str, message: TurnedAway) -> None:
        reason = printable(message.reason)
        if message.kind == "name":
            self.outcome.refuse(reason)
        match message.kind:
            case "busy":
                answer = JoinAnswer(reason, "undecided")
            case "waiting":
                answer = JoinAnswer(reason, "waiting")
            case _:
                answer = JoinAnswer(reason)
        self._failed(endpoint, answer)

    def _failed(self, address: str, answer: JoinAnswer) -> None:
        """Record a failed request for admission, and log each endpoint's new problem once.

        While the node waits for admission, the waiting thread logs the problems instead.
        """
        self.outcome.record_answer(address, answer)
        if self._member_list.waits:
            return
        for place, problem in self.outcome.problems.items():
            is_of_place = address in (place, *self.outcome.addresses(place))
            is_new = self._problems.get(place) != problem
            if place in self._told and is_of_place and is_new:
                self._problems[place] = problem
                log.warning(
                    "%s: no node has admitted this node at %s: %s [DPWA-W005]",
                    self._member_list.own.name,
                    place,
                    problem,
                )
