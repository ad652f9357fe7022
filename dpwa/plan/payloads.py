"""What codecs make of the pieces of a model: found by encoding a sample of each kind of piece."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from dpwa.data.checksum import checksum
from dpwa.data.codecs import Codec, codec
from dpwa.data.codecs.arrays import FLOATS
from dpwa.data.layout import Layout, Piece
from dpwa.data.segments import ByteArray
from dpwa.wire.fetching import pieces_of
from dpwa.wire.shards import shards_of

SEED = 7
TRIES = 3

PieceKind = tuple[int, str]  # bytes, dtype


@dataclass(frozen=True)
class Work:
    nbytes: float  # payload on the wire
    pieces: float
    busy_s: float  # of one core of this machine, of the end that has more to do


class Payloads:
    """Costs of the fetches of one model, by codec and fraction."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.model_bytes = layout.nbytes or 0
        self._codec = cache(codec)
        self._samples: dict[tuple[str, PieceKind], Work] = {}
        self._cuts: dict[float, list[Counter[PieceKind]]] = {}

    def fetch(self, codec: str, fraction: float) -> Work:
        """Return what a fetch costs, in the mean of all shards that take turns."""
        shards = self._cut(fraction)
        whole: Counter[PieceKind] = sum(shards, Counter())
        parts = [(self._sample(codec, kind), count) for kind, count in whole.items()]
        return Work(
            sum(work.nbytes * count for work, count in parts) / len(shards),
            sum(whole.values()) / len(shards),
            sum(work.busy_s * count for work, count in parts) / len(shards),
        )

    def _cut(self, fraction: float) -> list[Counter[PieceKind]]:
        """Return of which pieces each shard is."""
        if fraction not in self._cuts:
            shards = shards_of(self._layout, fraction)
            self._cuts[fraction] = [
                _kinds(pieces_of(self._layout, self.model_bytes, shard)) for shard in shards
            ]
        return self._cuts[fraction]

    def _sample(self, name: str, kind: PieceKind) -> Work:
        if (name, kind) not in self._samples:
            self._samples[name, kind] = _tried(self._codec(name), *kind)
        return self._samples[name, kind]


def _kinds(pieces: Sequence[Piece]) -> Counter[PieceKind]:
    return Counter((piece.nbytes, piece.dtype) for piece in pieces)


def _tried(codec: Codec, nbytes: int, dtype: str) -> Work:
    """Encode and decode normally distributed values."""
    piece, best_s = _values(nbytes, dtype), math.inf
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other where the machine has other work
    try:
        for _ in range(TRIES):
            payload, seconds = _timed(codec, piece, dtype)
            best_s = min(best_s, seconds)
    finally:
        torch.set_num_threads(threads)
    return Work(payload.nbytes, 1, best_s)


def _timed(codec: Codec, piece: ByteArray, dtype: str) -> tuple[ByteArray, float]:
    """Return the payload, and the seconds of the end that has more to do.

    They are of this thread's work: a machine that is busy just now says nothing of a training.
    """
    buffer = np.zeros_like(piece)
    began = time.thread_time()
    payload = codec.encode(piece, dtype)
    checksum(payload)
    encoded = time.thread_time()
    checksum(payload)
    found = codec.decode(payload.data, dtype, buffer)
    if not np.may_share_memory(found, buffer):
        np.copyto(buffer, found)  # as the reader does
    return payload, max(encoded - began, time.thread_time() - encoded)


def _values(nbytes: int, dtype: str) -> ByteArray:
    kind = FLOATS[dtype]
    generator = torch.Generator().manual_seed(SEED)
    values = torch.randn(nbytes // kind.itemsize, generator=generator, dtype=torch.float32)
    found: ByteArray = values.to(kind).view(torch.uint8).numpy()
    return found
