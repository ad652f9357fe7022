"""The codec `int8`: 8-bit integers, with a scale for each block of values."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dpwa.data.codecs.base import Codec
from dpwa.data.codecs.sizes import BLOCK_VALUES, exactly, payload_bytes
from dpwa.data.codecs.tensor_views import FLOATS, PayloadMemory, Scratch, tensor_over, wide
from dpwa.data.segments import ByteArray
from dpwa.types import Frame

# Blocks have 256 values. With 128 values, the error would be 7 % smaller, but float32 would shrink
# by a factor of 3.88 instead of 3.94.
LARGEST_CODE = 127
# A little less than 1/127, so that rounding cannot make 127 * scale overflow.
SCALE_OF_LARGEST = (1.0 - 2.0**-20) / LARGEST_CODE


class Int8(Codec):
    """Rounds each value to one of 255 multiples of the block's scale, which is absmax / 127.

    A block has 256 values and one scale s, and absmax is the largest magnitude in the block:

        code = round(x / s)     decoded = code * s     |decoded - x| <= s / 2 = absmax / 254

    The rounding errors of the floats themselves are added to this bound. A scale is at least the
    smallest normal number. So if all magnitudes in a block are less than 127 times this number
    (1.5e-36 in float32), the error is at most half of this number. A value halfway between two
    codes gets the even code. Equal pieces give equal payloads. In a block with a NaN or an
    infinity, every value decodes to NaN or an infinity, because the scale is not finite.

    A payload has all scales first, then one byte for each value. Scales are float32, or float64 if
    the values are float64. 16-bit floats are scaled in float32, and rounded a second time when
    they are decoded. Other dtypes are left unchanged.
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
    """Compute `scales` (rows, 1) and 8-bit `codes` (rows, values). `room` is scratch memory."""
    values = rows if rows.dtype == room.dtype else room.copy_(rows)
    torch.maximum(values.amax(1, keepdim=True), -values.amin(1, keepdim=True), out=scales)
    scales.mul_(SCALE_OF_LARGEST).clamp_(min=torch.finfo(scales.dtype).tiny)
    torch.mul(values, scales.reciprocal(), out=room)
    codes.copy_(room.round_())


def _blocks(
    values: torch.Tensor, payload: ByteArray, *others: torch.Tensor
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the values, codes, scales and `others` of all full blocks, then of a partial block."""
    at = payload.nbytes - values.numel()  # because each value has a code of one byte
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
