"""What a reader holds of a peer's snapshot, as both ends know it; for codecs of differences.

The two ends keep equal copies, which every fetch brings up to date. A token names the state of the
copy: the serving end announces it with the fetch that leads to it, and the reader names it when it
asks again. When the tokens differ, because a fetch was cut off or a node started anew, the whole
snapshot is sent.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from dpwa.data.segments import ByteArray

NOTHING = 0  # the token of a copy that is of no use


@dataclass
class Held:
    """A copy of a snapshot: what it is called, how old it is, and its bytes."""

    data: ByteArray
    token: int = NOTHING
    updates: int = 0  # since the whole snapshot was sent


class HeldByReaders:
    """The serving side's copies, a bounded number of them; the least recently used one goes first.

    Args:
        limit: how many readers are remembered.
        resync_every: after so many fetches, a reader gets the whole snapshot again.
    """

    def __init__(self, limit: int, resync_every: int) -> None:
        self._limit = limit
        self._resync_every = resync_every
        self._copies: OrderedDict[bytes, Held] = OrderedDict()
        self._tokens = itertools.count(1)

    @property
    def nbytes(self) -> int:
        """Memory of all copies."""
        return sum(held.data.nbytes for held in self._copies.values())

    def take(self, reader: bytes, token: int, nbytes: int) -> tuple[Held, bool]:
        """Return the copy of a reader, to be updated, and whether it agrees with the reader's.

        If not, all of it must be sent. Until it is given back it counts as lost.
        """
        held = self._copies.pop(reader, None)
        agrees = (
            held is not None
            and held.token == token != NOTHING
            and held.data.nbytes == nbytes
            and held.updates + 1 < self._resync_every
        )
        if held is None or held.data.nbytes != nbytes:
            held = Held(np.zeros(nbytes, np.uint8))
        held.token = next(self._tokens)
        held.updates = held.updates + 1 if agrees else 0
        return held, agrees

    def give_back(self, reader: bytes, held: Held) -> None:
        """Keep a copy that was brought up to date."""
        self._copies[reader] = held
        while len(self._copies) > self._limit:
            self._copies.popitem(last=False)
