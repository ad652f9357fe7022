import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data.layout import Layout, TensorSpec

dtypes = st.sampled_from([("bfloat16", 2), ("float32", 4), ("float64", 8)])
specs = st.builds(
    lambda name, shape, dtype: TensorSpec(name, dtype[0], shape, dtype[1]),
    dtype=dtypes,
    name=st.text(max_size=8),
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
)
layouts = st.lists(specs, max_size=6).map(lambda tensors: Layout(tuple(tensors)))


def difference(mine, theirs):
    return mine.difference(theirs.descriptions, len(theirs.tensors))


def spec(name="weight", dtype="float32", shape=(2, 3), item_bytes=4):
    return TensorSpec(name, dtype, shape, item_bytes)


@given(layouts)
def test_tensors_are_aligned_and_do_not_overlap(layout):
    ends = [0]
    for tensor, offset in zip(layout.tensors, layout.offsets, strict=True):
        assert offset % tensor.item_bytes == 0
        assert offset >= ends[-1]
        ends.append(offset + tensor.nbytes)
    assert layout.nbytes == ends[-1] or layout.is_bytes


@given(layouts, st.sampled_from([8, 16, 64]))
def test_pieces_cover_every_tensor_once_and_have_one_dtype(layout, piece_bytes):
    pieces = layout.pieces(layout.nbytes, piece_bytes)
    expected = [
        (offset + byte, tensor.dtype)
        for tensor, offset in zip(layout.tensors, layout.offsets, strict=True)
        for byte in range(tensor.nbytes)
    ]
    covered = [(byte, piece.dtype) for piece in pieces for byte in range(piece.start, piece.stop)]
    assert covered == expected
    assert all(0 < piece.nbytes <= piece_bytes for piece in pieces)


def test_tensors_by_falling_element_size_leave_no_gap():
    sizes = [("float64", 8), ("float32", 4), ("bfloat16", 2)]
    layout = Layout(tuple(TensorSpec(d, d, (3,), size) for d, size in sizes))
    assert layout.nbytes == 3 * (8 + 4 + 2)


@given(layouts, layouts)
def test_fingerprints_and_differences_agree_with_equality(one, other):
    assert (one.fingerprint == other.fingerprint) == (one == other)
    assert (difference(one, other) is None) == (one == other)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ([spec(), spec("bias", shape=(4,))], "here 'bias' float32[3], there 'bias' float32[4]"),
        (
            [spec(dtype="float64", item_bytes=8)],
            "here 'weight' float32[2, 3], there 'weight' float64",
        ),
        ([spec()], "here 'bias' float32[3], there no such tensor"),
        ([spec("bias", shape=(3,))], "here 'weight' float32[2, 3], there no such tensor"),
        ([spec("a"), spec(), spec("bias", shape=(3,))], "here no such tensor, there 'a' float32"),
        ([spec("a"), spec("bias", shape=(3,))], "here 'weight' float32[2, 3], there 'a' float32"),
        ([spec("bias", shape=(3,)), spec()], "here 'weight' float32[2, 3], there 'bias'"),
        ([spec(), spec("bias", shape=(3,)), spec("more")], "here no such tensor, there 'more'"),
    ],
)
def test_the_first_differing_tensor_is_named(theirs, words):
    mine = Layout((spec(), spec("bias", shape=(3,))))
    assert words in difference(mine, Layout(tuple(theirs)))


def test_the_first_difference_is_that_of_the_module_not_of_the_alphabet():
    names = [f"{at}.{what}" for at in range(12) for what in ("weight", "bias")]
    tensors = {name: spec(name) for name in names}

    def layout(changed):
        specs = {**tensors, **{name: spec(name, shape=(9,)) for name in changed}}
        return Layout(tuple(specs[name] for name in sorted(specs)), order=tuple(names))

    other = layout(["10.bias", "2.weight"])
    assert difference(layout([]), other).startswith("here '2.weight' float32[2, 3], there '2.w")
    assert layout([]) == Layout(layout([]).tensors)
    cut = other.descriptions[:8]  # from 0.bias to 11.weight, and 2.bias
    assert layout([]).difference(cut, 24).startswith("here '10.bias'")
    assert layout([]).difference(layout([]).descriptions[:8], 24).startswith("they differ after")


def test_of_a_layout_too_long_to_be_sent_only_the_beginning_is_compared():
    mine = Layout((spec(), spec("bias", shape=(3,))))
    assert mine.difference([str(spec())], 5) == "they differ after the first 1 tensors"
    assert mine.difference([str(spec(shape=(9,)))], 5).startswith("here 'weight'")


def test_unstructured_bytes_have_no_fixed_size():
    assert Layout.of_bytes().nbytes is None
    assert Layout.of_bytes().fingerprint != Layout((spec(dtype="uint8", item_bytes=1),)).fingerprint
