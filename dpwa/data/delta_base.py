"""What a reader holds of a peer's snapshot, as both ends know it; for codecs of differences.

Every fetch brings both copies up to date. A token names the state of the copy: the serving end
announces it with the fetch that leads to it, and the reader names it when it asks again. When the
tokens differ, because a fetch was cut off or a node started anew, the whole snapshot is sent.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from dpwa.data.segments import ByteArray

NOTHING = 0  # the token of a copy that is of no use
MAX_SHARDS = 1024  # of one copy that are told apart; one that is forgotten is sent whole again
TOKEN_BYTES = 8


@dataclass
class DeltaBase:
    """A copy of a snapshot: its bytes, what they are called, and how old each shard of them is."""

    data: ByteArray
    token: int = NOTHING
    updates: dict[Hashable, int] = field(default_factory=dict)  # since the shard was sent whole


class ReaderBases:
    """The serving side's copies, at most `limit`; the least recently used one goes first."""

    def __init__(
        self,
        limit: int,
        resync_every: int,
        token_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._limit = limit
        self._resync_every = resync_every
        self._copies: OrderedDict[bytes, DeltaBase] = OrderedDict()
        # From anywhere: a reader may still name a token of the process that was here before.
        first = int.from_bytes(token_bytes(TOKEN_BYTES), "big") >> 2  # so many may follow
        self._tokens = itertools.count(1 + first)

    @property
    def nbytes(self) -> int:
        return sum(held.data.nbytes for held in tuple(self._copies.values()))

    def take(
        self, reader: bytes, token: int, nbytes: int, shard: Hashable
    ) -> tuple[DeltaBase, bool]:
        """Return the copy of a reader, to be updated, and whether it agrees with the reader's.

        If not, all of the shard must be sent, as it must be if it never was: the copy is zeros
        there. Until it is given back it counts as lost.
        """
        held = self._copies.pop(reader, None)
        if held is None or held.data.nbytes != nbytes:
            held = DeltaBase(np.zeros(nbytes, np.uint8))
        if not held.token == token != NOTHING or len(held.updates) > MAX_SHARDS:
            held.updates.clear()
        updates = held.updates.get(shard, self._resync_every) + 1
        agrees = updates < self._resync_every
        held.updates[shard] = updates if agrees else 0
        held.token = next(self._tokens)
        return held, agrees

    def give_back(self, reader: bytes, held: DeltaBase) -> None:
        self._copies[reader] = held
        while len(self._copies) > self._limit:
            self._copies.popitem(last=False)
