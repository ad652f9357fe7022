"""Nested values that collectives reduce: the same form on all nodes, numbers drawn for each."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from dpwa.collectives.entries import INLINE_BYTES
from dpwa.collectives.exchange import LEAST_PIECE_BYTES

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int32", "int64", "uint8")
TENSORS = ("float32", "float64", "bfloat16")
SIZES = (0, 1, 7, 1000, INLINE_BYTES // 4 - 1, INLINE_BYTES // 4, INLINE_BYTES // 4 + 1)
LARGE_SIZES = (*SIZES, LEAST_PIECE_BYTES // 4 + 1, 100_003)


@dataclass(frozen=True)
class Leaf:
    """What a leaf is on all nodes: an array, a tensor or a number."""

    kind: str
    dtype: str
    shape: tuple = ()
    is_contiguous: bool = True

    def make(self, rng):
        if self.kind == "number":
            return float(rng.normal()) if self.dtype == "float64" else int(rng.integers(-99, 99))
        shape = self.shape if self.is_contiguous else (*self.shape, 2)
        values = self._values(rng, shape)
        if self.kind == "tensor":
            values = torch.from_numpy(values).to(getattr(torch, self.dtype))
        return values if self.is_contiguous else values[..., 1]

    def _values(self, rng, shape):
        if self.dtype == "bool":
            return np.asarray(rng.integers(0, 2, shape)).astype(bool)
        if self.dtype in INTEGERS:
            return np.asarray(rng.integers(0, 30, shape)).astype(self.dtype)
        dtype = "float32" if self.dtype == "bfloat16" else self.dtype
        return np.asarray(rng.normal(0, 10, shape)).astype(dtype)


def leaves(dtypes, sizes=SIZES):
    shapes = st.one_of(
        st.just(()), st.sampled_from(sizes).map(lambda size: (size,)), st.just((3, 1, 5))
    )
    kinds = [st.builds(Leaf, st.just("array"), st.sampled_from(dtypes), shapes, st.booleans())]
    tensors = [dtype for dtype in TENSORS if dtype == "bfloat16" or dtype in dtypes]
    if tensors and "float32" in dtypes:
        kinds += [st.builds(Leaf, st.just("tensor"), st.sampled_from(tensors), shapes)]
    numbers = [dtype for dtype in ("float64", "int64") if dtype in dtypes]
    if numbers:
        kinds += [st.builds(Leaf, st.just("number"), st.sampled_from(numbers))]
    return st.one_of(kinds)


def forms(dtypes, sizes=SIZES):
    return st.recursive(
        leaves(dtypes, sizes),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from("abcxyz"), inner, max_size=4),
        ),
        max_leaves=12,
    )


def made(form, rng):
    if isinstance(form, dict):
        values = {key: made(form[key], rng) for key in sorted(form)}
        return {key: values[key] for key in rng.permutation(sorted(form)).tolist()}
    if isinstance(form, list | tuple):
        return type(form)(made(item, rng) for item in form)
    return form.make(rng)


def flat(value):
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in flat(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat(item)]
    if isinstance(value, torch.Tensor):
        return [value.to(torch.float64).numpy().copy()]
    return [np.array(value)]


def shape_of(value):
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(shape_of, value))
    return type(value)


def epsilons(form):
    """Return the spacing of numbers at 1 for each leaf; 0 where they are exact."""
    if isinstance(form, dict):
        return [each for key in sorted(form) for each in epsilons(form[key])]
    if isinstance(form, list | tuple):
        return [each for item in form for each in epsilons(item)]
    if form.dtype == "bfloat16":
        return [2.0**-7]
    return [float(np.finfo(form.dtype).eps) if form.dtype in FLOATS else 0.0]


def reference(op, values):
    """Reduce arrays, one of each node, in float64 (integers and bool exactly)."""
    stacked = np.stack([v.astype(np.float64) if v.dtype.kind == "f" else v for v in values])
    return getattr(stacked, op)(axis=0)
