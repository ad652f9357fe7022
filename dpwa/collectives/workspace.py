"""What operations of a group work with, and what its members have called."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dpwa.clock import Clock, Deadline
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.entries import Contribution
from dpwa.collectives.exchange import Side
from dpwa.collectives.group import Group
from dpwa.collectives.pulling import Offer, Puller, PullListener, PullSource
from dpwa.data.segments import ByteArray, SharedSegment
from dpwa.errors import ProtocolError
from dpwa.lifecycle import uninterrupted
from dpwa.policy.ballots import Decision
from dpwa.runtime import Runtime

T = TypeVar("T")

SPIN_S = 150e-6  # while peers on this host are probably about to answer
SHORTEST_SLEEP_S = 50e-6
LONGEST_SLEEP_S = 5e-3
LOOK_EVERY_S = 0.02


class DecidedError(Exception):
    """The collective is over; raised to leave the middle of it."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("decision")
        self.decision = decision


class CollectiveWait:
    """Waits until the collective is over; after `deadline`, whoever is missing is left behind."""

    def __init__(self, group: Group, clock: Clock, deadline: Deadline) -> None:
        self._group = group
        self._clock = clock
        self._deadline = deadline
        self._looked = clock.now()

    def collect(self, phase: int) -> dict[str, bytes]:
        """Return the records of all members, by name in order of rank, or raise DecidedError."""
        names = self._group.view.names

        def complete() -> dict[str, bytes] | None:
            records = self._group.records(phase)
            return records if len(records) == len(names) else None

        records = self.wait(complete)
        return {name: records[name] for name in names}

    def decision(self) -> Decision:
        try:
            return self.wait(lambda: None)
        except DecidedError as over:
            return over.decision

    def wait(self, check: Callable[[], T | None]) -> T:
        """Return the first value of `check` that is not `None`, or raise DecidedError."""
        began = self._clock.now()
        while True:
            self.look()
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
        """Check, and wait for a message: without boards, all that others say comes in one."""
        with self._group.lock:
            found = check()
            if found is None and self._group.decision is None:
                self._group.changed.wait(LOOK_EVERY_S)
            return found

    def look(self) -> None:
        """Do what has become due meanwhile; raise DecidedError if the collective is over."""
        decision = self._group.decision
        if decision is not None:
            raise DecidedError(decision)
        self._group.check_open()
        now = self._clock.now()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            self._group.look_around()
            if self._deadline.expired():
                self._group.expire()
            self._group.tick(now)


PRIVATE = 0  # the number of a buffer that peers cannot map


class StagingBuffer:
    """Memory for one value after the other; a new view gets memory of its own.

    For whoever was left behind may still read what belonged to the view before, at any time.
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
        made = self._contacts.buffer(nbytes) if nbytes and self._contacts.share() else None
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
        """Give the memory back; whoever still reads it keeps it until they are done."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self.number, self._view = None, PRIVATE, b""
        self._data = np.empty(0, np.uint8)


class MappedBuffers:
    """Buffers of peers on this host, mapped once."""

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._mapped: dict[tuple[str, bytes], dict[int, ByteArray]] = {}

    def find(self, peer: str, numbers: tuple[int, ...]) -> tuple[ByteArray, ...] | None:
        """Return a peer's buffers, read-only; `None` if any of them must be streamed.

        What else was mapped of this peer is let go.
        """
        life = self._contacts.incarnation(peer)
        known = self._mapped.get((peer, life), {})
        found: dict[int, ByteArray] = {}
        for number in numbers:
            memory = known.get(number)
            if memory is None and number != PRIVATE:
                memory = self._contacts.image_of(peer, number)
            if memory is None:
                return None
            found[number] = memory
        self._mapped[peer, life] = found
        return tuple(found[number] for number in numbers)

    def keep(self, names: tuple[str, ...]) -> None:
        """Let go of the buffers of all but these peers, and of former lives of theirs."""
        self._mapped = {
            (name, life): buffers
            for (name, life), buffers in self._mapped.items()
            if name in names and life == self._contacts.incarnation(name)
        }


SETTLE_S = 0.2
SETTLE_POLL_S = 0.001


@dataclass(frozen=True)
class Called:
    """What the members of a collective have called."""

    entries: Mapping[str, Contribution]  # of all members, by name in order of rank

    @property
    def contributors(self) -> tuple[str, ...]:
        return tuple(name for name, entry in self.entries.items() if entry.contributes)


@dataclass(frozen=True)
class Workspace:
    """What operations of a group work with."""

    group: Group
    contacts: Contacts
    listener: PullListener
    pull_source: PullSource
    # for what this node brings, and for what it reduces
    buffers: tuple[StagingBuffer, StagingBuffer]
    mapped: MappedBuffers  # those of peers on this host
    runtime: Runtime

    @property
    def own(self) -> str:
        return self.contacts.own.name

    def settle(self) -> None:
        """Let members on this host map its memory, before a large value is laid out for them.

        Only for a moment: who does not say in time whether it can is sent a stream, once.
        """
        if not self.contacts.share():
            return
        others = [name for name in self.group.view.names if name != self.own]
        runtime = self.runtime
        end = runtime.now() + SETTLE_S
        while not self.contacts.are_settled(others) and runtime.now() < end:
            runtime.sleep(SETTLE_POLL_S)

    def room(self, brought: int, reduced: int) -> tuple[ByteArray, ByteArray]:
        view = self.group.view.identity
        first, second = self.buffers
        return first.make_room(view, brought), second.make_room(view, reduced)

    def show(self, offer: Offer) -> None:
        group = self.group
        self.pull_source.show(group.tag, (group.view.identity, group.number), offer)

    def is_read(self) -> bool:
        """Tell whether a member reads this node's memory."""
        names = self.group.view.names
        return any(self.contacts.reads_us(name) for name in names if name != self.own)

    def sides(self, called: Called) -> dict[str, Side]:
        """Map the buffers of all contributors on this host."""
        sides: dict[str, Side] = {}
        for name in called.contributors:
            if name == self.own:
                continue
            entry = called.entries[name]
            found = self.mapped.find(name, entry.buffers)
            if found is not None and found[0].nbytes < entry.nbytes:
                raise ProtocolError(f"the memory of {name} is smaller than its value")
            sides[name] = Side() if found is None else Side(*found)
        return sides

    def puller(self, wait: CollectiveWait, far: list[str]) -> Puller:
        """Return what pulls from members of other hosts, once they are connected."""
        wait.wait(lambda: True if all(map(self.contacts.is_up, far)) else None)
        group, own = self.group, self.contacts.own
        header = {
            "tag": group.tag,
            "name": own.name,
            "incarnation": own.incarnation,
            "view": group.view.identity,
            "number": group.number,
        }
        return Puller(self.listener, self.contacts, self.runtime.queue(), header)
