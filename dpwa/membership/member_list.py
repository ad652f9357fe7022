"""MemberList: a node's knowledge of the members, for all its threads."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Collection, Iterable

from dpwa.clock import AwakeClock, Clock
from dpwa.node.report import MemberReport, MembershipReport
from dpwa.policy.members.states import Change, Event, MemberEntry, MemberStatus
from dpwa.policy.members.view import Membership
from dpwa.wire import limits
from dpwa.wire.members import Roster, pack_entries
from dpwa.wire.messages import printable

log = logging.getLogger("dpwa.members")

SUSPECT_TOLD_BY = 3.0  # number of nodes that notify a suspect, on average
MAX_BETWEEN_TICKS_S = 0.4  # maximum time that counts, so that a busy machine suspects no one early
ASLEEP_AFTER_S = 2.0
NEWS_ENTRIES = 32  # entries in one message, unless the receiver knows other members
ALL_ENTRIES_PER_S = 64  # maximum rate of entries in messages with all members


class MemberList:
    """The members that this node knows, with their statuses. Any thread may call every method.

    `changed` is called after each change, without the lock.
    """

    def __init__(
        self, own: MemberEntry, clock: Clock, rng: random.Random, changed: Callable[[], None]
    ) -> None:
        self._members = Membership(own, most=limits.MAX_ROSTER_ENTRIES - 1)
        self._clock = AwakeClock(clock, MAX_BETWEEN_TICKS_S, ASLEEP_AFTER_S)
        self._rng = rng
        self._changed = changed
        # Reentrant, because a signal handler may close the node while its thread holds the lock.
        self._lock = threading.RLock()
        self._changes = 0
        self._tells_all_at = -math.inf
        self._untold = False
        self._suspects: set[str] = set()
        self.waits = False  # whether this node waits for admission; meanwhile it admits no node

    @property
    def own(self) -> MemberEntry:
        with self._lock:
            return self._members.own

    @property
    def peers(self) -> tuple[MemberEntry, ...]:
        with self._lock:
            return self._members.peers

    @property
    def changes(self) -> int:
        return self._changes

    def all_known(self) -> tuple[MemberEntry, ...]:
        """Return the other members, followed by dead nodes that may return."""
        with self._lock:
            return *self._members.peers, *self._members.remembered

    def connected_to(self, names: Collection[str]) -> None:
        with self._lock:
            self._members.near = names

    def to_tell(self, most: int) -> set[str]:
        """Return the members to notify of the changes since the last call.

        These are some random members, and some suspects, so that they can refute.
        """
        with self._lock:
            changes, self._untold = self._untold, False
            suspects, self._suspects = sorted(self._suspects), set()
            if not changes:
                return set()
            drawn = {entry.name for entry in self._members.to_tell(self._rng, most)}
            return drawn | set(self._rng.sample(suspects, min(most, len(suspects))))

    @property
    def is_replaced(self) -> bool:
        """Whether a different process has this node's name now."""
        return self._members.replaced_by is not None

    def entry(self, name: str) -> MemberEntry | None:
        with self._lock:
            return self._members.entry(name)

    def digest(self) -> bytes:
        """Return a digest that is equal on all nodes that agree on the members."""
        with self._lock:
            return self._members.digest()

    def pack_news(self, to: str | None = None, their_digest: bytes | None = None) -> bytes:
        """Pack some of the entries about members for node `to`, or all if its member list differs.

        While changes spread, many nodes know other members for a moment. So if there are many
        members, all entries are sent only from time to time, but always to a new node, whose digest
        is empty.
        """
        with self._lock:
            most = limits.MAX_ROSTER_ENTRIES if self._tells_all(their_digest) else NEWS_ENTRIES
            return pack_entries(self._members.select_entries(self._rng, most, to))

    def roster(self, to: str, *, asks: bool) -> tuple[Roster, bytes]:
        with self._lock:
            own, digest = self._members.own, self._members.digest()
            news = self.pack_news(to)
        roster = Roster(
            request=0, name=own.name, incarnation=own.incarnation, digest=digest, asks=asks
        )
        return roster, news

    def receive_entries(self, entries: Iterable[MemberEntry]) -> None:
        self._apply(self._members.receive_entries, entries)

    def believe(self, entry: MemberEntry) -> None:
        """Accept an entry about a node, because this node called the node and got an answer."""
        self._apply(self._members.believe, entry)

    def to_check(self) -> list[MemberEntry]:
        with self._lock:
            return self._members.to_check(self._clock.now(), self._rng)

    def checked(self, claim: MemberEntry, incarnation: int | None) -> None:
        """Record the result of checking an entry: the incarnation at its endpoint, or `None`."""
        self._apply(self._members.checked, claim, incarnation)

    def unchecked(self, claim: MemberEntry) -> None:
        """Record that an unverified entry could not be checked now, because no call could start."""
        with self._lock:
            self._members.unchecked(claim)

    def outlive(self, entries: Iterable[MemberEntry]) -> None:
        """Raise this node's incarnation above any higher one of its name, sent at admission."""
        with self._lock:
            self._members.outlive(entries)

    def heard_from(self, name: str, incarnation: int) -> None:
        with self._lock:
            self._members.heard_from(name, incarnation, self._clock.now())

    def note_awake(self) -> None:
        """Note that this process is awake, because one of its threads runs."""
        with self._lock:
            if self._clock.note_awake():
                self._members.woke(self._clock.now())

    def now(self) -> float:
        """Return the time, without the time in which this process was stopped."""
        return self._clock.now()

    def heard_at(self, name: str) -> float:
        """Return the time of the last message of a node, on the same clock as the method `now`."""
        with self._lock:
            return self._members.heard_at(name)

    def to_ask(self) -> list[MemberEntry]:
        with self._lock:
            return self._members.to_ask(self._clock.now(), self._rng)

    def to_ask_others(self) -> list[tuple[MemberEntry, str]]:
        """Return pairs: a member that has not answered, and the name of a member to probe it."""
        with self._lock:
            return self._members.to_ask_others(self._clock.now(), self._rng)

    def others_heard_from(self, name: str, incarnation: int, helper: str) -> None:
        """Record that `helper` has received a message from a member that this node probes."""
        with self._lock:
            self._members.others_heard_from(name, incarnation, helper)

    def lost(self, name: str) -> None:
        self._apply(self._members.lost, name)

    def doubt(self, name: str) -> None:
        """Mark a member as suspect, to find out whether the member refutes the suspicion."""
        self._apply(self._members.doubt, name)

    def tick(self) -> None:
        with self._lock:
            self.note_awake()
            changes = self._members.tick(self._clock.now())
        self._tell(changes)

    def to_retry(self) -> list[MemberEntry]:
        with self._lock:
            return self._members.to_retry(self._clock.now(), self._rng)

    def announce_leave(self) -> None:
        with self._lock:
            self._members.announce_leave()

    def report(self) -> MembershipReport:
        """Describe the members."""
        with self._lock:
            entries = [self._members.own, *self._members.peers, *self._members.remembered]
            components = 1 + bool(self._members.remembered)
            digest = self._members.digest()
        members = (
            MemberReport(e.name, e.endpoint, e.status.name.lower(), e.incarnation, e.version)
            for e in entries
        )
        return MembershipReport(tuple(members), components, self.waits, self._changes, digest.hex())

    def _tells_all(self, their_digest: bytes | None) -> bool:
        now = self._clock.now()
        if their_digest is None or their_digest == self._members.digest():
            return False
        if not their_digest:
            return True
        if now < self._tells_all_at:
            return False
        self._tells_all_at = now + len(self._members.peers) / ALL_ENTRIES_PER_S
        return True

    def _apply(self, happen: Callable[..., list[Change]], *said: object) -> None:
        """Apply an event to the members, and report the changes."""
        with self._lock:
            changes = happen(*said, self._clock.now())
        self._tell(changes)

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            self._log(change)
        if not changes:
            return
        with self._lock:
            self._changes += len(changes)
            self._untold = True
            self._suspects |= {c.entry.name for c in changes if self._is_to_hear(c)}
        self._changed()

    def _is_to_hear(self, change: Change) -> bool:
        """Return whether to notify a suspect at once, so that the suspect can refute the suspicion.

        A node that suspects a member notifies it. The link between both may be broken, so a few
        other nodes notify the suspect, too.
        """
        if change.after is not MemberStatus.SUSPECT:
            return False
        is_own = change.why == Event.NO_ANSWER.value
        return is_own or self._rng.random() * len(self._members.peers) < SUSPECT_TOLD_BY

    def _log(self, change: Change) -> None:
        name, own = change.entry.name, self._members.own.name
        if name == own and change.after is None:
            log.error(
                "%s: another process has this node's name now, at %s. This process is no longer a "
                "member. Give each process its own name [DPWA-W004]",
                own,
                printable(change.entry.endpoint),
            )
            return
        is_expected = change.after in (MemberStatus.ALIVE, MemberStatus.LEFT, None)
        # Only the node that suspects a member warns, so that not every node warns of the same.
        is_expected |= change.after is MemberStatus.SUSPECT and change.why != Event.NO_ANSWER.value
        level, code = (logging.INFO, "") if is_expected else (logging.WARNING, " [DPWA-W008]")
        after = "forgotten" if change.after is None else change.after.name.lower()
        if change.after is not change.before:
            log.log(level, "%s: member %s is %s: %s%s", own, name, after, change.why, code)
