"""RangeTable claims ranges of a data set through a table that all nodes share.

All nodes compute the same ranges of shuffled indices, so they need no messages for this (see
`DatasetRanges` and `shuffled`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from dpwa.clock import Deadline
from dpwa.errors import TableLostError, TableTimeoutError
from dpwa.policy.range_leases import COLUMNS, Leases, holder_id
from dpwa.tables.node_tables import Tables
from dpwa.tables.table import ArrayTable

MAX_SEED = 2**32 - 1  # the limit of numpy.random.RandomState


@dataclass(frozen=True)
class DatasetRanges:
    dataset_size: int
    range_size: int  # the number of indices in a range, or fewer in the last range
    shuffle: bool  # whether the indices are shuffled
    seed: int  # 0 to 2^32 - 1

    @property
    def count(self) -> int:
        return -(-self.dataset_size // self.range_size)

    def length(self, number: int) -> int:
        return min(self.range_size, self.dataset_size - number * self.range_size)

    def cut(self, order: np.ndarray, number: int) -> np.ndarray:
        """Return the indices in range `number`. `order` is the array that `shuffled` returns."""
        start = number * self.range_size
        return order[start : start + self.length(number)]


def shuffled(size: int, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
    """Return the indices 0 to size - 1, in the random order of `epoch` if `shuffle` is set.

    The array has the shape (size,) and is int64. `numpy.random.RandomState` shuffles it. This class
    has the same random numbers in all versions of NumPy (NEP 19), so nodes with different versions
    agree. The seed is 0 to 2^32 - 1.
    """
    order = np.arange(size, dtype=np.int64)
    if shuffle:
        np.random.RandomState([seed, epoch]).shuffle(order)
    return order


log = logging.getLogger("dpwa.dataset")

T = TypeVar("T")

FIRST_LOOK_S, LONGEST_LOOK_S = 0.02, 0.5  # shortest and longest pause between two reads of all rows
MEET_FOR_S = 1.0
MAX_TIMES_LOST = 3  # after this number of retries, the error is raised


class RangeTable:
    """Claims the ranges of a data set that this node trains on, one range at a time.

    Raises `MismatchError` if another node has a different data set or different arguments. Raises
    `TableTimeoutError` if the other nodes have not created their tables in time.
    """

    def __init__(
        self,
        tables: Tables,
        ranges: DatasetRanges,  # the ranges of the data set, which are the same on all nodes
        *,
        replicas: int,  # the number of copies of each row, without the first
        lease_s: float,  # time after which another node may claim a range of a living node
    ) -> None:
        self.tables = tables
        self.ranges = ranges
        self.acknowledged = self.refused = 0
        self._runtime = tables.runtime
        self._replicas = replicas
        own = tables.own_life
        self._name = own.name
        self._table = self._steadily(self._make)
        members = tables.members
        place = members.index(own.name) if own.name in members else 0
        first = place * ranges.count // max(len(members), 1)  # this node claims from here on
        self.leases = Leases(ranges.count, holder_id(own.name, own.incarnation), first, lease_s)
        self._unconfirmed: set[int] = set()  # ranges acknowledged since the last read of the rows

    def _make(self) -> ArrayTable:
        return self.tables.matrix(
            self.ranges.count,
            COLUMNS,
            dtype="float64",
            updater="lease",
            options=asdict(self.ranges),
            replicas=self._replicas,
        )

    def begin_epoch(self, epoch: int) -> None:
        self._unconfirmed.clear()
        self.leases.begin_epoch(epoch)

    def take_range(self) -> int | None:
        """Claim a free range for this node. Return its number, or `None` if no range is free now.

        When this method returns, all copies have the earlier acknowledgements.
        """
        number = self._candidate()
        has_looked = False
        while number is not None or not has_looked:
            if number is None:
                self.read_rows()
                has_looked = True
            elif self._claim(number):
                return number
            else:
                self.read_rows()  # because other nodes have claimed ranges, too
            number = self._candidate()
        return None

    def wait_for_range(self) -> int | None:
        """Wait for a free range and claim it. Return its number, or `None` if the epoch is over."""
        pause_s = FIRST_LOOK_S
        with self.tables.waiting():
            while True:
                number = self.take_range()
                if number is not None or (self.leases.is_over and self.is_over()):
                    return number
                self._runtime.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_LOOK_S)

    def is_over(self) -> bool:
        self.read_rows()
        if not self.leases.is_over:
            return False
        # Some copies may lack the rows that were read. They get them before this empty change.
        nothing = np.zeros((self.ranges.count, COLUMNS))
        self._steadily(lambda: self._table.add(nothing, sync=True))
        self.read_rows()
        return self.leases.is_over

    def acknowledge(self, number: int) -> None:
        """Report that this node has trained on a range. Copies of the table may learn it later."""
        self._unconfirmed.add(number)
        self._change([number], self.leases.acknowledgement())

    def release(self, numbers: Collection[int]) -> None:
        """Release ranges that this node holds. Copies of the table may learn it later."""
        self.leases.handed_out.difference_update(numbers)
        if numbers:
            self._change(sorted(numbers), np.repeat(self.leases.release(), len(numbers), axis=0))

    def read_rows(self) -> None:
        """Read the table's row of each range. All copies then have the earlier acknowledgements."""
        self.leases.see(self._steadily(self._table.get), self._runtime.now())
        for number in self._unconfirmed:
            self.leases.handed_out.discard(number)
            if self.leases.is_refused(number):
                self.refused += 1
                log.warning(
                    "%s: range %d was given to another node, because this node did not acknowledge "
                    "the range in time. Only the other node's training on the range counts"
                    " [DPWA-W039]",
                    self._name,
                    number,
                )
            else:
                self.acknowledged += self.ranges.length(number)
        self._unconfirmed.clear()

    def remember(self, numbers: Collection[int]) -> None:
        """Record in the table that the ranges `numbers` were done before all nodes restarted.

        Wait until the other nodes have recorded their ranges, too, or until a node has claimed a
        range, or until the time limit.
        """
        if numbers:
            changed = np.repeat(self.leases.remembered(), len(numbers), axis=0)
            self._change(sorted(numbers), changed)
        deadline = Deadline(self._runtime, self.tables.timeout_s)
        self.read_rows()
        while not (self.leases.has_holders or deadline.expired()):
            try:
                patience_s = min(MEET_FOR_S, deadline.remaining_s())
                self._steadily(partial(self.tables.barrier, patience_s))
                return
            except TableTimeoutError:
                self.read_rows()

    def _candidate(self) -> int | None:
        lives = self.tables.lives
        living = None if lives is None else {holder_id(m.name, m.incarnation) for m in lives}
        return self.leases.candidate(living, self._runtime.now())

    def _claim(self, number: int) -> bool:
        self._change([number], self.leases.claim(number))
        row = self._steadily(lambda: self._table.get([number]))[0]
        self.leases.see_one(number, row, self._runtime.now())
        if not self.leases.is_own(number):
            return False
        self.leases.handed_out.add(number)
        return True

    def _change(self, numbers: list[int], changed: np.ndarray) -> None:
        self._steadily(lambda: self._table.add(changed, numbers))

    def _steadily(self, act: Callable[[], T]) -> T:
        """Call `act`, and repeat the call after a `TableLostError`, at most `MAX_TIMES_LOST` times.

        A repeated change of the table does no harm, because it takes effect only once.
        """
        for _ in range(MAX_TIMES_LOST):
            try:
                return act()
            except TableLostError as lost:
                log.warning(
                    "%s: nodes may train on some ranges again, because acknowledgements of this "
                    "node may be lost: %s [DPWA-W040]",
                    self._name,
                    lost.text,
                )
        return act()
