"""PendingOperations: unfinished adds and reads, which user threads hand to the engine.

Users add operations and wait for them. The engine handles operations, and publishes the state of
the view.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np

from dpwa.data.segments import ByteArray
from dpwa.errors import DpwaError, MismatchError, TableLostError
from dpwa.policy.group_views import GroupView
from dpwa.runtime import Runtime
from dpwa.tables.directory import TablePlan
from dpwa.tables.shard_memory import ShardMemory

Key = tuple[int, int]  # the number of a table, the index of a shard
AddedParts = list[tuple[int, int | None, ByteArray]]  # by shard: number of ids, data


@dataclass(frozen=True)
class Present:
    """The tables' state in a membership view. The object never changes. The engine replaces it."""

    view: GroupView
    is_ready: bool = False  # whether all members have sent their reports
    tables: Mapping[int, TablePlan] = field(default_factory=dict)  # by table number
    passed: int = 0  # the number of barriers that this node has passed


@dataclass(frozen=True, eq=False)
class Addition:
    """An addition to one shard."""

    key: Key
    counter: int  # the number of this addition among this node's additions to the shard, from 1
    rows: int | None  # the number of ids at the start of the data; `None`: all rows
    data: ByteArray  # the ids, then the delta
    is_first: bool = False  # whether it replaces the values


class PendingRead:
    """Rows that this node has requested from another member. With `ids` `None`, all rows."""

    def __init__(self, key: Key, ids: np.ndarray | None, nbytes: int) -> None:
        self.key = key
        self.ids = ids
        self.data: ByteArray = np.empty(nbytes, np.uint8)
        self.got_bytes = 0
        self.image = 0
        self.refused: str | None = None
        self.is_answered = False


class PendingOperations:
    """Unfinished adds and reads that user threads hand to the engine.

    `changed` guards the data, and is notified when users may continue.
    """

    def __init__(self, view: GroupView, runtime: Runtime) -> None:
        self.changed = runtime.condition()
        self.present = Present(view)
        self.memories: dict[Key, ShardMemory] = {}  # the memory of this node's own copies
        self._counters: dict[Key, int] = {}
        self._unseen: dict[Key, OrderedDict[int, Addition]] = {}
        # Additions that the engine has not numbered yet, each with the total size of all up to it.
        self._fresh: deque[tuple[Key, int | None, ByteArray, bool, int]] = deque()
        self._failed: dict[int, DpwaError] = {}
        # Only as long as a caller waits, because an interrupted caller cannot withdraw its request.
        self._asked: WeakValueDictionary[int, PendingRead] = WeakValueDictionary()
        self._requests = 0
        self._mismatches: dict[int, str] = {}
        self._left_out = ""
        self._numbered_bytes = self._seen_bytes = 0  # total sizes: numbered, acknowledged

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes of this node's unacknowledged additions."""
        with self.changed:
            return self._left_bytes - self._seen_bytes

    @property
    def _left_bytes(self) -> int:
        return self._fresh[-1][-1] if self._fresh else self._numbered_bytes

    # Called by users

    def queue_additions(self, table: int, parts: AddedParts, *, is_first: bool) -> None:
        """Enqueue additions to shards of one table. With `is_first`, they replace the values."""
        with self.changed:
            fresh, left_bytes = [], self._left_bytes
            for shard, rows, data in parts:
                left_bytes += data.nbytes
                fresh.append(((table, shard), rows, data, is_first, left_bytes))
            self._fresh.extend(fresh)  # an interrupt leaves all of them or none

    def marks(self, table: int | None = None) -> dict[Key, int]:
        """Return the number of this node's additions to each shard of a table, or of all tables."""
        with self.changed:
            made = self._counters.copy()
            for key, *_ in self._fresh:
                made[key] = made.get(key, 0) + 1
            return {k: n for k, n in made.items() if table in (None, k[0])}

    def is_flushed(self, marks: Mapping[Key, int]) -> bool:
        """Return whether all additions up to the numbers in `marks` were acknowledged."""
        return all(
            self._counters.get(key, 0) >= mark and next(iter(self._unseen[key]), mark + 1) > mark
            for key, mark in marks.items()
        )

    def unacknowledged(self) -> list[Key]:
        with self.changed:
            fresh = {key for key, *_ in self._fresh}
            return sorted(fresh.union(key for key, unseen in self._unseen.items() if unseen))

    def raise_failure(self, table: int | None = None) -> None:
        """Raise the error of a failed addition to `table` (`None`: to any table), only once."""
        with self.changed:
            number = next(iter(self._failed), None) if table is None else table
            error = None if number is None else self._failed.get(number)
            if number is not None and error is not None:
                del self._failed[number]  # no call may come between this and the raise
                raise error

    def check(self, table: int) -> None:
        """Raise `MismatchError` if a member has made a different table with the number `table`."""
        if table in self._mismatches:
            raise MismatchError(f"table {table}: {self._mismatches[table]} [DPWA-E168]")

    def raise_left_out(self) -> None:
        """Raise `TableLostError`, once, if the other nodes have continued without this node."""
        with self.changed:
            if self._left_out:
                error = TableLostError(self._left_out)
                self._left_out = ""  # no call may come between this and the raise
                raise error

    def ask(self, ask: PendingRead) -> int:
        """Register a request to read, and return its number, which the answer repeats."""
        with self.changed:
            self._requests += 1
            self._asked[self._requests] = ask
            return self._requests

    # Called by the engine and the TxThread

    def set_present(self, present: Present) -> None:
        with self.changed:
            self.present = present
            self.changed.notify_all()

    def note_mismatch(self, table: int, difference: str) -> None:
        with self.changed:
            self._mismatches[table] = difference
            self.changed.notify_all()

    def note_parted(self, own: str) -> None:
        """Record that a network partition occurred, and that each part has continued alone."""
        self._note_left_out(
            f"the connection between {own} and the others was lost, and each part has continued "
            "alone. From now on, only the tables of the larger part are used. The additions of "
            f"{own} in the meantime are lost [DPWA-E244]"
        )

    def note_stood_still(self, own: str, gone: Iterable[str]) -> None:
        """Record that this process was suspended. Since then, it cannot reach the nodes `gone`."""
        self._note_left_out(
            f"{own} was stopped for too long, and can no longer reach {', '.join(gone)}. "
            f"These nodes may have continued without {own} [DPWA-E245]"
        )

    def note_missed_barriers(self, own: str, count: int) -> None:
        """Record that the other nodes have passed `count` barriers without this node."""
        self._note_left_out(
            f"{own} did not answer for too long, so the other nodes have continued without {own}. "
            f"The other nodes have passed {count} barriers without {own} [DPWA-E246]"
        )

    def _note_left_out(self, reason: str) -> None:
        with self.changed:
            self._left_out = self._left_out or reason
            self.changed.notify_all()

    def take_fresh(self) -> list[Addition]:
        with self.changed:
            taken = []
            while self._fresh:
                key, rows, data, is_first, self._numbered_bytes = self._fresh.popleft()
                counter = self._counters[key] = self._counters.get(key, 0) + 1
                addition = Addition(key, counter, rows, data, is_first)
                self._unseen.setdefault(key, OrderedDict())[counter] = addition
                taken.append(addition)
            return taken

    def take_again(self) -> list[Addition]:
        """Return all unacknowledged additions of this node, in their order."""
        with self.changed:
            self.take_fresh()
            return [addition for unseen in self._unseen.values() for addition in unseen.values()]

    def acknowledge(self, key: Key, counter: int) -> int:
        """Record that all copies of a shard have the additions up to number `counter`.

        Returns the number of acknowledged additions, without initial values.
        """
        with self.changed:
            done, unseen = [], self._unseen.get(key, OrderedDict())
            while unseen and next(iter(unseen)) <= counter:
                _, addition = unseen.popitem(last=False)
                self._seen_bytes += addition.data.nbytes
                done.append(addition)
            if done:
                self.changed.notify_all()
        return sum(not addition.is_first for addition in done)

    def fail(self, key: Key, counter: int, error: DpwaError) -> None:
        """Record that an addition has failed. A later call of this table's user raises `error`."""
        with self.changed:
            addition = self._unseen.get(key, OrderedDict()).pop(counter, None)
            if addition is not None:
                self._seen_bytes += addition.data.nbytes
                self._failed[key[0]] = error
                self.changed.notify_all()

    def answered(self, request: int, start: int, data: ByteArray, image: int) -> None:
        """Store a piece of the answer to a read. Drop pieces that were not requested."""
        with self.changed:
            ask = self._asked.get(request)
            if ask is None or start != ask.got_bytes or start + data.nbytes > ask.data.nbytes:
                return
        ask.data[start : start + data.nbytes] = data  # a single thread stores all pieces
        with self.changed:
            ask.got_bytes += data.nbytes
            if ask.got_bytes == ask.data.nbytes:
                ask.image, ask.is_answered = image, True
                self._asked.pop(request, None)
                self.changed.notify_all()

    def refused(self, request: int, reason: str) -> None:
        with self.changed:
            ask = self._asked.pop(request, None)
            if ask is not None:
                ask.refused, ask.is_answered = reason, True
                self.changed.notify_all()
