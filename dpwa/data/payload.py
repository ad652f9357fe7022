"""Payload: a nested value of tensors, arrays and numbers, as one flat image of bytes.

This module never imports torch, because a caller that passes a tensor has imported torch already.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import sys
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.errors import ParametersError

BARE = "value"  # the name of a leaf that is the whole value

_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_NUMERIC_KINDS = "biufc"


class Payload:
    """A nested value of tensors, arrays and numbers, as one flat image of bytes.

    Containers are dicts (read in the sorted order of their keys, all str or all int), lists and
    tuples. A leaf is a tensor, an array or a number. The image has each leaf's elements row by row,
    in native byte order. Larger elements come first, so that there are no gaps. A leaf is named by
    its path, such as `['weights'][0]`. Two layouts are equal if and only if the paths, dtypes and
    shapes of the leaves are equal. Types of containers, strides and devices do not matter. Nor does
    the kind of leaf.

    The value is read in place. Nothing is written to the user's memory before the first `assign`.
    Containers are never changed. A leaf that is not contiguous, not in native byte order, or not on
    the CPU is copied once, when its bytes are first needed. Only `result` writes this copy back.
    Leaves may share memory, so read the whole image before the first `assign`.

    Threads: only one thread at a time may use a payload. Tensors on a device are copied in the
    current stream of this thread.

    Raises `ParametersError` if a leaf is none of these, if an int does not fit int64, or if a dict
    has other keys.
    """

    def __init__(self, value: object) -> None:
        self._value = value
        self._walked: list[_Leaf] = []
        try:
            _walk(value, "", self._walked)
        except RecursionError:
            raise ParametersError(
                "value is nested too deeply, or contains itself [DPWA-E126]"
            ) from None
        self._leaves = sorted(self._walked, key=lambda leaf: -leaf.spec.item_bytes)  # a stable sort
        self.layout = Layout(tuple(leaf.spec for leaf in self._leaves))
        self.nbytes = self.layout.nbytes or 0
        self._ends = [
            start + leaf.spec.nbytes
            for start, leaf in zip(self.layout.offsets, self._leaves, strict=True)
        ]

    def copy_into(self, start: int, stop: int, target: ByteArray) -> None:
        """Copy the image's bytes from `start` to `stop` to `target`, shape `(stop - start,)`."""
        for leaf, begin, end, at in self._parts(start, stop, target.nbytes):
            target[at : at + end - begin] = leaf.read_bytes()[begin:end]

    def view(self, start: int, stop: int) -> ByteArray | None:
        """Return a read-only view of bytes `start` to `stop`, if a single leaf holds all of them.

        Return `None` otherwise. The view is valid as long as the leaf's memory. Values that are
        assigned later appear in the view.
        """
        for leaf, begin, end, _ in self._parts(start, stop, stop - start):
            if end - begin < stop - start:
                return None
            part = leaf.read_bytes()[begin:end]
            part.flags.writeable = False
            return part
        return np.empty(0, np.uint8)

    def place(self, start: int, stop: int) -> ByteArray | None:
        """Return a writable view of the bytes from `start` to `stop`.

        Return `None` if one leaf does not hold them all, or if leaves share memory.
        """
        if self._are_tied:
            return None
        for leaf, begin, end, _ in self._parts(start, stop, stop - start):
            return leaf.write()[begin:end] if end - begin == stop - start else None
        return np.empty(0, np.uint8)

    @cached_property
    def _are_tied(self) -> bool:
        spans = sorted(leaf.span for leaf in self._leaves)
        return any(one[1] > two[0] for one, two in itertools.pairwise(spans))

    def assign(self, start: int, stop: int, source: ByteArray) -> None:
        """Set bytes of the image in place. Leaves that were copied get these values in `result`."""
        for leaf, begin, end, at in self._parts(start, stop, source.nbytes):
            leaf.write()[begin:end] = source[at : at + end - begin]

    def result(self) -> object:
        """Return the nested value with all assigned values.

        Tensors and arrays are the user's own objects. Numbers and read-only arrays are new objects.
        Only the containers of new objects are new.
        """
        return _rebuilt(self._value, iter(self._walked))

    def _parts(self, start: int, stop: int, nbytes: int) -> Iterator[tuple[_Leaf, int, int, int]]:
        """Yield leaves in a byte range, each with start and stop in it, and offset in the range."""
        if not 0 <= start <= stop <= self.nbytes or nbytes != stop - start:
            raise ValueError(
                f"expected the bytes {start} to {stop} of {self.nbytes} (got {nbytes} bytes)"
            )
        index, at = bisect.bisect_right(self._ends, start), start
        while at < stop:
            begin, end = self.layout.offsets[index], min(stop, self._ends[index])
            if at < end:
                yield self._leaves[index], at - begin, end - begin, at - start
            index, at = index + 1, end


class _Leaf:
    def __init__(self, value: Any, spec: TensorSpec, data: ByteArray) -> None:
        self.value, self.spec = value, spec
        self._data = data

    @property
    def span(self) -> tuple[int, int]:
        """The start address of the leaf's memory, and the address after the last byte."""
        data = self.read_bytes()
        start = int(data.__array_interface__["data"][0])
        return start, start + data.nbytes

    def read_bytes(self) -> ByteArray:
        return self._data

    def write(self) -> ByteArray:
        return self._data

    def finish(self) -> object:
        """Return the object with the assigned values."""
        return self.value


class _Replaced(_Leaf):
    """A number or a read-only array, for which `Payload.result` makes a new object."""

    def __init__(self, value: Any, spec: TensorSpec, fresh: npt.NDArray[Any]) -> None:
        super().__init__(value, spec, _array_bytes(fresh))
        self._fresh = fresh

    def finish(self) -> object:
        if isinstance(self.value, np.ndarray):
            return self._fresh
        return self._fresh[()] if isinstance(self.value, np.generic) else self._fresh.item()


class _StagedArray(_Leaf):
    """A leaf with a copy of an array that is not contiguous or not in native byte order."""

    def __init__(self, value: Any, spec: TensorSpec) -> None:
        super().__init__(value, spec, np.empty(0, np.uint8))
        self._copy: Any = None
        self._is_changed = False

    def read_bytes(self) -> ByteArray:
        if self._copy is None:
            self._stage()
        return self._data

    def write(self) -> ByteArray:
        self._is_changed = True
        return self.read_bytes()

    def finish(self) -> object:
        """Copy changed values back into the user's object, and return this object."""
        if self._is_changed:
            self._write_back()
        return self.value

    def _stage(self) -> None:
        self._copy = _native_copy(self.value)
        self._data = _array_bytes(self._copy)

    def _write_back(self) -> None:
        np.copyto(self.value, self._copy)


class _StagedTensor(_StagedArray):
    """A leaf with a contiguous CPU copy of a tensor that is on a device or has other strides."""

    def _stage(self) -> None:
        tensor = self.value
        empty = partial(sys.modules["torch"].empty, tensor.shape, dtype=tensor.dtype)
        self._copy = empty(pin_memory=tensor.is_cuda).copy_(tensor.detach())
        self._data = _tensor_bytes(self._copy)

    def _write_back(self) -> None:
        self.value.detach().copy_(self._copy)


def _walk(value: object, path: str, leaves: list[_Leaf]) -> None:
    if isinstance(value, dict):
        for key in _sorted_keys(value, path):
            _walk(value[key], f"{path}[{key!r}]", leaves)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _walk(item, f"{path}[{index}]", leaves)
    else:
        leaves.append(_leaf(value, path))


def _sorted_keys(value: dict[Any, Any], path: str) -> list[Any]:
    for kind in (str, int):
        if all(isinstance(key, kind) for key in value):
            return sorted(value)
    kinds = ", ".join(sorted({type(key).__name__ for key in value}))
    raise ParametersError(
        f"{BARE}{path} must have keys that are all str or all int, not {kinds} [DPWA-E125]"
    )


def _rebuilt(value: Any, leaves: Iterator[_Leaf]) -> Any:
    """Return `value` with each leaf's result, and with new containers around replaced leaves."""
    if isinstance(value, dict):
        items = {key: _rebuilt(value[key], leaves) for key in _sorted_keys(value, "")}
        if all(items[key] is value[key] for key in items):
            return value
        changed = copy.copy(value)  # keeps the class of the dict and the order of its keys
        changed.update(items)
        return changed
    if isinstance(value, list | tuple):
        parts = [_rebuilt(item, leaves) for item in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return getattr(value, "_make", type(value))(parts)  # `_make` is for namedtuples
    return next(leaves).finish()


def _leaf(value: Any, path: str) -> _Leaf:
    name = path or BARE
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor_type is not None and isinstance(value, tensor_type):
        return _tensor_leaf(value, name)
    if isinstance(value, np.ndarray | np.generic):
        return _array_leaf(value, name)
    for kind, dtype in _NUMBERS.items():
        if isinstance(value, kind):
            return _number_leaf(value, name, dtype)
    raise ParametersError(
        f"{_place(name)} must be a tensor, an array or a number, or a dict, list or tuple of them, "
        f"not {type(value).__name__} [DPWA-E124]"
    )


def _number_leaf(value: Any, name: str, dtype: str) -> _Leaf:
    try:
        array = np.array(value, dtype)
    except OverflowError:
        raise ParametersError(
            f"{_place(name)} must fit into int64 (got {value.bit_length()} bits) [DPWA-E124]"
        ) from None
    return _Replaced(value, TensorSpec(name, dtype, (), array.itemsize), array)


def _array_leaf(value: Any, name: str) -> _Leaf:
    if value.dtype.kind not in _NUMERIC_KINDS:
        raise ParametersError(
            f"{_place(name)} must be numeric, not an array of {value.dtype} [DPWA-E124]"
        )
    spec = TensorSpec(name, value.dtype.name, value.shape, value.itemsize)
    if not value.flags.writeable:
        return _Replaced(value, spec, _native_copy(value))
    if value.flags.c_contiguous and value.dtype.isnative:
        return _Leaf(value, spec, _array_bytes(value))
    return _StagedArray(value, spec)


def _tensor_leaf(tensor: Any, name: str) -> _Leaf:
    _check_tensor(tensor, name)
    dtype = str(tensor.dtype).removeprefix("torch.")
    spec = TensorSpec(name, dtype, tuple(tensor.shape), tensor.element_size())
    is_lazy = tensor.is_conj() or tensor.is_neg()  # the memory has the values before conj or neg
    if tensor.is_cpu and tensor.is_contiguous() and not is_lazy:
        return _Leaf(tensor, spec, _tensor_bytes(tensor))
    return _StagedTensor(tensor, spec)


def _check_tensor(tensor: Any, name: str) -> None:
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ParametersError(
            f"{_place(name)} must be a dense tensor, not a sparse or nested tensor [DPWA-E124]"
        )
    if tensor.is_quantized or tensor.is_meta:
        raise ParametersError(
            f"{_place(name)} must be a plain tensor, not a quantized or meta tensor [DPWA-E124]"
        )
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ParametersError(
            f"{_place(name)} must be a plain tensor, not a tensor of the subclass "
            f"{type(tensor).__name__} [DPWA-E124]"
        )
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    if not tensor.is_contiguous() and any(size > 1 and not stride for size, stride in strides):
        raise ParametersError(
            f"{_place(name)} must not be an expanded tensor, whose elements share memory. Call "
            "contiguous() first [DPWA-E124]"
        )


def _place(name: str) -> str:
    return name if name == BARE else f"{BARE}{name}"


def _native_copy(array: Any) -> npt.NDArray[Any]:
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def _array_bytes(array: Any) -> ByteArray:
    data: ByteArray = np.asarray(array).reshape(-1).view(np.uint8)
    return data


def _tensor_bytes(tensor: Any) -> ByteArray:
    # If a tensor has at most one element, any stride is contiguous, but `view` refuses some.
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    data: ByteArray = flat.view(sys.modules["torch"].uint8).numpy()
    return data
