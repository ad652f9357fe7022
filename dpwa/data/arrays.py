"""Arrays and bytes that users publish: their layout, their bytes, and what they get back."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dpwa.data.layout import BYTES, Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.errors import ParametersError

NumericArray = npt.NDArray[Any]


def array_layout(array: NumericArray) -> Layout:
    """Return the layout of an array of any shape; `ParametersError` if it is
    empty or no numbers.
    """
    return _layout_of(array.dtype, array.shape)


@lru_cache(maxsize=64)  # it then knows its size, digest and pieces: a sixth of a small round
def _layout_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Layout:
    if dtype.kind not in "biufc":
        raise ParametersError(f"parameters must be numeric, not an array of {dtype} [DPWA-E112]")
    if 0 in shape:
        raise ParametersError(
            f"parameters must not be empty: an array of shape {shape} [DPWA-E112]"
        )
    name = dtype.name if dtype.isnative else dtype.str
    return Layout((TensorSpec("parameters", name, shape, dtype.itemsize),))


def byte_array(parameters: bytes | bytearray | memoryview) -> ByteArray:
    """Return bytes as an array, copied only if not in one piece; `ParametersError` if empty or
    none.
    """
    try:
        view = memoryview(parameters)
    except TypeError:
        raise ParametersError(
            f"parameters must be bytes-like or a numpy array, not {type(parameters).__name__}"
            " [DPWA-E112]"
        ) from None
    if view.nbytes == 0:
        raise ParametersError("parameters must not be empty: no bytes [DPWA-E112]")
    return np.frombuffer(view if view.contiguous else view.tobytes(), np.uint8)


def is_finite(data: ByteArray, dtype: str, start: int = 0) -> bool:  # noqa: ARG001
    if dtype == BYTES or np.dtype(dtype).kind not in "fc":
        return True
    values = data.view(np.dtype(dtype))
    with np.errstate(all="ignore"):
        if values.dtype.char in "fd":
            total = np.dot(values, values)  # in a third of the time of a sum
        else:
            total = values.sum(dtype=np.promote_types(values.dtype, np.float32))
        # It may overflow where no value does.
        return bool(np.isfinite(total)) or bool(np.isfinite(values).all())


def as_published(layout: Layout, data: ByteArray) -> bytes | NumericArray:
    """Return a snapshot as its user has published it: bytes, or an array of dtype and shape."""
    spec = layout.tensors[0]
    if layout.is_bytes:
        return data.tobytes()
    array: NumericArray = data.view(np.dtype(spec.dtype)).reshape(spec.shape)
    return array
