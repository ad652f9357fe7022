"""Leases of a data set's ranges: which process holds each range, and which ranges are done.

There is a row for each range: `[epoch, former holder, holder, is done]`. A process that changes a
row sends the new row, with the holder that it knows. The change takes effect only if that is still
the holder, and the range is not done:

    free ──claimed by A──► held by A ──acknowledged by A──► done
                             │  ▲
       A is gone: claimed by B  └─ given back: free

So if two processes claim a range, one of them gets it. An acknowledgement counts only if the range
was not given to a different process since, and a done range does not change. So each range is
acknowledged once, whatever the processes know about each other. Dead processes must only be
detected so that other processes do their ranges in the end. A row of an earlier epoch is free in a
later epoch. This is optimistic locking by a version (Kung and Robinson, 1981). The holder that is
compared is a fencing token (Chubby; Burrows, 2006).

Rows are float64, because tables have only numbers. All numbers are whole and below 2^53.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Collection

import numpy as np

EPOCH, FORMER, HOLDER, IS_DONE = range(4)
COLUMNS = 4
NOBODY = 0.0
_ID_BITS = 52


def holder_id(name: str, incarnation: bytes) -> float:
    """Return the number that identifies a process in rows, from 1 to 2^52."""
    digest = hashlib.blake2b(incarnation + name.encode(), digest_size=8).digest()
    return float((int.from_bytes(digest, "big") >> (64 - _ID_BITS)) + 1)


def change_rows(rows: np.ndarray, changed: np.ndarray) -> None:
    """Overwrite float64 rows, shape (n, 4), if the former holder in `changed` still holds them."""
    is_later = changed[:, EPOCH] > rows[:, EPOCH]
    holder = np.where(is_later, NOBODY, rows[:, HOLDER])
    may_change = is_later | ((changed[:, EPOCH] == rows[:, EPOCH]) & (rows[:, IS_DONE] == 0.0))
    takes_effect = may_change & (holder == changed[:, FORMER])
    rows[takes_effect] = changed[takes_effect]


class Leases:
    """One process's copy of the leases. The process passes rows in, and gets changed rows.

    A process looks for a free range from `first` on, which differs between nodes. After `lease_s`,
    it may claim a range even if the holder lives. `handed_out` are the ranges whose items it gives
    to its user.
    """

    def __init__(self, ranges: int, own: float, first: int, lease_s: float) -> None:
        self.epoch = 0
        self.handed_out: set[int] = set()
        self._own = own
        self._lease_s = lease_s
        self._order = (np.arange(ranges) + first) % ranges
        self._rows = np.zeros((ranges, COLUMNS))
        self._since = np.full(ranges, -math.inf)  # time when each row was first seen as it is

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.handed_out.clear()

    def see(self, rows: np.ndarray, now: float) -> None:
        self._since[(rows != self._rows).any(axis=1)] = now
        self._rows = rows

    def see_one(self, number: int, row: np.ndarray, now: float) -> None:
        rows = self._rows.copy()
        rows[number] = row
        self.see(rows, now)

    @property
    def is_over(self) -> bool:
        """Whether all ranges of the epoch are done, or a process has begun a later epoch."""
        return bool(self.done.all() or (self._rows[:, EPOCH] > self._number).any())

    @property
    def done(self) -> np.ndarray:
        """The ranges that are done in this epoch, as a bool array of shape (ranges,)."""
        epochs = self._rows[:, EPOCH]
        is_done: np.ndarray = (epochs > self._number) | (
            self._is_now & (self._rows[:, IS_DONE] != 0.0)
        )
        return is_done

    @property
    def has_holders(self) -> bool:
        """Whether any process has ever claimed a range."""
        return bool((self._rows[:, HOLDER] != NOBODY).any())

    def candidate(self, living: Collection[float] | None, now: float) -> int | None:
        """Return a free range to claim, else a range whose holder has ended, else `None`.

        `living` are the ids of the processes that may be alive, or `None` if they are unknown.
        """
        if self.is_over:
            return None
        is_open = ~self.done
        is_open[list(self.handed_out)] = False
        holders = np.where(self._is_now, self._rows[:, HOLDER], NOBODY)
        number = self._first_of(is_open & (holders == NOBODY))
        if number is not None:
            return number
        is_left = holders == self._own  # this process claimed the range, but got no answer
        is_left |= now - self._since > self._lease_s
        if living is not None:
            is_left |= ~np.isin(holders, list(living))
        return self._first_of(is_open & is_left)

    def _first_of(self, which: np.ndarray) -> int | None:
        places = np.flatnonzero(which[self._order])
        return int(self._order[places[0]]) if len(places) else None

    def claim(self, number: int) -> np.ndarray:
        holder = self._rows[number, HOLDER] if self._is_now[number] else NOBODY
        return self._row(holder, self._own)

    def acknowledgement(self) -> np.ndarray:
        return self._row(self._own, self._own, is_done=True)

    def release(self) -> np.ndarray:
        return self._row(self._own, NOBODY)

    def remembered(self) -> np.ndarray:
        """Return the row that marks a range as done already before a restart of all processes."""
        return self._row(NOBODY, NOBODY, is_done=True)

    def is_own(self, number: int) -> bool:
        """Return whether this process holds a range, or has acknowledged the range."""
        return bool(self._is_now[number] and self._rows[number, HOLDER] == self._own)

    def is_refused(self, number: int) -> bool:
        """Return whether a different process holds or has acknowledged a range in this epoch."""
        return bool(self._is_now[number]) and not self.is_own(number)

    @property
    def _number(self) -> float:
        return float(self.epoch + 1)  # so that a row of zeros belongs to no epoch

    @property
    def _is_now(self) -> np.ndarray:
        is_now: np.ndarray = self._rows[:, EPOCH] == self._number
        return is_now

    def _row(self, former: float, holder: float, *, is_done: bool = False) -> np.ndarray:
        return np.array([[self._number, former, holder, float(is_done)]])


class Outstanding:
    """Queue of ranges whose items the user has received, but not yet used for training."""

    def __init__(self) -> None:
        self._left: deque[list[int]] = deque()  # number of a range, and its items that are left
        self.items = 0

    def add_range(self, number: int, length: int) -> None:
        self._left.append([number, length])
        self.items += length

    def consume(self, items: int) -> list[int]:
        """Record training on the next `items` items. Return the ranges that are now complete."""
        ended: list[int] = []
        self.items -= items
        while self._left and items >= self._left[0][1]:
            number, length = self._left.popleft()
            items -= length
            ended.append(number)
        if self._left:
            self._left[0][1] -= items
        return ended

    def clear(self) -> list[int]:
        numbers = [number for number, _ in self._left]
        self._left.clear()
        self.items = 0
        return numbers
