"""Shards: with `fraction` below 1, a round fetches only one part of the parameters, a shard.

ceil(1 / fraction) shards of about equal size take turns. So each round sends only a part of the
model over a slow link, and every parameter is merged once in that many rounds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from dpwa.data.layout import Layout
from dpwa.wire import limits


@dataclass(frozen=True)
class Shard:
    """Consecutive pieces of a snapshot, in chunks of `chunk_bytes`. `count` 0 means all pieces."""

    chunk_bytes: int = limits.CHUNK_BYTES
    first: int = 0
    count: int = 0


WHOLE = Shard()
NARROW = 1024  # number of pieces from which the shard of a few tensors is chosen


def shard_of(layout: Layout, fraction: float, turn: int) -> Shard:
    """Return the shard of fetch `turn`, from 0. A snapshot without structure is one shard."""
    nbytes = layout.nbytes
    if fraction >= 1.0 or not nbytes:
        return WHOLE
    shards = math.ceil(1 / fraction)
    chunk_bytes = _chunk_bytes(nbytes, min(shards, limits.MAX_PIECES))
    pieces = len(layout.pieces(nbytes, chunk_bytes))
    shards = min(shards, pieces)
    index = turn % shards
    first = pieces * index // shards
    return Shard(chunk_bytes, first, pieces * (index + 1) // shards - first)


def shard_between(layout: Layout, start: int, stop: int) -> Shard:
    """Return the smallest shard that contains the bytes from `start` to `stop`."""
    nbytes = layout.nbytes or 0
    chunk_bytes = _chunk_bytes(nbytes, NARROW)
    stops = [piece.stop for piece in layout.pieces(nbytes, chunk_bytes)]
    first = bisect_right(stops, start)
    return Shard(chunk_bytes, first, bisect_left(stops, stop) + 1 - first)


def _chunk_bytes(nbytes: int, pieces: int) -> int:
    """Return the number of bytes of each piece, if `nbytes` are cut into `pieces` pieces."""
    multiple = limits.CHUNK_MULTIPLE_BYTES
    wanted = -(-nbytes // (pieces * multiple)) * multiple
    return min(max(wanted, limits.MIN_CHUNK_BYTES), limits.CHUNK_BYTES)


def shards_of(layout: Layout, fraction: float) -> list[Shard]:
    """Return all shards of a snapshot. Each round fetches the next shard."""
    most = 1 if fraction >= 1.0 else math.ceil(1 / fraction)
    return list(dict.fromkeys(shard_of(layout, fraction, turn) for turn in range(most)))
