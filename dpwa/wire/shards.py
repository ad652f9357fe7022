"""Shards: the part of the parameters that a round fetches, if it does not fetch them all.

With `fraction` below 1, ceil(1 / fraction) shards of about equal size take turns. So a thin link
carries a part of the model in each round, and every parameter is mixed once in that many rounds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from dpwa.data.layout import Layout
from dpwa.wire import limits


@dataclass(frozen=True)
class Shard:
    """Consecutive pieces of a snapshot, which is cut by `chunk_bytes`. `count` 0 means all."""

    chunk_bytes: int = limits.CHUNK_BYTES
    first: int = 0
    count: int = 0


WHOLE = Shard()
NARROW = 1024  # pieces, for a shard of a few tensors


def shard_of(layout: Layout, fraction: float, turn: int) -> Shard:
    """Return the shard of a turn (0, 1, 2, ...). Snapshots without structure are whole."""
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
    """Return the shard that has the bytes from `start` to `stop`, and few others."""
    nbytes = layout.nbytes or 0
    chunk_bytes = _chunk_bytes(nbytes, NARROW)
    stops = [piece.stop for piece in layout.pieces(nbytes, chunk_bytes)]
    first = bisect_right(stops, start)
    return Shard(chunk_bytes, first, bisect_left(stops, stop) + 1 - first)


def _chunk_bytes(nbytes: int, pieces: int) -> int:
    """Return the length of the pieces if there should be this many."""
    multiple = limits.CHUNK_MULTIPLE_BYTES
    wanted = -(-nbytes // (pieces * multiple)) * multiple
    return min(max(wanted, limits.MIN_CHUNK_BYTES), limits.CHUNK_BYTES)


def shards_of(layout: Layout, fraction: float) -> list[Shard]:
    """Return all shards that take turns, which together are the whole snapshot."""
    most = 1 if fraction >= 1.0 else math.ceil(1 / fraction)
    return list(dict.fromkeys(shard_of(layout, fraction, turn) for turn in range(most)))
