import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data.layout import ALIGNMENT_BYTES, Layout, TensorSpec

specs = st.builds(
    TensorSpec,
    name=st.text(max_size=8),
    dtype=st.sampled_from(["float32", "float64", "bfloat16"]),
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    item_bytes=st.sampled_from([2, 4, 8]),
)
layouts = st.lists(specs, max_size=6).map(lambda tensors: Layout(tuple(tensors)))


def spec(name="weight", dtype="float32", shape=(2, 3), item_bytes=4):
    return TensorSpec(name, dtype, shape, item_bytes)


@given(layouts)
def test_tensors_are_aligned_and_do_not_overlap(layout):
    ends = [0]
    for tensor, offset in zip(layout.tensors, layout.offsets, strict=True):
        assert offset % ALIGNMENT_BYTES == 0
        assert offset >= ends[-1]
        ends.append(offset + tensor.nbytes)
    assert layout.nbytes == ends[-1] or layout.is_bytes


@given(layouts)
def test_a_layout_survives_being_sent(layout):
    assert Layout.from_rows(layout.rows()) == layout


@given(layouts, layouts)
def test_fingerprints_and_differences_agree_with_equality(one, other):
    assert (one.fingerprint == other.fingerprint) == (one == other)
    assert (one.difference(other) is None) == (one == other)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ([spec(), spec("bias", shape=(4,))], "here 'bias' float32[3], there 'bias' float32[4]"),
        (
            [spec(dtype="float64", item_bytes=8)],
            "here 'weight' float32[2, 3], there 'weight' float64",
        ),
        ([spec()], "here 'bias' float32[3], there no such tensor"),
        ([spec(), spec("bias", shape=(3,)), spec("more")], "here no such tensor, there 'more'"),
    ],
)
def test_the_first_differing_tensor_is_named(theirs, words):
    mine = Layout((spec(), spec("bias", shape=(3,))))
    assert words in mine.difference(Layout(tuple(theirs)))


@pytest.mark.parametrize(
    "rows",
    [
        [["w", "float32", [2], 4, 5]],
        [["w", "float32"]],
        [["w", "float32", [-2], 4]],
        [["w", "float32", ["2"], 4]],
        [["w", "float32", 2, 4]],
        [7],
        [["w", "float32", [2], None]],
    ],
)
def test_rows_that_are_no_layout_are_refused(rows):
    with pytest.raises(ValueError, match="not a"):
        Layout.from_rows(rows)


def test_unstructured_bytes_have_no_fixed_size():
    assert Layout.of_bytes().nbytes is None
    assert Layout.of_bytes().fingerprint != Layout((spec(dtype="uint8", item_bytes=1),)).fingerprint
