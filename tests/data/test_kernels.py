import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data import array_model
from dpwa.data.kernels import Rounding, add_, difference, is_finite, move_toward_, norm

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2]
factors = st.floats(0, 1)
seeds = st.integers(0, 2**31)


def pair(seed, dtype=torch.float32, shape=(5, 6)):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]


@given(seeds, factors, st.sampled_from([*DTYPES, *NARROW]))
def test_moving_toward_a_peer_stays_between_both_ends(seed, factor, dtype):
    own, peer = pair(seed, dtype)
    low, high = (f(own.double(), peer.double()) for f in (torch.minimum, torch.maximum))
    move_toward_([own], [peer], factor)
    assert bool((low <= own.double()).all())
    assert bool((own.double() <= high).all())


@given(seeds, factors)
def test_moving_toward_a_peer_matches_the_formula(seed, factor):
    own, peer = pair(seed, torch.float64)
    expected = (1 - factor) * own + factor * peer
    move_toward_([own], [peer], factor)
    torch.testing.assert_close(own, expected)


@given(seeds, st.sampled_from([*DTYPES, *NARROW]))
def test_factor_0_changes_nothing_and_factor_1_copies(seed, dtype):
    own, peer = pair(seed, dtype)
    before = own.clone()
    move_toward_([own], [peer], 0.0)
    add_([own], [peer.float()], 0.0)
    assert torch.equal(own.double(), before.double())
    move_toward_([own], [peer], 1.0)
    assert torch.equal(own.double(), peer.double())


def test_factor_1_heals_and_factor_0_ignores_what_is_not_finite():
    own, peer = torch.full((9,), math.nan), torch.ones(9)
    move_toward_([own], [peer], 1.0)
    assert torch.equal(own, peer)
    for kernel in (move_toward_, add_):
        kernel([own], [torch.full((9,), math.inf)], 0.0)
        assert torch.equal(own, peer)


@given(seeds, factors)
def test_equal_ends_are_a_fixed_point(seed, factor):
    own, _ = pair(seed)
    before = own.clone()
    move_toward_([own], [before.clone()], factor)
    add_([own], [difference(before, before, torch.empty_like(before))], factor)
    assert torch.equal(own, before)


@given(seeds, st.floats(0.05, 0.95), st.integers(1, 8))
def test_pulls_from_a_frozen_peer_leave_a_geometric_gap(seed, factor, pulls):
    own, peer = pair(seed, torch.float64)
    gap = float((peer - own).norm())
    for _ in range(pulls):
        move_toward_([own], [peer], factor)
    assert float((peer - own).norm()) == pytest.approx((1 - factor) ** pulls * gap)


@given(seeds, factors)
def test_a_delta_moves_as_far_as_interpolation_and_keeps_the_local_step(seed, factor):
    published, peer = pair(seed, torch.float64)
    step = torch.ones_like(published)
    own = published + step
    add_([own], [difference(peer, published, torch.empty_like(peer))], factor)
    move_toward_([published], [peer], factor)
    torch.testing.assert_close(own, published + step)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_any_strides_and_dtypes_are_merged_in_place(dtype):
    own, peer = pair(3, dtype, (4, 6))
    transposed = own.clone().t()
    move_toward_([transposed, own], [peer.t(), peer], 0.5)
    assert not transposed.is_contiguous()
    torch.testing.assert_close(transposed.t(), own)


@pytest.mark.parametrize("dtype", NARROW)
def test_dtypes_too_narrow_to_compute_in_are_merged_too(dtype):
    own, peer = torch.full((9,), 1.0).to(dtype), torch.full((9,), 3.0).to(dtype)
    move_toward_([own], [peer], 0.5)
    assert own.dtype == dtype
    assert bool((own.float() == 2.0).all())
    add_([own], [difference(peer, own, torch.empty_like(own))], 0.5)
    assert bool((own.float() == 2.5).all())


@pytest.mark.parametrize("dtype", [*DTYPES, *NARROW, torch.complex64])
def test_the_difference_may_take_the_place_of_the_subtrahend(dtype):
    own, peer = torch.full((9,), 1.0).to(dtype), torch.full((9,), 3.0).to(dtype)
    assert norm(difference(peer, own, own)).item() == pytest.approx(6.0)


@pytest.mark.parametrize("dtype", [*DTYPES, *NARROW])
def test_a_norm_may_be_larger_than_any_number_of_its_dtype(dtype):
    tensor = torch.full((90_000,), 256.0).to(dtype)
    assert norm(tensor).item() == pytest.approx(256.0 * 300)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.float8_e5m2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_is_found(dtype, value):
    tensor = torch.ones(1000).to(dtype)
    assert is_finite(tensor)
    tensor[617] = torch.tensor(value).to(dtype)
    assert not is_finite(tensor)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "complex64"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_element_of_an_array_that_is_not_finite_is_found(dtype, value):
    array = np.full(1000, np.finfo(dtype).max, dtype)
    assert array_model.is_finite(array.view(np.uint8), dtype)
    array[617], array[2] = value, -value
    assert not array_model.is_finite(array.view(np.uint8), dtype)


def test_infinities_of_both_signs_do_not_cancel():
    assert not is_finite(torch.tensor([math.inf, -math.inf, 1.0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_overflows_does_not_make_finite_values_infinite(dtype):
    assert is_finite(torch.full((100_000,), torch.finfo(dtype).max, dtype=dtype))


@pytest.mark.parametrize("dtype", NARROW)
def test_the_largest_narrow_numbers_are_finite(dtype):
    assert is_finite(torch.full((1000,), torch.finfo(dtype).max).to(dtype))


# Narrow dtypes: a step of less than half a unit counts, too

NARROWER = [torch.float16, torch.bfloat16, *NARROW]


def numbers_of(dtype):
    """All finite numbers of a dtype, or some thousands of them, in float32 and in order."""
    count = 1 << 8 * dtype.itemsize
    codes = torch.arange(count, dtype=torch.int32).to(
        torch.int16 if dtype.itemsize == 2 else torch.uint8
    )
    numbers = codes.view(dtype).float()
    return numbers[numbers.isfinite()].unique()


@pytest.mark.parametrize("dtype", NARROWER)
def test_a_number_is_rounded_to_a_neighbour_with_the_chance_that_keeps_the_mean(dtype):
    numbers, rounding, times = numbers_of(dtype), Rounding(), 300
    low, high = numbers[:-1].double(), numbers[1:].double()
    drawn = torch.rand(len(low), generator=torch.Generator().manual_seed(1)).double()
    wide = (low + drawn * (high - low)).float()
    share = (wide.double() - low) / (high - low)
    ups = torch.zeros_like(low)
    for _ in range(times):
        own = torch.empty(len(low), dtype=dtype)
        rounding.into(own, wide.clone(), None)
        is_up = own.double() == high
        assert bool((is_up | (own.double() == low)).all())
        ups += is_up
    error = ups / times - share
    deviation = (share * (1 - share) / times).sqrt() + 1e-3
    assert float((error / deviation).abs().max()) < 6.0
    assert abs(float(error.mean())) < 5 * float(deviation.mean()) / math.sqrt(len(low))


@pytest.mark.parametrize("dtype", NARROWER)
def test_numbers_of_the_dtype_and_what_is_not_finite_stay(dtype):
    numbers, rounding = numbers_of(dtype), Rounding()
    strange = torch.tensor([math.nan, math.inf, -math.inf]).to(dtype)
    for _ in range(20):
        own = torch.empty(len(numbers), dtype=dtype)
        rounding.into(own, numbers.clone(), None)
        assert torch.equal(own.float(), numbers)
        own = torch.empty(3, dtype=dtype)
        rounding.into(own, strange.float(), None)
        assert torch.equal(own.float().isfinite(), strange.float().isfinite())


def test_what_would_overflow_becomes_the_largest_number():
    for dtype in (torch.float16, *NARROW):
        largest = torch.finfo(dtype).max
        own = torch.full((999,), largest).to(dtype)
        add_([own], [torch.full((999,), largest * 0.4)], 0.1)
        assert bool((own.float() == largest).all())


@pytest.mark.parametrize("with_delta", [False, True])
@pytest.mark.parametrize("dtype", NARROWER)
@pytest.mark.parametrize("merges", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_small_factors_bring_narrow_values_together_and_keep_their_mean(dtype, with_delta, merges):
    generator, count, rounding = torch.Generator().manual_seed(1), 1000, Rounding()
    value = torch.rand(count, generator=generator) + 1.0  # all units are one size, or half of it
    spread = 4 * torch.finfo(dtype).eps
    one, two = (value * (1 + spread * torch.randn(count, generator=generator)) for _ in range(2))
    one, two = one.to(dtype), two.to(dtype)
    before = (one.double() + two.double()) / 2
    for _ in range(merges):
        then = one.clone()
        for own, peer in ((one, two), (two, then)):
            if with_delta:
                base = own.clone()
                add_([own], [difference(peer, base, torch.empty_like(own))], 0.1, rounding)
            else:
                move_toward_([own], [peer], 0.1, rounding)
    unit = torch.finfo(dtype).eps
    assert float((one.double() - two.double()).abs().max()) <= 2 * unit  # of the larger ones
    moved = ((one.double() + two.double()) / 2 - before) / unit
    assert abs(float(moved.mean())) < 5 * float(moved.std()) / math.sqrt(count)


def test_chance_is_seeded_and_differs_from_one_merge_to_the_next():
    def merged(rounding):
        own = torch.full((1000,), 1.0, dtype=torch.bfloat16)
        move_toward_([own], [torch.full_like(own, 1.0 + 2**-7)], 0.5, rounding)
        return own.tolist()

    one, two = Rounding(), Rounding()
    assert merged(one) == merged(two)
    assert merged(one) != merged(Rounding())


@pytest.mark.parametrize("dtype", NARROWER)
def test_a_mean_that_keeps_what_is_rounded_away_is_the_nearest(dtype):
    values = [torch.rand(500, generator=torch.Generator().manual_seed(n)) for n in range(7)]
    values = [(1.0 + value / 2).to(dtype) for value in values]
    own, rest = values[0].clone(), torch.zeros(500).to(dtype)
    for number, peer in enumerate(values[1:], 2):
        move_toward_([own], [peer], 1.0 / number, Rounding(), rest)
    error = own.double() - torch.stack([value.double() for value in values]).mean(0)
    unit = torch.finfo(dtype).eps
    assert float(error.abs().max()) <= 0.5 * unit * (1 + 8 * unit)
