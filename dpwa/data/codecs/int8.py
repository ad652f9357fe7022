"""The codec `int8`: 8-bit integers, and a scale for each block of values."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dpwa.data.codecs.base import Codec
from dpwa.data.codecs.sizes import BLOCK_VALUES, exactly, payload_bytes
from dpwa.data.codecs.tensor_views import FLOATS, PayloadMemory, Scratch, tensor_over, wide
from dpwa.data.segments import ByteArray
from dpwa.types import Frame

# With blocks of 128 values, the error is 7 % smaller and float32 shrinks 3.88 and not 3.94 times.
LARGEST_CODE = 127
# A little less than 1/127, so that no rounding makes 127 * scale overflow.
SCALE_OF_LARGEST = (1.0 - 2.0**-20) / LARGEST_CODE


class Int8(Codec):
    """Rounds each value to the nearest of 255 multiples of its block's scale, absmax / 127.

    For the scale s of a block of 256 values, of which absmax is the largest magnitude:

        code = round(x / s)     decoded = code * s     |decoded - x| <= s / 2 = absmax / 254

    up to the rounding of the floats themselves. No scale is smaller than the smallest normal
    number, so a block below 127 times that (1.5e-36 in float32) has an error of at most half of it.
    Halfway cases go to the even code. Equal pieces give equal payloads. A block with a NaN or an
    infinity has such a scale, and every value of it decodes to NaN or an infinity.

    A payload is the scales (float32; float64 for float64) and then one byte for each value. 16-bit
    floats are scaled in float32 and rounded once more when decoded. Other dtypes pass unchanged.
    Source: block-wise quantization of Dettmers et al., "8-bit Optimizers via Block-wise
    Quantization" (2022), with evenly spaced codes.
    """

    def __init__(self) -> None:
        self._payloads = PayloadMemory()
        self._scratch = Scratch()

    def encode(self, piece: ByteArray, dtype: str) -> ByteArray:
        if dtype not in FLOATS:
            return piece
        values = tensor_over(piece, FLOATS[dtype])
        payload = self._payloads.allocate_array(payload_bytes("int8", piece.nbytes, dtype))
        room = self._scratch.borrow_tensor(values.numel(), wide(values.dtype))
        for rows, codes, scales, rows_room in _blocks(values, payload, room):
            _quantize(rows, codes, scales, rows_room)
        return payload

    def decode(self, payload: Frame, dtype: str, room: ByteArray) -> ByteArray:
        if dtype not in FLOATS:
            return exactly(payload, room.nbytes)
        values = tensor_over(room, FLOATS[dtype])
        whole = exactly(payload, payload_bytes("int8", room.nbytes, dtype))
        for rows, codes, scales in _blocks(values, whole):
            rows.copy_(codes).mul_(scales)
        return room


def _quantize(
    rows: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, room: torch.Tensor
) -> None:
    """Set scales, shape `(rows, 1)`, and codes, shape `(rows, values)`, with `room` as scratch."""
    values = rows if rows.dtype == room.dtype else room.copy_(rows)
    torch.maximum(values.amax(1, keepdim=True), -values.amin(1, keepdim=True), out=scales)
    scales.mul_(SCALE_OF_LARGEST).clamp_(min=torch.finfo(scales.dtype).tiny)
    torch.mul(values, scales.reciprocal(), out=room)
    codes.copy_(room.round_())


def _blocks(
    values: torch.Tensor, payload: ByteArray, *others: torch.Tensor
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield values, codes, scales and others, first all whole blocks, then the rest."""
    at = payload.nbytes - values.numel()  # a byte for each value
    scales = tensor_over(payload[:at], wide(values.dtype)).view(-1, 1)
    flat = [values, tensor_over(payload[at:], torch.int8), *others]
    blocks, rest = divmod(values.numel(), BLOCK_VALUES)
    whole = values.numel() - rest
    if blocks:
        rows, codes, *more = (tensor[:whole].view(blocks, -1) for tensor in flat)
        yield rows, codes, scales[:blocks], *more
    if rest:
        rows, codes, *more = (tensor[whole:].view(1, -1) for tensor in flat)
        yield rows, codes, scales[blocks:], *more
