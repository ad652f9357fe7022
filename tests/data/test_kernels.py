import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data import kernels
from dpwa.data.kernels import add_delta_, interpolate_, is_finite

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
factors = st.floats(0, 1)
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Several blocks and a rest, also for small tensors."""
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 7)


def pair(seed, dtype=torch.float32, shape=(5, 6)):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]


@given(seeds, factors, st.sampled_from(DTYPES))
def test_interpolation_stays_between_both_ends(seed, factor, dtype):
    own, peer = pair(seed, dtype)
    low, high = torch.minimum(own, peer), torch.maximum(own, peer)
    interpolate_(own, peer, factor)
    assert bool((low <= own).all())
    assert bool((own <= high).all())


@given(seeds, factors)
def test_interpolation_matches_the_formula(seed, factor):
    own, peer = pair(seed, torch.float64)
    expected = (1 - factor) * own + factor * peer
    distance = float((peer - own).norm())
    assert math.sqrt(interpolate_(own, peer, factor)) == pytest.approx(distance)
    torch.testing.assert_close(own, expected)


@given(seeds)
def test_factor_0_changes_nothing_and_factor_1_copies(seed):
    own, peer = pair(seed)
    before = own.clone()
    interpolate_(own, peer, 0.0)
    assert torch.equal(own, before)
    interpolate_(own, peer, 1.0)
    assert torch.equal(own, peer)


def test_factor_1_heals_and_factor_0_ignores_what_is_not_finite():
    own, peer = torch.full((9,), math.nan), torch.ones(9)
    interpolate_(own, peer, 1.0)
    assert torch.equal(own, peer)
    interpolate_(own, torch.full((9,), math.inf), 0.0)
    assert torch.equal(own, peer)


@given(seeds, factors)
def test_equal_ends_are_a_fixed_point(seed, factor):
    own, _ = pair(seed)
    before = own.clone()
    assert interpolate_(own, before.clone(), factor) == 0.0
    assert torch.equal(own, before)


@given(seeds, st.floats(0.05, 0.95), st.integers(1, 8))
def test_pulls_from_a_frozen_peer_leave_a_geometric_gap(seed, factor, pulls):
    own, peer = pair(seed, torch.float64)
    gap = float((peer - own).norm())
    for _ in range(pulls):
        interpolate_(own, peer, factor)
    assert float((peer - own).norm()) == pytest.approx((1 - factor) ** pulls * gap)


@given(seeds, factors)
def test_delta_equals_interpolation_when_no_local_step_happened(seed, factor):
    own, peer = pair(seed, torch.float64)
    other = own.clone()
    squared = add_delta_(own, peer, own.clone(), factor)
    assert squared == pytest.approx(interpolate_(other, peer, factor))
    torch.testing.assert_close(own, other)


@given(seeds, factors)
def test_delta_keeps_the_whole_local_step(seed, factor):
    published, peer = pair(seed, torch.float64)
    step = torch.ones_like(published)
    own = published + step
    add_delta_(own, peer, published, factor)
    mixed = published.clone()
    interpolate_(mixed, peer, factor)
    torch.testing.assert_close(own, mixed + step)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_any_strides_and_dtypes_are_merged_in_place(dtype):
    own, peer = pair(3, dtype, (4, 6))
    transposed = own.clone().t()
    interpolate_(transposed, peer.t(), 0.5)
    interpolate_(own, peer, 0.5)
    assert not transposed.is_contiguous()
    torch.testing.assert_close(transposed.t(), own)


def test_scalars_and_empty_tensors_are_merged_too():
    own = torch.tensor(1.0)
    interpolate_(own, torch.tensor(3.0), 0.5)
    assert own.item() == 2.0
    assert interpolate_(torch.empty(0), torch.empty(0), 0.5) == 0.0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_peer_on_the_host_is_merged_into_a_tensor_on_the_device():
    own, peer = pair(5)
    expected = (own + peer) / 2
    on_device = own.cuda()
    interpolate_(on_device, peer, 0.5)
    torch.testing.assert_close(on_device.cpu(), expected)


def test_delta_with_factor_0_ignores_what_is_not_finite():
    own, before = torch.ones(9), torch.ones(9)
    add_delta_(own, torch.full((9,), math.nan), before, 0.0)
    assert torch.equal(own, before)


def test_delta_with_factor_1_heals_a_node_that_published_what_is_not_finite():
    own = torch.full((9,), math.nan)
    add_delta_(own, torch.ones(9), own.clone(), 1.0)
    assert torch.equal(own, torch.ones(9))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_dtypes_too_narrow_to_compute_in_are_merged_too(dtype):
    own, peer = torch.full((9,), 1.0).to(dtype), torch.full((9,), 3.0).to(dtype)
    interpolate_(own, peer, 0.5)
    assert own.dtype == dtype
    assert bool((own.float() == 2.0).all())
    add_delta_(own, peer, own.clone(), 0.5)
    assert bool((own.float() == 2.5).all())


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.float8_e5m2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_is_found(dtype, value):
    tensor = torch.ones(1000).to(dtype)
    assert is_finite(tensor)
    tensor[617] = torch.tensor(value).to(dtype)
    assert not is_finite(tensor)


def test_infinities_of_both_signs_do_not_cancel():
    assert not is_finite(torch.tensor([math.inf, -math.inf, 1.0]))


def test_a_half_precision_sum_does_not_overflow():
    assert is_finite(torch.full((100_000,), 60_000.0, dtype=torch.float16))
