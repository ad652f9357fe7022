"""User: enqueues the table operations of user threads, and waits for the results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from dpwa.clock import Deadline
from dpwa.collectives.admission import get_in
from dpwa.collectives.call import SHORTEST_SLEEP_S
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import Group
from dpwa.errors import (
    ClosedError,
    DpwaError,
    PeerLost,
    TableLostError,
    TableTimeoutError,
)
from dpwa.node.node import Node
from dpwa.tables.engine import Engine
from dpwa.tables.pending import AddedParts, Key, PendingOperations, PendingRead, Present
from dpwa.tables.requests import lost_error
from dpwa.tables.rows import ShardRows, check_size
from dpwa.tables.shard_memory import ShardMemory
from dpwa.tables.specs import TableSpec

log = logging.getLogger("dpwa.tables")

T = TypeVar("T")

MAX_WAITING_BYTES = 64 * 1024**2  # maximum size of the unacknowledged additions
LOOK_EVERY_S = 0.05
ASK_AGAIN_S = 1.0
READ_FOR_S = 0.02  # while additions disturb a read from memory; then the primary is asked
STOP_TIMEOUT_S = 5.0
LISTED = 3  # maximum number of shards in an error message


@dataclass
class _Reading:
    table: int
    spec: TableSpec
    result: np.ndarray  # shape (n,) or (n, columns)
    patience_s: float  # time without a byte until this node asks again; doubled each time

    def ask(self, part: ShardRows) -> PendingRead:
        rows = len(self.result[part.where])
        return PendingRead((self.table, part.shard), part.rows, rows * self.spec.row_bytes)

    def store_rows(self, part: ShardRows, ask: PendingRead) -> None:
        flat = ask.data.view(self.spec.dtype)
        rows = len(flat) // (self.spec.columns or 1)
        self.result[part.where] = flat.reshape(self.spec.shape(rows))


class User:
    """Enqueues the operations of all tables of a node, and waits for the results."""

    def __init__(
        self,
        node: Node,
        pending: PendingOperations,
        engine: Engine,  # its methods must be called on its own thread
        group: Group,  # of the nodes that use tables
        contacts: Contacts,  # members on this host share their memory
    ) -> None:
        self._node = node
        self.pending = pending
        self._engine = engine
        self._group = group
        self._contacts = contacts
        self.runtime = node.runtime
        self._mapped: dict[tuple[bytes, Key], ShardMemory] = {}
        self.timeout_s = node.config.collective_timeout_s
        self.is_closed = False
        # The number of passed barriers when this node arrived at the barrier in which it still is.
        # The barrier may have been passed since, without a return to the caller. `None`: in no
        # barrier.
        self.waited_at: int | None = None

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        """Return the deadline of an operation that starts now. Every call starts with this.

        Raises ForkedError in a fork of the process that has made the tables.
        """
        self._node.check_process()
        return Deadline(self.runtime, self.timeout_s if timeout_s is None else timeout_s)

    def wait_for(self, check: Callable[[], T | None], deadline: Deadline, what: str) -> T:
        """Return the first value of `check` that is not `None`. `check` runs with the lock held.

        Raises TableTimeoutError, TableLostError or ClosedError if there can be no such value.
        """
        with self._node.rx.unthrottled():
            return self._wait(check, deadline, what)

    def _wait(self, check: Callable[[], T | None], deadline: Deadline, what: str) -> T:
        while True:
            with self.pending.changed:
                self.check_open()
                found = check()
                if found is None:
                    self.pending.changed.wait(min(LOOK_EVERY_S, deadline.remaining_s()))
                    found = check()
            if found is not None:
                self.pending.raise_left_out()
                return found
            self._get_in(deadline)
            if deadline.expired():
                if not self.pending.present.is_ready:
                    self._engine.submit(self._engine.wait_no_longer)
                raise TableTimeoutError(
                    f"{what} took longer than the time limit. {self._state()} [DPWA-E183]"
                )

    def present(self, deadline: Deadline) -> Present:
        """Wait until all members have started the membership view, and return the tables' state."""
        present = self._present()
        if present is not None:
            return present
        return self.wait_for(self._present, deadline, "waiting for the start of a view")

    def check_open(self) -> None:
        """Raise an error if this node is closed, or if the other nodes have excluded it."""
        if self.is_closed or self._node.closed:
            raise ClosedError("the tables of this node are closed [DPWA-E182]")
        self.pending.raise_left_out()

    def _present(self) -> Present | None:
        present, group = self.pending.present, self._group
        is_now = present.is_ready and present.view == group.view and not group.is_evicted
        return present if is_now else None

    def _get_in(self, deadline: Deadline) -> None:
        if not self._group.is_evicted:
            return
        try:
            get_in(self._group, max(deadline.remaining_s(), LOOK_EVERY_S))
        except PeerLost as lost:
            own = self._contacts.own.name
            raise TableLostError(
                f"the other nodes have continued without {own}. {own} did not answer for too long: "
                f"{lost.text} [DPWA-E188]"
            ) from None

    def _state(self) -> str:
        group = self._group
        names = group.ranks or group.view.names
        unreachable = [name for name in names if not self._contacts.is_up(name)]
        others = [name for name in unreachable if name != self._contacts.own.name]
        is_ready = self.pending.present.is_ready
        return (
            f"Members: {', '.join(group.view.names)}. Not connected: {', '.join(others) or 'none'}"
            f"{'' if is_ready else '. Not all members use tables yet'}{self._unacknowledged()}"
        )

    def _unacknowledged(self) -> str:
        keys, tables = self.pending.unacknowledged(), self.pending.present.tables
        shards = [
            f"shard {shard} of table {number} on {', '.join(plan.placement.holders[shard])}"
            for number, shard in keys
            if (plan := tables.get(number)) is not None
        ]
        more = f" and {len(shards) - LISTED} others" if len(shards) > LISTED else ""
        listed = ", ".join(shards[:LISTED])
        return f". No acknowledgement of: {listed}{more} (see their logs)" if shards else ""

    # Creation of tables

    def make(self, number: int, spec: TableSpec) -> None:
        """Make a table, or check that all other nodes make the same table."""
        self._engine.submit(partial(self._engine.make, number, spec))

    def announce(self, number: int) -> None:
        self._engine.submit(partial(self._engine.announce, number))

    def is_first(self, present: Present) -> bool:
        """Return whether this node must store the initial values of tables."""
        return present.view.names[0] == self._contacts.own.name

    def wait_for_news(self, number: int, present: Present, deadline: Deadline) -> None:
        """Wait until the members or a table change. Raise an error if a member's table differs."""

        def is_news() -> bool | None:
            self.pending.check(number)
            return None if self.pending.present is present else True

        self.wait_for(is_news, deadline, f"making table {number}")

    def close(self) -> None:
        """End all waits, and free the memory."""
        with self.pending.changed:
            self.is_closed = True
            self.pending.changed.notify_all()
        self._engine.stop()
        self._engine.join(STOP_TIMEOUT_S)

    # Additions

    def submit_additions(
        self, number: int, parts: AddedParts, deadline: Deadline, *, is_first: bool = False
    ) -> None:
        """Enqueue additions to some shards, as soon as the queue has room for them."""
        nbytes = sum(data.nbytes for _, _, data in parts)

        def has_room() -> bool | None:
            waiting = self.pending.waiting_bytes
            if waiting and waiting + nbytes > MAX_WAITING_BYTES:
                return None
            self.pending.queue_additions(number, parts, is_first=is_first)
            self._engine.wake()
            return True

        self.pending.check(number)
        self.pending.raise_failure(number)
        self.wait_for(has_room, deadline, "waiting for room for an addition")

    def flush(self, number: int | None, deadline: Deadline) -> None:
        marks = self.pending.marks(number)

        def is_flushed() -> bool | None:
            if number is not None:
                self.pending.check(number)
            return True if self.pending.is_flushed(marks) else None

        self.wait_for(is_flushed, deadline, "waiting for the acknowledgement of an addition")
        self.pending.raise_failure(number)

    # Reads

    def read_rows(
        self,
        number: int,
        spec: TableSpec,
        parts: list[ShardRows],
        result: np.ndarray,
        deadline: Deadline,
    ) -> None:
        """Read rows of a table into an array, part by part."""
        self.pending.check(number)
        reading = _Reading(number, spec, result, ASK_AGAIN_S)
        while parts:
            present = self.present(deadline)
            parts = [part for part in parts if not self._read_here(reading, part, present)]
            if parts:
                parts = self._read_there(reading, parts, present, deadline)

    def _read_here(self, reading: _Reading, part: ShardRows, present: Present) -> bool:
        """Read rows from memory of this host if possible. Return whether they were read."""
        memory = self._memory(reading.table, part.shard, present)
        if memory is None:
            return False
        end = self.runtime.now() + READ_FOR_S
        while not memory.read_into(reading.result, part.where, part.rows):
            if self.runtime.now() > end:
                return False
            self.runtime.sleep(SHORTEST_SLEEP_S)
        return True

    def _memory(self, number: int, shard: int, present: Present) -> ShardMemory | None:
        key = number, shard
        try:
            primary = present.tables[number].placement.primary(shard)
        except LookupError:
            raise lost_error(number, shard) from None
        if primary == self._contacts.own.name:
            return self.pending.memories.get(key)
        return self._mapped.get((present.view.identity, key))

    def _read_there(
        self, reading: _Reading, parts: list[ShardRows], present: Present, deadline: Deadline
    ) -> list[ShardRows]:
        """Ask the primaries for rows, and return the parts that have not arrived."""
        for part in parts:
            check_size(0 if part.rows is None else part.rows.nbytes)
        asks = {self.pending.ask(ask): (part, ask) for part in parts if (ask := reading.ask(part))}
        for request, (part, ask) in asks.items():
            primary = present.tables[reading.table].placement.primary(part.shard)
            self._engine.submit(partial(self._engine.request_rows, request, ask, primary))
        patience, got_bytes = Deadline(self.runtime, reading.patience_s), 0

        def is_over() -> bool | None:
            nonlocal patience, got_bytes
            self.pending.check(reading.table)
            now_bytes = sum(ask.got_bytes for _, ask in asks.values())
            if now_bytes > got_bytes:  # the answer is arriving
                patience, got_bytes = Deadline(self.runtime, reading.patience_s), now_bytes
            is_other = self._present() is not present
            is_done = all(ask.is_answered for _, ask in asks.values())
            return True if is_done or is_other or patience.expired() else None

        self.wait_for(is_over, deadline, "waiting for an answer")
        reading.patience_s *= 2.0  # the pieces may take longer than that
        left: list[ShardRows] = []
        for part, ask in asks.values():
            if ask.refused is not None:
                raise DpwaError(f"table {reading.table} cannot be read: {ask.refused} [DPWA-E168]")
            if ask.is_answered:
                reading.store_rows(part, ask)
                self._map(reading, part, ask, present)
            else:
                left.append(part)
        return left

    def _map(self, reading: _Reading, part: ShardRows, ask: PendingRead, present: Present) -> None:
        """Map the shared memory that an answer names, so that the next read uses it."""
        plan = present.tables[reading.table]
        if not ask.image or plan.spec.kind == "key_value":
            return
        identity = present.view.identity
        self._mapped = {key: memory for key, memory in self._mapped.items() if key[0] == identity}
        primary = plan.placement.primary(part.shard)
        memory = self._contacts.image_of(primary, ask.image)
        rows = plan.spec.shards(plan.shards)[part.shard].rows
        if memory is not None and ShardMemory.fits(memory, plan.spec, rows):
            self._mapped[identity, ask.key] = ShardMemory(memory, plan.spec, rows)

    # Barriers

    def barrier(self, deadline: Deadline) -> None:
        """Wait until all members have arrived, and this node's additions have taken effect.

        The caller sets `waited_at` to `None` in the same statement as the consequences of the
        barrier. After a timeout or an interrupt, the next call waits for the same barrier again.
        """
        self.flush(None, deadline)
        passed = self.present(deadline).passed
        if self.waited_at is not None and passed > self.waited_at:
            return  # the barrier was passed just after this node had given up
        self.waited_at = passed

        def has_passed() -> bool | None:
            present = self._present()
            return True if present is not None and present.passed > passed else None

        try:
            self._engine.submit(self._engine.arrive)
            self.wait_for(has_passed, deadline, "waiting in a barrier")
        except TableTimeoutError as error:
            absent = self._engine.barriers.absent()
            self._engine.submit(self._engine.barriers.give_up)
            if not absent:
                raise
            raise TableTimeoutError(
                f"{error.text}. Absent members: {', '.join(absent)} [DPWA-E189]"
            ) from None
        except BaseException:
            self._engine.submit(self._engine.barriers.give_up)
            raise
