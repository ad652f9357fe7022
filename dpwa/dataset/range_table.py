"""RangeTable: the leases of a data set's ranges, in a table that all nodes hold.

All nodes compute the ranges of shuffled indices alike, without a message (`DatasetRanges`,
`shuffled`).
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

MAX_SEED = 2**32 - 1  # of numpy.random.RandomState


@dataclass(frozen=True)
class DatasetRanges:
    dataset_size: int
    range_size: int  # the last range may have fewer
    shuffle: bool  # else the indices come as they are
    seed: int  # 0 to 2^32 - 1

    @property
    def count(self) -> int:
        return -(-self.dataset_size // self.range_size)

    def length(self, number: int) -> int:
        return min(self.range_size, self.dataset_size - number * self.range_size)

    def cut(self, order: np.ndarray, number: int) -> np.ndarray:
        """Return the indices of a range, of an order that `shuffled` has returned."""
        start = number * self.range_size
        return order[start : start + self.length(number)]


def shuffled(size: int, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
    """Return the indices 0 to size - 1 in the order of an epoch, int64 of shape (size,).

    It is a permutation by `numpy.random.RandomState`, whose streams are the same in all versions of
    NumPy (NEP 19), so that nodes with different versions agree. The seed is 0 to 2^32 - 1.
    """
    order = np.arange(size, dtype=np.int64)
    if shuffle:
        np.random.RandomState([seed, epoch]).shuffle(order)
    return order


log = logging.getLogger("dpwa.dataset")

T = TypeVar("T")

FIRST_LOOK_S, LONGEST_LOOK_S = 0.02, 0.5  # between two looks at what others hold
MEET_FOR_S = 1.0
MAX_TIMES_LOST = 3  # in a row; rows whose copies are all gone are lost every time


class RangeTable:
    """The ranges that this node takes, one after the other.

    Raises `MismatchError` if a node hands out a different data set, or in a different way, and
    `TableTimeoutError` if the other nodes have not arrived in time.
    """

    def __init__(
        self,
        tables: Tables,
        ranges: DatasetRanges,  # of the data set; the same on all nodes
        *,
        replicas: int,  # copies of each row besides the first
        lease_s: float,  # until a range is taken from a node that lives
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
        first = place * ranges.count // max(len(members), 1)  # where its own shard begins
        self.leases = Leases(ranges.count, holder_id(own.name, own.incarnation), first, lease_s)
        self._unconfirmed: set[int] = set()  # ranges that were acknowledged since the last look

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
        """Return a range that is this node's from now on, or `None` if there is none at present.

        Earlier acknowledgements are in all copies when this returns.
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
                self.read_rows()  # others have gone on, too
            number = self._candidate()
        return None

    def wait_for_range(self) -> int | None:
        """`None` if the epoch is over."""
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
        # What was read may not be in all copies yet; what changes nothing comes after it.
        nothing = np.zeros((self.ranges.count, COLUMNS))
        self._steadily(lambda: self._table.add(nothing, sync=True))
        self.read_rows()
        return self.leases.is_over

    def acknowledge(self, number: int) -> None:
        """Report that a range is done. This returns before that is in all copies."""
        self._unconfirmed.add(number)
        self._change([number], self.leases.acknowledgement())

    def release(self, numbers: Collection[int]) -> None:
        """Release ranges that this node holds. This returns before that is in all copies."""
        self.leases.handed_out.difference_update(numbers)
        if numbers:
            self._change(sorted(numbers), np.repeat(self.leases.release(), len(numbers), axis=0))

    def read_rows(self) -> None:
        """Read all rows. Earlier acknowledgements are in all copies then."""
        self.leases.see(self._steadily(self._table.get), self._runtime.now())
        for number in self._unconfirmed:
            self.leases.handed_out.discard(number)
            if self.leases.is_refused(number):
                self.refused += 1
                log.warning(
                    "%s: range %d was given to another node meanwhile, because this one did not "
                    "acknowledge it in time. Its training on this range is not counted"
                    " [DPWA-W039]",
                    self._name,
                    number,
                )
            else:
                self.acknowledged += self.ranges.length(number)
        self._unconfirmed.clear()

    def remember(self, numbers: Collection[int]) -> None:
        """Note that ranges were done before all nodes were restarted.

        This waits for the other nodes to call it, whose ranges count too. It ends when a node has
        taken a range.
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
        """Repeat `act` if the others had continued without this node, which is logged once.

        Repeating a change is harmless, because it takes effect once.
        """
        for _ in range(MAX_TIMES_LOST):
            try:
                return act()
            except TableLostError as lost:
                log.warning(
                    "%s: ranges may be handed out again: %s [DPWA-W040]", self._name, lost.text
                )
        return act()
