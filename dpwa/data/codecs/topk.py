"""The codec `topk`: the values that have changed most since the reader last heard of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpwa.data.codecs.arrays import FLOATS, Scratch, tensor_over, wide
from dpwa.data.codecs.base import Codec
from dpwa.data.codecs.payloads import exactly
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError, UserError
from dpwa.types import Frame

DEFAULT_KEEP = 0.01
SEGMENT_VALUES = 65536  # an index has 16 bits and counts within a segment
COUNT = np.dtype("<u4")
INDEX = np.dtype("<u2")
SAMPLE_EVERY = 16

Indices = npt.NDArray[np.int64]
Magnitudes = npt.NDArray[np.signedinteger]


class TopK(Codec):
    """Sends the k = ceil(keep * n) of n values that are farthest from what the reader holds.

    They are sent as they are, not as differences, so nothing drifts. What was not sent stays in the
    difference of the next time and is sent when it has grown: this is error feedback. For a piece x
    and what the reader holds, h before and h' after,

        |x - h'|^2 <= (1 - k/n) |x - h|^2

    and while x stays the same, h equals x after ceil(1 / keep) payloads. Values that are not finite
    count as the largest. Sources: EF21 (Richtarik, Sokolov and Fatkhullin, 2021); the copy of what
    a reader holds is that of CHOCO-SGD (Koloskova, Stich and Jaggi, 2019).

    A payload has, for every 65536 values of the piece, how many of them it brings (4 bytes), then
    the values, then for each its index within those 65536 (2 bytes); indices rise. Values that are
    equal on both ends are not sent. Dtypes that are not floating pass unchanged, as a whole.

    Both ends must hold the same. At the start, and whenever a payload was lost, the caller sends
    each piece with the codec `none`, and both ends set `held = piece`.
    """

    is_delta = True

    def __init__(self, keep: float = DEFAULT_KEEP) -> None:
        if not 0.0 < keep <= 1.0:
            raise UserError(
                f"the codec topk keeps a share over 0 and up to 1, not {keep!r} [DPWA-E122]"
            )
        self._keep = keep
        self._scratch = Scratch()

    def encode(self, piece: ByteArray, dtype: str, held: ByteArray | None = None) -> ByteArray:
        """Return what the reader should know, and set `held` to what it will then hold."""
        if held is None:
            raise ValueError("topk encodes against what the reader holds")
        if dtype not in FLOATS:
            np.copyto(held, piece)
            return piece
        mine, theirs = _patterns(piece, dtype), _patterns(held, dtype)
        chosen = _largest(self._distances(piece, held, dtype), math.ceil(self._keep * mine.size))
        values = mine[chosen]
        theirs[chosen] = values
        return _packed(chosen, values, mine.size)

    def decode(self, payload: Frame, dtype: str, room: ByteArray) -> ByteArray:
        """Return `room`, what this reader holds, with the values that the payload brings."""
        if dtype not in FLOATS:
            np.copyto(room, exactly(payload, room.nbytes))
            return room
        mine = _patterns(room, dtype)
        indices, values = _unpacked(payload, mine)
        mine[indices] = values
        return room

    def _distances(self, piece: ByteArray, held: ByteArray, dtype: str) -> Magnitudes:
        """Return |piece - held| as the integers of the same bits: NaN is the largest, 0 no
        difference.
        """
        values = tensor_over(piece, FLOATS[dtype])
        room = self._scratch.take(values.numel(), wide(values.dtype))
        room.copy_(values).sub_(tensor_over(held, FLOATS[dtype])).abs_()
        distances: Magnitudes = room.numpy().view(np.int64 if room.itemsize == 8 else np.int32)
        return distances


def _largest(magnitudes: Magnitudes, count: int) -> Indices:
    """Return the indices of the `count` largest, rising; of equal ones the
    first, and none of a 0.
    """
    candidates = np.flatnonzero(magnitudes >= _floor(magnitudes, count))
    if candidates.size < count:
        candidates = np.flatnonzero(magnitudes)
    if candidates.size <= count:
        return candidates
    among = magnitudes[candidates]
    bar = np.partition(among, -count)[-count]
    chosen = among > bar
    equal = np.flatnonzero(among == bar)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    indices: Indices = candidates[chosen]
    return indices


def _floor(magnitudes: Magnitudes, count: int) -> int:
    """Guess, by a sample, what at least `count` magnitudes reach; 1 if nothing can be said."""
    sample = magnitudes[::SAMPLE_EVERY]
    rank = 2 * count // SAMPLE_EVERY + SAMPLE_EVERY
    return max(1, int(np.partition(sample, -rank)[-rank])) if rank < sample.size else 1


def _packed(indices: Indices, values: npt.NDArray[np.unsignedinteger], size: int) -> ByteArray:
    ends = np.searchsorted(indices, np.arange(0, size + SEGMENT_VALUES, SEGMENT_VALUES))
    parts = np.diff(ends).astype(COUNT), values, (indices % SEGMENT_VALUES).astype(INDEX)
    return np.concatenate([part.view(np.uint8) for part in parts])


def _unpacked(
    payload: Frame, held: npt.NDArray[np.unsignedinteger]
) -> tuple[Indices, npt.NDArray[np.unsignedinteger]]:
    """Return indices and values of a payload; `ProtocolError` if its size or numbers are
    impossible.
    """
    segments = -(-held.size // SEGMENT_VALUES)
    size = memoryview(payload).nbytes
    count, rest = divmod(size - segments * COUNT.itemsize, held.itemsize + INDEX.itemsize)
    if rest or not 0 <= count <= held.size:
        raise ProtocolError(f"a payload of {size} bytes brings no values to {held.size}")
    counts = np.frombuffer(payload, COUNT, segments)
    if counts.sum(dtype=np.uint64) != count:
        raise ProtocolError("a payload does not have as many values as it says")
    values = np.frombuffer(payload, held.dtype, count, counts.nbytes)
    starts = np.repeat(np.arange(segments) * SEGMENT_VALUES, counts)
    indices = starts + np.frombuffer(payload, INDEX, count, counts.nbytes + values.nbytes)
    if count and (indices[-1] >= held.size or (np.diff(indices) <= 0).any()):
        raise ProtocolError("the indices of a payload do not rise, or are out of range")
    return indices, values


def _patterns(data: ByteArray, dtype: str) -> npt.NDArray[np.unsignedinteger]:
    """Return values as the integers of the same bits: they are moved, not computed with."""
    patterns: npt.NDArray[np.unsignedinteger] = data.view(f"u{FLOATS[dtype].itemsize}")
    return patterns
