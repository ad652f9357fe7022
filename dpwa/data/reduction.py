"""Reductions: the elementwise sum, mean, maximum or minimum of several byte arrays.

The arrays are combined in their order, so equal arrays give equal results. They are processed in
tiles. A tile of the target stays in the cache while the same tile of each array is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.errors import ParametersError, UserError

OPS = ("sum", "mean", "max", "min")
TILE_BYTES = 256 * 1024

Floats = npt.NDArray[np.float32]

_UFUNCS = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}
_NARROW_ITEM_BYTES = {  # bytes of a value, for floats that are too narrow to compute sums in
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
}
_WITHOUT = {  # for each operation, the dtype kinds of numpy that do not have it, and a remedy
    "sum": {"b": "Use max or min"},
    "mean": {"b": "Use max or min", "i": "Use sum", "u": "Use sum"},
    "max": {"c": "Complex numbers have no order"},
    "min": {"c": "Complex numbers have no order"},
}


def check_reducible(layout: Layout, op: str) -> None:
    """Check that an operation can reduce all tensors of a layout.

    Raises `UserError` if the operation is unknown, and `ParametersError` if a dtype does not have
    the operation. Integers have no mean, bool has no sum and no mean, complex numbers have no
    maximum and no minimum, and bytes have no operation.
    """
    if op not in OPS:
        raise UserError(f"op must be one of {', '.join(OPS)}, not {op!r} [DPWA-E153]")
    for tensor in layout.tensors:
        reason = _why_not(tensor.dtype, op)
        if reason:
            raise ParametersError(f"cannot compute the {op} of {tensor}. {reason} [DPWA-E127]")


def reduce_into(
    target: ByteArray,
    others: Sequence[ByteArray],
    dtype: str,
    op: str,
    *,
    by: int = 1,
    is_last: bool = False,
) -> None:
    """Set target = op(target, *others) / by, element by element, in the given order.

    "mean" computes the sum, and `by` divides it. Floats narrower than float32 are computed in
    float32 and rounded once, at the end. Integers wrap around. The maximum or minimum of NaN and a
    number is NaN. The arrays must be contiguous bytes without overlap. The reduction is slow if an
    array is not aligned to the dtype. `is_last` means that the target comes after the other array,
    of which there must be one. The order changes the bits of NaN and of zero.
    """
    if any(other.nbytes != target.nbytes for other in others):
        raise ValueError(
            f"expected {target.nbytes} bytes (got {[other.nbytes for other in others]})"
        )
    reduce = _reduce_narrow if dtype in _NARROW_ITEM_BYTES else _reduce_plain
    ufunc = _UFUNCS[op]
    with np.errstate(all="ignore"):
        reduce(target, others, dtype, _swapped(ufunc) if is_last else ufunc, by)


def combine(
    target: ByteArray, values: Sequence[ByteArray], dtype: str, op: str, *, by: int = 1
) -> None:
    """Set target = op(*values) / by. Unlike `reduce_into`, ignore the target's old values."""
    if len(values) == 1 or dtype in _NARROW_ITEM_BYTES:
        target[:] = values[0]
        reduce_into(target, values[1:], dtype, op, by=by)
        return
    first, second, ufunc = values[0].view(dtype), values[1].view(dtype), _UFUNCS[op]
    with np.errstate(all="ignore"):
        ufunc(first, second, out=target.view(dtype))
    reduce_into(target, values[2:], dtype, op, by=by)


@cache
def _why_not(dtype: str, op: str) -> str | None:
    if dtype in _NARROW_ITEM_BYTES:
        return None
    try:
        kind: str = np.dtype(dtype).kind
    except TypeError:
        kind = "V"
    if kind not in tuple("biufc"):
        return "No reduction supports this dtype"
    return _WITHOUT[op].get(kind)


def _swapped(ufunc: Callable[..., Any]) -> Callable[..., Any]:
    return lambda target, other, out: ufunc(other, target, out=out)


def _reduce_plain(
    target: ByteArray, others: Sequence[ByteArray], dtype: str, ufunc: Callable[..., Any], by: int
) -> None:
    mine, theirs = target.view(dtype), [other.view(dtype) for other in others]
    for tile in _tiles(mine.size, TILE_BYTES // mine.itemsize):
        result = mine[tile]
        for other in theirs:
            ufunc(result, other[tile], out=result)
        if by > 1:
            _divide(result.view(result.real.dtype), by)  # a complex number becomes two floats


def _reduce_narrow(
    target: ByteArray, others: Sequence[ByteArray], dtype: str, ufunc: Callable[..., Any], by: int
) -> None:
    for tile, wide, room in _wide_tiles(target, dtype):
        for other in others:
            _convert(other[tile], dtype, _bytes_of(room), "float32")
            ufunc(wide, room, out=wide)
        if by > 1:
            _divide(wide, by)
        _convert(_bytes_of(wide), "float32", target[tile], dtype)


def _divide(values: npt.NDArray[np.floating[Any]], by: int) -> None:
    if by & (by - 1) == 0:  # the inverse of a power of 2 is exact, and multiplying is much faster
        np.multiply(values, 1 / by, out=values)
    else:
        np.divide(values, by, out=values)


def _wide_tiles(target: ByteArray, dtype: str) -> Iterator[tuple[slice, Floats, Floats]]:
    """Yield each tile's range of bytes, its values in float32, and a buffer of the same shape."""
    item_bytes = _NARROW_ITEM_BYTES[dtype]
    rooms = np.empty((2, TILE_BYTES // 4), np.float32)
    for tile in _tiles(target.nbytes, rooms.shape[1] * item_bytes):
        wide, room = rooms[:, : (tile.stop - tile.start) // item_bytes]
        _convert(target[tile], dtype, _bytes_of(wide), "float32")
        yield tile, wide, room


def _tiles(size: int, tile_size: int) -> Iterator[slice]:
    for start in range(0, size, tile_size):
        yield slice(start, min(start + tile_size, size))


def _convert(source: ByteArray, dtype: str, target: ByteArray, target_dtype: str) -> None:
    from dpwa.data.kernels import convert  # imports torch

    convert(source, dtype, target, target_dtype)


def _bytes_of(values: Floats) -> ByteArray:
    return values.view(np.uint8)
