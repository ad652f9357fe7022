"""The codecs `fp16` and `bf16`: 16-bit floats instead of wider floats."""

from __future__ import annotations

import torch

from dpwa.data.codecs.base import Codec
from dpwa.data.codecs.sizes import exactly
from dpwa.data.codecs.tensor_views import FLOATS, PayloadMemory, tensor_over
from dpwa.data.segments import ByteArray
from dpwa.types import Frame


class Half(Codec):
    """Rounds float32 and float64 to the nearest 16-bit float, and leaves other dtypes unchanged.

    A payload has 2 bytes for each value. The error of a value x is at most

        fp16   2^-11 |x|, or 2^-25 where |x| < 2^-14
        bf16   2^-8 |x|, or 2^-134 where |x| < 2^-126

    if |x| is at most the largest finite number, which is 65504 for fp16 and 3.39e38 for bf16.
    Larger finite values become the largest finite number. Infinities and NaN are kept. float64 is
    first rounded to float32, which adds an error of 2^-24 |x|, or 2^-150 if that is more. Sources
    of the formats: IEEE 754 binary16, and Kalamkar et al., "A Study of BFLOAT16 for Deep Learning
    Training" (2019).
    """

    def __init__(self, on_the_wire: str) -> None:
        self._narrow = FLOATS[on_the_wire]
        self._largest = torch.finfo(self._narrow).max
        self._payloads = PayloadMemory()

    def encode(self, piece: ByteArray, dtype: str) -> ByteArray:
        if not _is_wide(dtype):
            return piece
        values = tensor_over(piece, FLOATS[dtype])
        payload = self._payloads.allocate_array(values.numel() * self._narrow.itemsize)
        torch.from_numpy(payload).view(self._narrow).copy_(self._in_range(values))
        return payload

    def decode(self, payload: Frame, dtype: str, room: ByteArray) -> ByteArray:
        """Convert the payload's values to `dtype` in `room`, without a rounding error."""
        if not _is_wide(dtype):
            return exactly(payload, room.nbytes)
        values = tensor_over(room, FLOATS[dtype])
        narrow = exactly(payload, values.numel() * self._narrow.itemsize)
        values.copy_(tensor_over(narrow, self._narrow))
        return room

    def _in_range(self, values: torch.Tensor) -> torch.Tensor:
        """Limit finite values to the range of the narrow dtype. Keep infinities and NaN."""
        low, high = torch.aminmax(values)
        if -self._largest <= float(low) and float(high) <= self._largest:  # false if a value is NaN
            return values
        limited = values.clamp(-self._largest, self._largest)
        return torch.where(values.isinf(), values, limited)


def _is_wide(dtype: str) -> bool:
    return dtype in ("float32", "float64")
