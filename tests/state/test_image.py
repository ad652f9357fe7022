"""Images: the bytes of a safetensors file, equal on all nodes but for the values."""

import numpy as np
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data.layout import TensorSpec
from dpwa.state.safetensors_image import ImageLayout, can_be_stored

DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")

specs = st.lists(
    st.builds(
        lambda name, dtype, shape: TensorSpec(name, dtype, tuple(shape), np.dtype(dtype).itemsize),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
            lambda name: name != "__metadata__"
        ),
        st.sampled_from(DTYPES),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    max_size=6,
    unique_by=lambda spec: spec.name,
)


def filled(layout, seed=1):
    image = layout.empty()
    body = image[len(layout.header) :]
    body[:] = np.random.default_rng(seed).integers(0, 2, body.nbytes)
    return image


@given(specs)
def test_safetensors_reads_every_image(found):
    layout = ImageLayout.from_specs(found)
    image = filled(layout)
    loaded = safetensors.numpy.load(image.tobytes())
    assert loaded.keys() == {spec.name for spec in found}
    body = layout.tensors_of(image)
    for spec, start in zip(layout.tensors.tensors, layout.tensors.offsets, strict=True):
        there = loaded[spec.name]
        assert (there.dtype, there.shape) == (np.dtype(spec.dtype), spec.shape)
        assert there.tobytes() == body[start : start + spec.nbytes].tobytes()
        assert start % spec.item_bytes == 0


@given(specs, st.randoms(use_true_random=False))
def test_the_header_does_not_depend_on_the_order_of_the_tensors(found, rng):
    layout = ImageLayout.from_specs(found)
    rng.shuffle(found)
    again = ImageLayout.from_specs(found)
    assert (again.header, again.fingerprint) == (layout.header, layout.fingerprint)
    assert len(layout.header) % 8 == 0


def test_an_image_of_another_layout_is_none_of_this_one():
    one = ImageLayout.from_specs([TensorSpec("a", "float32", (2,), 4)])
    two = ImageLayout.from_specs([TensorSpec("b", "float32", (2,), 4)])
    assert one.nbytes == two.nbytes
    assert one.tensors_of(filled(two)) is None
    assert one.tensors_of(filled(one)[:-1]) is None
    assert one.tensors_of(filled(one)).nbytes == 8


def test_dtypes_that_the_format_does_not_know_are_told_apart():
    assert can_be_stored("bfloat16")
    assert not can_be_stored("complex128")
