"""Layouts of the arrays and bytes that a node publishes, and a model that is a single array."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dpwa.data.layout import BYTES, Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import FinishedCopy, MergeTerms
from dpwa.errors import ParametersError

NumericArray = npt.NDArray[Any]


def array_layout(array: NumericArray) -> Layout:
    """Return the layout of an array. `ParametersError`: the array is empty or not numeric."""
    return _layout_of(array.dtype, array.shape)


@lru_cache(maxsize=64)  # because computing a layout takes a sixth of a small round
def _layout_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Layout:
    if dtype.kind not in "biufc":
        raise ParametersError(f"parameters must be numeric, not an array of {dtype} [DPWA-E112]")
    if 0 in shape:
        raise ParametersError(
            f"parameters must not be empty, but the array has shape {shape} [DPWA-E112]"
        )
    name = dtype.name if dtype.isnative else dtype.str
    return Layout((TensorSpec("parameters", name, shape, dtype.itemsize),))


def byte_array(parameters: bytes | bytearray | memoryview) -> ByteArray:
    """Return a byte array over bytes-like parameters. Non-contiguous parameters are copied.

    Raise `ParametersError` if there are no bytes, or if the type is not bytes-like.
    """
    try:
        view = memoryview(parameters)
    except TypeError:
        raise ParametersError(
            f"parameters must be bytes-like or a numpy array, not {type(parameters).__name__}"
            " [DPWA-E112]"
        ) from None
    if view.nbytes == 0:
        raise ParametersError("parameters must not be empty, but there are 0 bytes [DPWA-E112]")
    return np.frombuffer(view if view.contiguous else view.tobytes(), np.uint8)


def is_finite(data: ByteArray, dtype: str, start: int = 0) -> bool:  # noqa: ARG001
    if dtype == BYTES or np.dtype(dtype).kind not in "fc":
        return True
    values = data.view(np.dtype(dtype))
    with np.errstate(all="ignore"):
        if values.dtype.char in "fd":
            total = np.dot(values, values)  # this takes a third of the time of a sum
        else:
            total = values.sum(dtype=np.promote_types(values.dtype, np.float32))
        # The total may overflow even if all values are finite.
        return bool(np.isfinite(total)) or bool(np.isfinite(values).all())


def as_published(layout: Layout, data: ByteArray) -> bytes | NumericArray:
    """Return a snapshot as bytes, or as an array if the peer published an array."""
    spec = layout.tensors[0]
    if layout.is_bytes:
        return data.tobytes()
    array: NumericArray = data.view(np.dtype(spec.dtype)).reshape(spec.shape)
    return array


class ArrayValues:
    """The parameters of one array, as the `dpwa.algorithms.Values` that algorithms change."""

    def __init__(self, array: NumericArray) -> None:
        self.array = array

    def clone(self) -> ArrayValues:
        return ArrayValues(self.array.copy())

    def copy_(self, other: ArrayValues) -> None:
        self.array[...] = other.array

    def lerp_(self, other: ArrayValues, weight: float) -> None:
        self.array += weight * (other.array - self.array)

    def add_(self, other: ArrayValues, alpha: float = 1.0) -> None:
        self.array += alpha * other.array

    def mul_(self, factor: float) -> None:
        """Set self = factor * self. A factor of 0 clears even values that are not finite."""
        self.array[...] = factor * self.array if factor else 0.0


class ArrayModel:
    """`dpwa.node.trainer.Model` for an array of shape (D,). Snapshots have the layout's dtype.

    The array should have a wider dtype than float16. If the mean of several peers is computed in
    float16, each change of less than half a unit is lost.
    """

    def __init__(self, array: NumericArray, layout: Layout) -> None:
        self.array = array
        self.layout = layout
        self._spec = layout.tensors[0]
        self._dtype = np.dtype(self._spec.dtype)
        self._values = ArrayValues(array)

    def values(self) -> ArrayValues:
        return self._values

    def image(self) -> NumericArray:
        """Return the array with the dtype of snapshots."""
        image = np.empty(self._spec.shape, self._dtype)
        self._fill(image.reshape(-1), self.array)
        return image

    def start_copy(self, data: ByteArray, check_finite: bool, values: ArrayValues) -> FinishedCopy:
        self._fill(data.view(self._dtype), values.array)
        own = data[: self.array.size * self._spec.item_bytes]
        return FinishedCopy(is_finite(own, self._spec.dtype) if check_finite else None)

    def _fill(self, room: NumericArray, array: NumericArray) -> None:
        with np.errstate(over="ignore"):  # a value that is too large becomes infinite
            np.copyto(room, array, casting="same_kind")

    def merge(self, start: int, data: ByteArray, terms: MergeTerms) -> float:
        factor, rest = terms.factor, 1.0 - terms.delta
        own, step = self._step(data, start, terms.published)
        if factor:  # 0 times an infinite value would be NaN
            if terms.published is not None and rest:
                own += factor * rest * self._step(data, start, None)[1]
                factor *= terms.delta
            own += factor * step
        return float(np.linalg.norm(step))

    def distance(self, data: ByteArray, start: int, base: ByteArray | None) -> float:
        return float(np.linalg.norm(self._step(data, start, base)[1]))

    def _step(
        self, data: ByteArray, start: int, base: ByteArray | None
    ) -> tuple[NumericArray, NumericArray]:
        """Return this model's values at a peer's byte range, and the peer's values minus `base`.

        If `base` is `None`, this model's values are subtracted instead.
        """
        first = start // self._spec.item_bytes
        theirs = data.view(self._dtype)[: max(0, self.array.size - first)]
        there = slice(first, first + theirs.size)
        origin = self.array if base is None else base.view(self._dtype)
        return self.array[there], np.subtract(theirs, origin[there], dtype=self.array.dtype)

    def norm(self) -> float:
        return float(np.linalg.norm(self.array))

    def view_of(self, data: ByteArray) -> ArrayValues:
        theirs = data.view(self._dtype)[: self.array.size]
        return ArrayValues(theirs.astype(self.array.dtype))

    def values_of(self, data: ByteArray, into: object) -> tuple[ArrayValues, float]:
        values = self.view_of(data)
        if isinstance(into, ArrayValues):
            into.copy_(values)
            values = into
        return values, float(np.linalg.norm(values.array - self.array))

    def buffers_shard(self) -> None:
        return None

    def begin_mean(self) -> None:
        """Round the array to the published values, because peers hold the rounded values."""
        self.array[...] = self.image().reshape(-1)
