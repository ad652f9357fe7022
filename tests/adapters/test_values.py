"""Values over tensors: the laws of their arithmetic, and whose memory they work on."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_module_state import strided
from torch import nn

from dpwa.adapters import tensor_values as values_module
from dpwa.adapters.tensor_values import TensorValues
from dpwa.algorithms import Values
from dpwa.data import kernels

TILE_BYTES = 64  # small tensors span several blocks
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
]

described = st.lists(
    st.tuples(
        st.lists(st.integers(0, 6), max_size=4).map(tuple),
        st.sampled_from(DTYPES),
        *[st.permutations(range(4))] * 2,
    ),
    max_size=6,
)
weights = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-2.0, 2.0))
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(values_module, "TILE_BYTES", TILE_BYTES)


def random(shape, dtype, generator):
    drawn = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=drawn, generator=generator).to(dtype)


def two_of(described, seed):
    """Two values of equal shapes, in strides of their own."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        TensorValues(
            [
                strided(random(shape, dtype, generator), orders[which])
                for shape, dtype, *orders in described
            ]
        )
        for which in range(2)
    )


def exact(values):
    """Copies of all elements, in numpy's float64 or complex128."""
    return [
        tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).numpy().copy()
        for tensor in values.tensors
    ]


def bits(values):
    return [tensor.contiguous().view(-1).view(torch.uint8).tolist() for tensor in values.tensors]


def assert_equal(values, expected, scales):
    """Every element is as expected, up to four roundings of what it was computed from."""
    for tensor, got, want, scale in zip(
        values.tensors, exact(values), expected, scales, strict=True
    ):
        info = torch.finfo(tensor.dtype)
        assert (np.abs(got - want) <= 4 * info.eps * scale + info.tiny).all()


@given(described, weights, seeds)
def test_lerp_add_and_mul_match_their_formulas(described, weight, seed):
    operations = {
        "lerp": (lambda v, o: v.lerp_(o, weight), lambda x, y: x + weight * (y - x)),
        "add": (lambda v, o: v.add_(o, weight), lambda x, y: x + weight * y),
        "mul": (lambda v, o: v.mul_(weight), lambda x, y: weight * x),
        "copy": (lambda v, o: v.copy_(o), lambda x, y: y),
    }
    for operate, formula in operations.values():
        own, other = two_of(described, seed)
        places = [tensor.data_ptr() for tensor in own.tensors]
        x, y, before = exact(own), exact(other), bits(other)
        operate(own, other)
        scales = [
            np.abs(a) + (1 + abs(weight)) * (np.abs(a) + np.abs(b))
            for a, b in zip(x, y, strict=True)
        ]
        assert_equal(own, [formula(a, b) for a, b in zip(x, y, strict=True)], scales)
        assert bits(other) == before
        assert [tensor.data_ptr() for tensor in own.tensors] == places


@given(described, seeds)
def test_the_distance_is_that_of_all_elements_together(described, seed):
    own, other = two_of(described, seed)
    squared = sum(
        float((np.abs(a - b) ** 2).sum()) for a, b in zip(exact(own), exact(other), strict=True)
    )
    assert own.distance(other) == pytest.approx(math.sqrt(squared), rel=1e-5, abs=1e-9)
    assert other.distance(own) == own.distance(other)
    assert own.distance(own) == 0.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_makes_the_distance_so_and_can_be_overwritten(dtype, value):
    if dtype is torch.float8_e4m3fn:
        value = math.nan  # it has no infinity
    own, other = two_of([((3, 5), dtype, range(4), range(4))], seed=1)
    own.tensors[0][1, 2] = value
    broken = bits(own)
    assert not math.isfinite(own.distance(other))
    other.lerp_(own, 0.0)
    other.add_(own, 0.0)
    own.mul_(1.0)
    assert bits(own) == broken
    assert np.isfinite(exact(other)).all()
    own.lerp_(other, 1.0)
    assert bits(own) == bits(other)
    own.tensors[0][1, 2] = value
    own.mul_(0.0)
    assert not np.any(exact(own))


def test_a_distance_that_overflows_is_infinite_and_one_of_float16_does_not():
    huge = TensorValues([torch.full((2,), 1e200, dtype=torch.float64)])
    zero = huge.clone()
    zero.mul_(0.0)
    assert huge.distance(zero) == math.inf
    one, two = (TensorValues([torch.full((4,), x, dtype=torch.float16)]) for x in (6e4, -6e4))
    assert one.distance(two) == pytest.approx(2 * 120_000, rel=1e-3)


@given(described, seeds)
def test_a_clone_has_the_same_values_and_strides_in_memory_of_its_own(described, seed):
    own, _ = two_of(described, seed)
    copy = own.clone()
    assert bits(copy) == bits(own)
    assert [t.stride() for t in copy.tensors] == [t.stride() for t in own.tensors]
    before = bits(own)
    copy.mul_(0.0)
    assert bits(own) == before


def test_what_is_changed_are_the_parameters_themselves_and_autograd_notices():
    net = nn.Linear(3, 3)
    values = TensorValues(list(net.parameters()))
    loss = (net.weight * net.weight).sum()
    values.mul_(0.0)
    assert not bool(net.weight.any())
    assert net.weight.is_leaf
    assert net.weight.requires_grad
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    net(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    assert bool((net.weight == -1.0).all())


def test_copies_made_under_inference_mode_can_be_used_outside_of_it():
    net = nn.Linear(2, 2)
    with torch.inference_mode():
        values = TensorValues(list(net.parameters()))
        copy = values.clone()
        values.lerp_(copy, 0.5)
    copy.add_(values, 0.5)
    copy.tensors[0].mul_(2.0)  # as an algorithm of a user may
    values.copy_(copy)
    assert torch.equal(net.weight, copy.tensors[0])
    (net.weight * copy.tensors[0]).sum().backward()
    assert torch.equal(net.weight.grad, copy.tensors[0])


def test_arithmetic_in_a_wider_dtype_goes_by_blocks(monkeypatch):
    sizes, wide = [], kernels._wide
    monkeypatch.setattr(kernels, "ROUNDED_ELEMENTS", TILE_BYTES)
    monkeypatch.setattr(kernels, "_wide", lambda t: sizes.append(t.numel()) or wide(t))
    own, other = two_of([((40, 30), torch.float8_e5m2, (1, 0, 2, 3), range(4))], seed=1)
    own.lerp_(other, 0.5)
    own.add_(other, 0.5)
    own.mul_(0.5)
    own.distance(other)
    assert max(sizes) <= TILE_BYTES
    assert sum(sizes) == 7 * 1200


def test_values_of_another_model_are_refused():
    values = TensorValues([torch.ones(2, 3)])
    for tensor in (torch.ones(3, 2), torch.ones(2, 3, dtype=torch.float64), torch.ones(3)):
        with pytest.raises(ValueError, match="equal shapes"):
            values.add_(TensorValues([tensor]))
    with pytest.raises(ValueError, match="equal shapes"):
        values.distance(TensorValues([torch.ones(2, 3), torch.ones(1)]))


def test_it_has_all_that_algorithms_use():
    methods = {name for name in vars(Values) if not name.startswith("_")}
    assert methods
    for name in methods:
        wanted, there = getattr(Values, name), getattr(TensorValues, name)
        assert list(there.__annotations__) == list(wanted.__annotations__)
