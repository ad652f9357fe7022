"""Shards: which part of the parameters a round fetches, when it is not to fetch them all.

With `fraction` below 1, ceil(1 / fraction) shards of about equal size take turns; so a thin link
carries a part of the model in each round, and every parameter is mixed once in that many rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpwa.data.layout import Layout
from dpwa.wire import limits


@dataclass(frozen=True)
class Shard:
    """Consecutive pieces of a snapshot that is cut into pieces of `chunk_bytes`; `count` 0: all."""

    chunk_bytes: int = limits.CHUNK_BYTES
    first: int = 0
    count: int = 0


WHOLE = Shard()


def shard_of(layout: Layout, fraction: float, turn: int) -> Shard:
    """Return the shard that is due in a turn (0, 1, 2, ...).

    Snapshots without structure are fetched whole, as their size is not known before.
    """
    nbytes = layout.nbytes
    if fraction >= 1.0 or not nbytes:
        return WHOLE
    shards = math.ceil(1 / fraction)
    multiple = limits.CHUNK_MULTIPLE_BYTES
    least = -(-nbytes // min(shards, limits.MAX_PIECES))
    wanted = -(-least // multiple) * multiple
    chunk_bytes = min(max(wanted, limits.MIN_CHUNK_BYTES), limits.CHUNK_BYTES)
    pieces = len(layout.pieces(nbytes, chunk_bytes))
    shards = min(shards, pieces)
    index = turn % shards
    first = pieces * index // shards
    return Shard(chunk_bytes, first, pieces * (index + 1) // shards - first)


def shards_of(layout: Layout, fraction: float) -> list[Shard]:
    """Return all shards that take turns: together they are the whole snapshot."""
    most = 1 if fraction >= 1.0 else math.ceil(1 / fraction)
    return list(dict.fromkeys(shard_of(layout, fraction, turn) for turn in range(most)))
