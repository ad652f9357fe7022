"""The tools of a group's operations: waiting for members, memory for values, pulls."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dpwa.clock import Clock, Deadline
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.entries import Entries
from dpwa.collectives.exchange import ReducedShard, cut
from dpwa.collectives.group import Group
from dpwa.collectives.pulling import LOOK_EVERY_S, Puller, PullListener, PullSource
from dpwa.collectives.views import ENTERED
from dpwa.data.payload import Payload
from dpwa.data.segments import ByteArray, SharedSegment
from dpwa.errors import ProtocolError
from dpwa.lifecycle import Closeable, uninterrupted
from dpwa.policy.ballots import Decision
from dpwa.runtime import Runtime

T = TypeVar("T")

SAID_AFTER_S = 8.0  # which members it waits for
SPIN_S = 150e-6  # while peers on this host are probably about to answer
SHORTEST_SLEEP_S = 50e-6
LONGEST_SLEEP_S = 5e-3


class DecidedError(Exception):
    """The collective is over. This is raised to leave it in the middle."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("decision")
        self.decision = decision


class RoundLimits:
    """The limits of a collective's time, until all have entered it, and from there on.

    `most_s` is the maximum time for which each other member may be missing while no member enters,
    and `longest_s` the time for which each was. `exchange_s` is the maximum time once all have
    entered, which was after `entered_at`, and `took_s` the time it took. Even if members enter, any
    may be missing for `missing_s` only. Unless it `lets_in`, nodes that ask to join have to wait.
    """

    def __init__(
        self,
        most_s: Mapping[str, float],
        missing_s: float,
        exchange_s: float,
        *,
        lets_in: bool = True,
    ) -> None:
        self.most_s = {name: min(s, missing_s) for name, s in most_s.items()}
        self.missing_s = missing_s
        self.exchange_s = exchange_s
        self.lets_in = lets_in
        self.longest_s = dict.fromkeys(most_s, 0.0)
        self.entered_at, self.took_s = -math.inf, 0.0
        self._missing, self._since, self._began = set(most_s), -math.inf, math.inf

    @property
    def given_up(self) -> list[str]:
        """The members that were missing for their maximum time."""
        return [name for name, s in self.longest_s.items() if s >= self.most_s[name]]

    def are_over(self, missing: set[str], now: float) -> bool:
        """Tell, while these have not entered, whether it takes too long."""
        self._began = min(self._began, now)
        if missing != self._missing or self._since == -math.inf:
            self._missing, self._since = missing, now
        passed_s = now - self._since
        if not missing:
            return passed_s >= self.exchange_s
        self.entered_at = now
        for name in missing & self.longest_s.keys():
            self.longest_s[name] = max(self.longest_s[name], passed_s)
        is_late = now - self._began >= self.missing_s
        return is_late or passed_s >= max(self.most_s.get(name, 0.0) for name in missing)


class CollectiveWait:
    """Waits until the collective is over.

    After `deadline`, missing members are left behind, or this node leaves if there are limits.
    """

    def __init__(
        self, group: Group, clock: Clock, deadline: Deadline, limits: RoundLimits | None = None
    ) -> None:
        self._group = group
        self._clock = clock
        self._deadline = deadline
        self._limits = limits
        self._looked = clock.now()
        self._says_at = self._looked + SAID_AFTER_S

    def collect(self, phase: int) -> dict[str, bytes]:
        """Return the records of all members, by name in order of rank, or raise DecidedError."""

        def complete() -> dict[str, bytes] | None:
            records = self._group.records(phase)
            return records if len(records) == len(names) else None

        names = self._group.view.names
        return self.wait_for(complete)

    def wait_for(self, check: Callable[[], T | None]) -> T:
        """Return the first value of `check` that is not `None`, or raise DecidedError."""
        began = self._clock.now()
        while True:
            self.check_decision()
            found = check() if self._group.has_boards else self._doze(check)
            if found is not None:
                return found
            if not self._group.has_boards:
                continue
            waited_s = self._clock.now() - began
            if waited_s < SPIN_S:
                os.sched_yield()
                continue
            patience_s = min(max(waited_s / 16, SHORTEST_SLEEP_S), LONGEST_SLEEP_S)
            with self._group.lock:
                self._group.changed.wait(patience_s)

    def _doze(self, check: Callable[[], T | None]) -> T | None:
        """Check, and wait for a message. Without boards, all news of others arrives in messages."""
        with self._group.lock:
            found = check()
            if found is None and self._group.decision is None:
                self._group.changed.wait(LOOK_EVERY_S)
            return found

    def check_decision(self) -> None:
        """Do the work that has become due. Raise DecidedError if the collective is over."""
        decision = self._group.decision
        if decision is not None:
            raise DecidedError(decision)
        self._group.check_open()
        now = self._clock.now()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            self._group.look_around()
            if self._limits is not None and self._deadline.expired():
                self._group.give_up()
            elif self._deadline.expired() or self._are_limits_over(now):
                self._group.expire()
            self._group.tick(now)
            if self._limits is None and now >= self._says_at:
                self._says_at = math.inf
                self._group.say_missing(self._deadline.remaining_s())

    def _are_limits_over(self, now: float) -> bool:
        if self._limits is None:
            return False
        missing = {*self._group.view.names} - self._group.records(ENTERED).keys()
        return self._limits.are_over(missing, now)


PRIVATE = 0  # the number of a buffer that peers cannot map


class StagingBuffer:
    """Memory for one value after the other. A new view gets memory of its own.

    A node that was left behind may still read the memory of the view before, at any time.
    """

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._view = b""
        self._segment: SharedSegment | None = None
        self._data: ByteArray = np.empty(0, np.uint8)
        self.number = PRIVATE

    def make_room(self, view: bytes, nbytes: int) -> ByteArray:
        """Return memory for `nbytes` bytes, which peers find by `number`."""
        if self._view != view or self._data.nbytes < nbytes:
            with uninterrupted():
                self._take(view, nbytes)
        return self._data[:nbytes]

    def _take(self, view: bytes, nbytes: int) -> None:
        self.close()
        made = self._contacts.buffer(nbytes) if nbytes and self._contacts.offer_memory() else None
        if made is None:
            self._data = np.empty(nbytes, np.uint8)
        else:
            self.number, self._segment = made
            self._data = self._segment.data
        self._view = view

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def close(self) -> None:
        """Free the memory. Nodes that still read it keep it until they are done."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self.number, self._view = None, PRIVATE, b""
        self._data = np.empty(0, np.uint8)


SETTLE_S = 0.2
SETTLE_POLL_S = 0.001


class Workspace(Closeable):
    """The tools that operations of a group work with."""

    def __init__(
        self,
        group: Group,
        contacts: Contacts,
        listener: PullListener,
        pull_source: PullSource,
        runtime: Runtime,
    ) -> None:
        self.group = group
        self.contacts = contacts
        self.own = contacts.own.name
        self.pull_source = pull_source
        # for what this node brings, and for what it reduces
        self.buffers = StagingBuffer(contacts), StagingBuffer(contacts)
        self._listener = listener
        self._runtime = runtime
        # Buffers of peers on this host, mapped once, by name and life, and by number
        self._mapped: dict[tuple[str, bytes], dict[int, ByteArray]] = {}

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()

    # Memory of this node

    def settle(self) -> None:
        """Let members on this host map its memory, before a large value is laid out for them.

        This waits only for a moment. A member that does not answer in time is sent a stream, once.
        """
        if not self.contacts.offer_memory():
            return
        others = [name for name in self.group.view.names if name != self.own]
        end = Deadline(self._runtime, SETTLE_S)
        while not self.contacts.are_settled(others) and not end.expired():
            self._runtime.sleep(SETTLE_POLL_S)

    def room(self, brought: int, reduced: int) -> tuple[ByteArray, ByteArray]:
        view = self.group.view.identity
        first, second = self.buffers
        return first.make_room(view, brought), second.make_room(view, reduced)

    def show(self, brought: Mapping[int, ByteArray], reduced: ByteArray, start: int = 0) -> None:
        """Offer this node's value, and its shard while it is reduced, to members of other hosts."""
        self.pull_source.show(self.group.tag, self.group.key, brought, reduced, start)

    def is_read(self) -> bool:
        """Tell whether a member reads this node's memory."""
        names = self.group.view.names
        return any(self.contacts.reads_us(name) for name in names if name != self.own)

    def cut(self, payload: Payload, owners: Sequence[str]) -> list[ReducedShard]:
        return cut(payload.layout, payload.nbytes, owners, self._runtime.bytes_scale)

    # Memory of others

    def mapped(self, peer: str, nbytes: int) -> None:
        """Count the bytes that were read from the memory of a peer."""
        self.contacts.count(peer, mapped=nbytes, taken=nbytes)

    def came_along(self, entries: Entries) -> None:
        """Count the values in the entries of all members, on boards or in messages."""
        own = len(entries[self.own].inline) if self.own in entries else 0
        for name, entry in entries.items():
            nbytes = len(entry.inline)
            if name == self.own or not own + nbytes:
                continue
            is_mapped = self.contacts.is_near(name)
            self.contacts.count(
                name,
                sent=0 if self.contacts.reads_us(name) else own,
                received=0 if is_mapped else nbytes,
                mapped=nbytes if is_mapped else 0,
                taken=nbytes,
            )

    def find(
        self, peer: str, numbers: tuple[int, ...], nbytes: int
    ) -> tuple[ByteArray, ...] | None:
        """Return a peer's buffers, read-only, or `None` if any of them must be streamed.

        Other mapped memory of this peer is released. Raises `ProtocolError` if the first buffer has
        less than `nbytes` bytes.
        """
        life = self.contacts.incarnation(peer)
        known = self._mapped.get((peer, life), {})
        found: dict[int, ByteArray] = {}
        for number in numbers:
            memory = known.get(number)
            if memory is None and number != PRIVATE:
                memory = self.contacts.image_of(peer, number)
            if memory is None:
                return None
            found[number] = memory
        self._mapped[peer, life] = found
        if found[numbers[0]].nbytes < nbytes:
            raise ProtocolError(f"the memory of {peer} is smaller than its value")
        return tuple(found[number] for number in numbers)

    def keep_only(self, names: Iterable[str]) -> None:
        """Let go of the buffers of all but these peers, and of former lives of theirs."""
        lives = {(name, self.contacts.incarnation(name)) for name in names}
        self._mapped = {life: found for life, found in self._mapped.items() if life in lives}

    def puller(self, wait: CollectiveWait, far: list[str]) -> Puller:
        """Return a puller from members of other hosts, once they are connected."""
        wait.wait_for(lambda: True if all(map(self.contacts.is_up, far)) else None)
        group, own = self.group, self.contacts.own
        header = {
            "type": "pull",
            "tag": group.tag,
            "name": own.name,
            "incarnation": own.incarnation,
            "view": group.view.identity,
            "number": group.number,
        }
        return Puller(self._listener, self.contacts, self._runtime.queue(), header)
