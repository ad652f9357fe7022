import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data import reduction
from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.reduction import OPS, check_reducible, combine, reduce_into
from dpwa.errors import ParametersError, UserError

FLOATS = ["float32", "float64"]
NARROW = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
COMPLEX = ["complex64", "complex128"]

seeds = st.integers(0, 2**31)
counts = st.integers(1, 5)
sizes = st.integers(0, 300)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Make tiles small, so that a few hundred values are several and a part."""
    monkeypatch.setattr(reduction, "TILE_BYTES", 256)


def raw(array):
    return array.view(np.uint8)


def images_of(seed, dtype, count, size):
    """Values of very different magnitudes."""
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((count, size)) * 2.0 ** rng.integers(-3, 4, (count, size))
    if dtype in COMPLEX:
        images = images + 1j * images[::-1]
    return [image.astype(dtype) for image in images]


def narrow_of(seed, dtype, count, size):
    """Values of a dtype that numpy may not have: as bytes, and exactly the same in float64."""
    tensors = [
        torch.from_numpy(image).to(getattr(torch, dtype))
        for image in images_of(seed, "float32", count, size)
    ]
    return [raw_tensor(t) for t in tensors], [t.double().numpy() for t in tensors]


def raw_tensor(tensor):
    """Its bytes; torch has no views of empty ones."""
    return tensor.view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)


def double(data, dtype):
    return (
        torch.frombuffer(data, dtype=getattr(torch, dtype)).double().numpy() if data.size else data
    )


@given(seeds, st.sampled_from(FLOATS + COMPLEX), counts, sizes)
def test_a_sum_is_that_of_float64_up_to_rounding(seed, dtype, count, size):
    images = images_of(seed, dtype, count, size)
    exact = np.sum(images, axis=0, dtype=np.clongdouble if dtype in COMPLEX else np.longdouble)
    target = images[0].copy()
    reduce_into(raw(target), [raw(image) for image in images[1:]], dtype, "sum")
    # Addition k rounds a partial sum of at most k max|x|: (2 + ... + n) eps / 2 <= n^2 eps / 2
    # (for each part of complex numbers, whose magnitude is at most sqrt(2) times as much).
    largest = np.max(np.abs(images), initial=0)
    assert np.all(np.abs(target - exact) <= count**2 * np.finfo(dtype).eps / 2 * largest * 1.5)


@given(seeds, st.sampled_from(NARROW), counts, sizes)
def test_a_narrow_sum_is_rounded_once(seed, dtype, count, size):
    images, wide = narrow_of(seed, dtype, count, size)
    info = torch.finfo(getattr(torch, dtype))
    exact = np.sum(wide, axis=0)
    target = images[0].copy()
    reduce_into(target, images[1:], dtype, "sum")
    fits = np.abs(exact) <= info.max
    # Half a unit of the narrow dtype, at least that of its smallest normal number, and as above the
    # additions in float32.
    ulp = np.maximum(np.abs(exact), info.tiny) * info.eps / 2
    bound = ulp * (1 + 2**-10) + count**2 * 2.0**-24 * np.max(np.abs(wide), initial=0)
    assert np.all((np.abs(double(target, dtype) - exact) <= bound)[fits])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_terms_are_not_lost_one_by_one(dtype):
    one, tiny = torch.ones(3), torch.full((3,), 2.0**-10)
    target, other = (t.to(getattr(torch, dtype)).view(torch.uint8).numpy() for t in (one, tiny))
    reduce_into(target, [other] * 512, dtype, "sum")
    assert double(target, dtype).tolist() == [1.5] * 3


@given(seeds, st.sampled_from(INTEGERS), counts, sizes)
def test_integers_are_exact_and_wrap_around(seed, dtype, count, size):
    rng = np.random.default_rng(seed)
    images = list(rng.integers(0, 256, (count, size, np.dtype(dtype).itemsize), np.uint8))
    images = [image.view(dtype).reshape(-1) for image in images]
    with np.errstate(all="ignore"):
        for op, reference in (("sum", np.sum), ("max", np.max), ("min", np.min)):
            kwargs = {"dtype": dtype} if op == "sum" else {}
            target = images[0].copy()
            reduce_into(raw(target), [raw(image) for image in images[1:]], dtype, op)
            assert np.array_equal(target, reference(images, axis=0, **kwargs))


@given(seeds, st.sampled_from(FLOATS), st.sampled_from(["max", "min"]), counts, sizes)
def test_maximum_and_minimum_are_exact(seed, dtype, op, count, size):
    images = images_of(seed, dtype, count, size)
    target = images[0].copy()
    reduce_into(raw(target), [raw(image) for image in images[1:]], dtype, op)
    assert np.array_equal(target, getattr(np, op)(images, axis=0))


@given(seeds, st.sampled_from(NARROW), st.sampled_from(["max", "min"]), counts, sizes)
def test_narrow_maximum_and_minimum_are_exact(seed, dtype, op, count, size):
    images, wide = narrow_of(seed, dtype, count, size)
    target = images[0].copy()
    reduce_into(target, images[1:], dtype, op)
    assert np.array_equal(double(target, dtype), getattr(np, op)(wide, axis=0))


@pytest.mark.parametrize("op", ["max", "min"])
def test_bools_have_a_maximum_and_a_minimum(op):
    one, two = np.array([True, True, False, False]), np.array([True, False, True, False])
    reduce_into(raw(one), [raw(two)], "bool", op)
    assert one.tolist() == ([True, True, True, False] if op == "max" else [True] + [False] * 3)


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("own", [True, False])
def test_nan_is_not_lost(dtype, op, own):
    values = torch.tensor([[1.0, math.nan], [1.0, 1.0], [1.0, 1.0]]).to(getattr(torch, dtype))
    images = list(values.view(torch.uint8).numpy())
    target, *others = images if own else [images[1], images[0], images[2]]
    reduce_into(target, others, dtype, op)
    assert np.isnan(double(target, dtype)).tolist() == [False, True]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_target_that_comes_last_gives_the_same_bits_on_both_sides(dtype):
    kind = getattr(torch, dtype)
    one = torch.tensor([0.0, -0.0, float("nan"), 1.5] * 100, dtype=kind)
    two = torch.tensor([-0.0, 0.0, -float("nan"), 2.5] * 100, dtype=kind)
    images = [tensor.view(torch.uint8).numpy() for tensor in (one, two)]
    for op in OPS:
        first, last = images[0].copy(), images[1].copy()
        reduce_into(first, [images[1]], dtype, op)
        reduce_into(last, [images[0]], dtype, op, is_last=True)
        assert first.tobytes() == last.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_that_overflow_are_infinite_without_a_warning(dtype):
    target = np.full(100, np.finfo(dtype).max, dtype)
    reduce_into(raw(target), [raw(target.copy())], dtype, "sum")
    assert np.isinf(target).all()


@given(seeds, st.sampled_from(FLOATS + COMPLEX), st.integers(1, 64), sizes)
def test_division_is_rounded_to_nearest(seed, dtype, by, size):
    (values,) = images_of(seed, dtype, 1, size)
    target = values.copy()
    reduce_into(raw(target), (), dtype, "mean", by=by)
    real = target.real.dtype
    assert np.array_equal(target.real, (values.real.astype(np.longdouble) / by).astype(real))
    assert np.array_equal(target.imag, (values.imag.astype(np.longdouble) / by).astype(real))


@given(seeds, st.sampled_from(NARROW), st.integers(1, 64), sizes)
def test_narrow_division_is_rounded(seed, dtype, by, size):
    (target,), (wide,) = narrow_of(seed, dtype, 1, size)
    info = torch.finfo(getattr(torch, dtype))
    target, exact = target.copy(), wide / by
    reduce_into(target, (), dtype, "mean", by=by)
    bound = np.maximum(np.abs(exact), info.tiny) * info.eps / 2 * (1 + 2**-10)
    assert np.all(np.abs(double(target, dtype) - exact) <= bound)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_others_may_be_read_only_and_nothing_aligned(dtype):
    size = 128
    memory = [np.zeros(size + 1, np.uint8) for _ in range(3)]
    target, *others = (m[1:] for m in memory)
    for other in others:
        other[:] = np.tile(np.array([0, 0, 0x80, 0x3F], np.uint8), size // 4)
        other.flags.writeable = False
    aligned = target.copy()
    reduce_into(target, others, dtype, "sum")
    reduce_into(aligned, [other.copy() for other in others], dtype, "sum")
    assert target.any()
    assert target.tobytes() == aligned.tobytes()


@pytest.mark.parametrize("nbytes", [0, 4, 12])
def test_others_of_another_size_are_refused(nbytes):
    target = np.zeros(8, np.uint8)
    with pytest.raises(ValueError, match="8"):
        reduce_into(target, [np.ones(8, np.uint8), np.ones(nbytes, np.uint8)], "float32", "sum")
    assert not target.any()


def layout_of(dtype):
    return Layout((TensorSpec("['n']", "float32", (2,), 4), TensorSpec("['x']", dtype, (), 1)))


@pytest.mark.parametrize(
    ("op", "dtypes"),
    [
        ("sum", FLOATS + NARROW + INTEGERS + COMPLEX),
        ("mean", FLOATS + NARROW + COMPLEX),
        ("max", [*FLOATS, *NARROW, *INTEGERS, "bool"]),
        ("min", [*FLOATS, *NARROW, *INTEGERS, "bool"]),
    ],
)
def test_what_can_be_reduced_passes(op, dtypes):
    for dtype in dtypes:
        check_reducible(layout_of(dtype), op)


@pytest.mark.parametrize(
    ("op", "dtypes"),
    [
        ("sum", ["bool", "bytes", "complex32", "float8_e8m0fnu", "datetime64"]),
        ("mean", [*INTEGERS, "bool", "bytes"]),
        ("max", [*COMPLEX, "bytes"]),
        ("min", [*COMPLEX, "bytes"]),
    ],
)
def test_what_has_no_such_operation_is_refused_by_name(op, dtypes):
    for dtype in dtypes:
        with pytest.raises(ParametersError, match=rf"the {op} of \"\['x'\]\" {dtype}"):
            check_reducible(layout_of(dtype), op)


def test_unknown_operations_are_refused_with_the_known_ones():
    with pytest.raises(UserError, match="sum, mean, max, min, not 'avg'"):
        check_reducible(Layout(()), "avg")


@given(seeds, st.sampled_from(FLOATS + INTEGERS), st.integers(1, 5), sizes)
def test_combining_is_reducing_the_first_by_the_others(seed, dtype, count, size):
    values = [raw(image) for image in images_of(seed, dtype, count, size)]
    expected, target = values[0].copy(), np.full_like(values[0], 255)
    reduce_into(expected, values[1:], dtype, "sum")
    combine(target, values, dtype, "sum")
    assert target.tobytes() == expected.tobytes()
