"""How far the values of fp16, bf16 and int8 may be off, and that what is not finite stays so."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dpwa.data.codecs import codec

BLOCK = 256
DTYPES = ("float32", "float64")
scales = st.sampled_from([0.0, 1e-45, 1e-38, 1e-6, 1.0, 1e4, 1e38])


@st.composite
def vectors(draw, dtype, most=3.4e38):
    """Random numbers of some size, among them some drawn one by one: zeros, tiny and huge ones."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.standard_normal(draw(st.integers(1, 3 * BLOCK))) * draw(scales)
    values = values.clip(-most, most).astype(dtype)
    width = 32 if dtype == "float32" else 64
    limit = float(np.dtype(dtype).type(most))
    chosen = draw(
        arrays.arrays(dtype, st.integers(0, 20), elements=st.floats(-limit, limit, width=width))
    )
    where = rng.integers(0, values.size, chosen.size)
    values[where] = chosen
    return values


def through(name, values):
    one, dtype = codec(name), values.dtype.name
    payload = one.encode(values.view(np.uint8), dtype)
    decoded = one.decode(payload.data, dtype, np.empty(values.nbytes, np.uint8))
    return decoded.view(values.dtype)


FORMATS = {"fp16": (2.0**-11, 2.0**-25, 65504.0), "bf16": (2.0**-8, 2.0**-134, 3.3895313892e38)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_16_bit_floats_are_off_by_half_the_distance_of_neighbours_at_most(name, dtype, data):
    relative, absolute, largest = FORMATS[name]
    values = data.draw(vectors(dtype))
    error = np.abs(through(name, values).astype(np.float64) - values)
    magnitudes = np.abs(values.astype(np.float64))
    bound = np.maximum(relative * magnitudes, absolute)
    if dtype == "float64":  # rounded to float32 first
        bound += np.maximum(2.0**-24 * magnitudes, 2.0**-150)
    within = magnitudes <= largest
    assert (error <= bound)[within].all()
    assert np.isfinite(error).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
def test_16_bit_floats_limit_what_is_too_large_and_keep_what_is_not_finite(name, dtype):
    largest = FORMATS[name][2]
    values = np.array([1.0, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 0.0], dtype)
    expected = np.array([1.0, largest, -largest, np.inf, -np.inf, np.nan, 0.0])
    np.testing.assert_allclose(through(name, values), expected, rtol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_16_bit_floats_limit_float64_beyond_float32(name):
    largest = FORMATS[name][2]
    decoded = through(name, np.array([1e300, -1e300]))
    np.testing.assert_allclose(decoded, [largest, -largest], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_int8_is_off_by_half_a_scale_of_the_block_at_most(dtype, data):
    most = 3.4028234e38 if dtype == "float32" else 1.7e308
    values = data.draw(vectors(dtype, most))
    wide = values.astype(np.longdouble)
    decoded = through("int8", values)
    least = np.longdouble(np.finfo(dtype).tiny) / 2
    for start in range(0, values.size, BLOCK):
        block = wide[start : start + BLOCK]
        bound = max(np.abs(block).max() / 254 * (1 + np.longdouble(2.0**-13)), least)
        error = np.abs(decoded[start : start + BLOCK].astype(np.longdouble) - block)
        assert (error <= bound).all()


def test_int8_does_not_overflow_at_the_largest_float():
    for dtype in DTYPES:
        values = np.full(300, np.finfo(dtype).max, dtype)
        values[::2] *= -1
        np.testing.assert_allclose(through("int8", values), values, rtol=1e-5)


@pytest.mark.parametrize("size", [1e-36, 1e-37, 1e-38, 1e-39, 1e-45])
def test_int8_rounds_blocks_of_tiny_values_by_half_the_smallest_normal_number(size):
    values = (np.random.default_rng(0).uniform(-size, size, 300)).astype(np.float32)
    assert np.abs(through("int8", values) - values).max() <= np.finfo(np.float32).tiny / 2


def test_int8_keeps_zeros_and_the_largest_of_each_block():
    values = np.zeros(3 * BLOCK, np.float32)
    values[BLOCK + 5] = -3.0
    np.testing.assert_allclose(through("int8", values), values, rtol=1e-5)


def test_int8_rounds_halfway_cases_to_the_even_code():
    values = np.array([127.0, 0.499, 0.501, -1.5, 2.5, 3.5], np.float32)
    np.testing.assert_allclose(through("int8", values).round(3), [127, 0, 1, -2, 3, 4], rtol=1e-5)


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@given(size=st.integers(1, 2 * BLOCK + 50), data=st.data())
def test_int8_makes_nothing_finite_of_a_block_that_is_not(dtype, value, size, data):
    values = np.linspace(-1, 1, size).astype(dtype)
    at = data.draw(st.integers(0, size - 1))
    values[at] = value
    is_finite = np.isfinite(through("int8", values))
    in_block = np.arange(size) // BLOCK == at // BLOCK
    assert not is_finite[in_block].any()
    assert is_finite[~in_block].all()


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
def test_large_and_small_blocks_do_not_mix(name):
    values = np.repeat(np.float32([1e4, 1e-4]), BLOCK)
    np.testing.assert_allclose(through(name, values), values, rtol=2**-7)
