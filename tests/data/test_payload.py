import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpwa.data.payload import Payload
from dpwa.errors import ParametersError

Point = namedtuple("Point", "x y")

ARRAY_DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", ">f4", "complex128"]
TENSOR_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def image(payload):
    target = np.zeros(payload.nbytes, np.uint8)
    payload.copy_into(0, payload.nbytes, target)
    return target


def assign_all(payload, source):
    payload.assign(0, payload.nbytes, source)
    return payload.result()


arrays = st.sampled_from(ARRAY_DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
strided = arrays.map(lambda array: array.T if array.ndim != 1 else array[::-1])
numbers = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.complex_numbers()
leaves = arrays | strided | numbers
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.dictionaries(st.integers(-3, 12), inner, max_size=4)
    ),
    max_leaves=8,
)


def walked(value):
    """The leaves as arrays, with keys in sorted order."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in walked(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in walked(item)]
    return [np.asarray(value)]


def expected_image(value):
    found = sorted(walked(value), key=lambda array: -array.itemsize)
    return b"".join(a.astype(a.dtype.newbyteorder("=")).tobytes() for a in found)


# The range is drawn as fractions: the size of the image is not known before.
@given(values, st.floats(0, 1), st.floats(0, 1))
def test_any_range_of_the_image_is_that_of_the_concatenated_leaves(value, one, two):
    payload = Payload(value)
    expected = expected_image(value)
    assert payload.nbytes == payload.layout.nbytes == len(expected)
    start, stop = sorted(round(fraction * payload.nbytes) for fraction in (one, two))
    target = np.full(stop - start, 77, np.uint8)
    payload.copy_into(start, stop, target)
    assert target.tobytes() == expected[start:stop]
    view = payload.view(start, stop)
    assert view is None or view.tobytes() == expected[start:stop]


@given(values, st.integers(0, 2**31), st.integers(1, 50))
def test_what_is_assigned_in_shards_comes_out_and_nothing_before(value, seed, shard):
    before = expected_image(value)
    payload = Payload(value)
    wanted = np.random.default_rng(seed).integers(0, 2, payload.nbytes, np.uint8)  # valid bools
    image(payload)
    assert expected_image(value) == before
    for start in range(0, payload.nbytes, shard):
        stop = min(start + shard, payload.nbytes)
        payload.assign(start, stop, wanted[start:stop])
    assert expected_image(payload.result()) == wanted.tobytes()


@given(values)
def test_the_layout_leaves_no_gaps_and_has_each_leaf_once(value):
    layout = Payload(value).layout
    assert sum(tensor.nbytes for tensor in layout.tensors) == layout.nbytes
    assert len(layout.tensors) == len({tensor.name for tensor in layout.tensors})
    assert len(layout.tensors) == len(walked(value))


@pytest.mark.parametrize("dtype", TENSOR_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (4, 5), (2, 3, 4)])
def test_tensors_of_any_dtype_are_read_and_written_in_place(dtype, shape):
    tensor, wanted = (torch.ones(shape) * factor for factor in (3.0, 2.0))
    tensor, wanted = tensor.to(dtype), wanted.to(dtype)
    payload = Payload(tensor)
    assert payload.layout.tensors[0].dtype == str(dtype).removeprefix("torch.")
    assert image(payload).tobytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert assign_all(payload, image(Payload(wanted))) is tensor
    assert torch.equal(tensor.to(torch.complex64), wanted.to(torch.complex64))


def strided_tensors():
    base = torch.arange(24.0)
    yield "transposed", base.clone().reshape(4, 6).t()
    yield "stepped", base.clone()[::3]
    yield "channels last", base.clone().reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    yield "conjugated", torch.complex(base, base + 1).conj()
    yield "negated", torch.complex(base, base + 1).conj().imag[3:4]  # contiguous
    yield "bfloat16", base.bfloat16().reshape(4, 6).t()
    yield "size one", base.clone().as_strided((1, 4, 6), (0, 1, 4))


@pytest.mark.parametrize(("kind", "tensor"), list(strided_tensors()))
def test_tensors_with_strides_are_written_back_by_the_result(kind, tensor):
    before = tensor.clone()
    wanted = (before + 1).contiguous()
    payload = Payload([tensor])
    assert torch.equal(torch.from_numpy(image(payload)).view(tensor.dtype), before.reshape(-1))
    payload.assign(0, payload.nbytes, image(Payload(wanted)))
    assert torch.equal(tensor, before)
    assert payload.result()[0] is tensor
    assert torch.equal(tensor, wanted)


@pytest.mark.parametrize("base", [np.arange(9.0), torch.arange(9.0, dtype=torch.float64)])
def test_one_element_of_any_stride_is_in_place(base):
    payload = Payload([base[4::5][:1], base[2:2], base[8]])
    assert image(payload).view(np.float64).tolist() == [4.0, 8.0]
    payload.assign(0, 8, np.zeros(8, np.uint8))
    assert base[3:6].tolist() == [3.0, 0.0, 5.0]


def test_parameters_that_need_gradients_are_assigned_without_a_history():
    net = torch.nn.Linear(3, 2)
    transposed = torch.nn.Parameter(torch.ones(2, 3).t())
    payload = Payload([*net.parameters(), transposed])
    assign_all(payload, np.zeros(payload.nbytes, np.uint8))
    for parameter in [*net.parameters(), transposed]:
        assert parameter.is_leaf
        assert parameter.requires_grad
        assert not bool(parameter.any())


def test_results_of_inference_mode_are_assigned_too():
    with torch.inference_mode():
        one, two = torch.ones(3), torch.ones(2, 3).t()
    payload = Payload([one, two])
    assign_all(payload, np.zeros(payload.nbytes, np.uint8))
    assert not bool(one.any() or two.any())


def test_the_same_objects_come_back_in_the_same_containers():
    array, tensor = np.ones(3), torch.ones(3)
    value = OrderedDict(b=[array], a=(tensor, [], {}))
    payload = Payload(value)
    assert assign_all(payload, np.zeros(48 - 12, np.uint8)) is value
    assert value["b"][0] is array
    assert not array.any()
    assert not bool(tensor.any())


def test_containers_around_numbers_are_new_ones_of_the_same_kind():
    array = np.ones(2)
    value = defaultdict(list, z=Point(1.5, array), a=[2, (True, 1j)], m=[array])
    result = assign_all(Payload(value), image(Payload(value)))
    assert result == value
    assert result is not value
    assert type(result) is defaultdict
    assert list(result) == ["z", "a", "m"]
    assert type(result["z"]) is Point
    assert result["z"].y is array
    assert result["m"] is value["m"]


@pytest.mark.parametrize("number", [True, -(2**63), 2**63 - 1, -0.5, 3 - 4j])
def test_numbers_come_back_as_numbers_of_their_kind(number):
    payload = Payload({"n": type(number)(0)})
    result = assign_all(payload, image(Payload(number)))["n"]
    assert type(result) is type(number)
    assert result == number


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.float64(2.5), np.bool_(True), np.int8(-3)])
def test_numpy_scalars_keep_their_dtype(scalar):
    payload = Payload(scalar)
    assert payload.layout.tensors[0].dtype == scalar.dtype.name
    result = payload.result()
    assert type(result) is type(scalar)
    assert result == scalar


def test_read_only_arrays_are_replaced_by_fresh_ones():
    array = np.arange(4.0)
    array.flags.writeable = False
    expanded = np.broadcast_to(np.float32(3), (2, 2))
    payload = Payload([array, expanded])
    one, two = assign_all(payload, np.zeros(payload.nbytes, np.uint8))
    assert array.tolist() == [0, 1, 2, 3]
    assert one.tolist() == [0] * 4
    assert two.tolist() == [[0, 0], [0, 0]]
    assert one.flags.writeable
    assert two.flags.writeable


def test_arrays_of_foreign_byte_order_keep_it():
    array = np.arange(4, dtype=">i4")
    payload = Payload(array)
    assert image(payload).view("=i4").tolist() == [0, 1, 2, 3]
    assert assign_all(payload, np.arange(4, 8, dtype="=i4").view(np.uint8)) is array
    assert array.tolist() == [4, 5, 6, 7]


def test_tied_tensors_are_two_leaves():
    tensor = torch.arange(4.0)
    payload = Payload({"one": tensor, "two": tensor})
    assert payload.nbytes == 32
    assign_all(payload, np.zeros(32, np.uint8))
    assert not bool(tensor.any())


def test_a_view_is_the_memory_itself_and_read_only():
    one, two = np.arange(4.0), torch.arange(4.0, dtype=torch.float64)
    payload = Payload([one, two])
    assert np.shares_memory(payload.view(8, 32), one)
    assert np.shares_memory(payload.view(32, 40), two.numpy())
    assert payload.view(24, 40) is None
    assert not payload.view(0, 32).flags.writeable
    assert payload.view(64, 64).nbytes == 0


def test_leaves_are_named_by_their_path_larger_elements_first():
    value = {"b": np.float32(1), "a": [np.int8(1), 2.0, np.ones((2, 3), np.float32)], "c": {7: 1j}}
    names = [tensor.name for tensor in Payload(value).layout.tensors]
    assert names == ["['c'][7]", "['a'][1]", "['a'][2]", "['b']", "['a'][0]"]
    assert Payload(1.0).layout.tensors[0].name == "value"


def test_values_of_one_form_have_one_fingerprint():
    value = {"a": [np.ones(3, np.float32), 1.0], "b": (2,)}
    same = {"b": [np.int64(5)], "a": (torch.ones(3), np.zeros(()))}
    assert Payload(value).layout.fingerprint == Payload(same).layout.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        {"a": np.ones(3, np.float32)},
        {"b": np.ones(4, np.float32)},
        {"b": np.ones((3, 1), np.float32)},
        {"b": np.ones(3, np.int32)},
        {"b": [np.ones(3, np.float32)]},
        {"b": np.ones(3, np.float32), "c": 1},
        np.ones(3, np.float32),
    ],
)
def test_values_of_other_forms_have_other_fingerprints(other):
    value = {"b": np.ones(3, np.float32)}
    assert Payload(value).layout.fingerprint != Payload(other).layout.fingerprint


@pytest.mark.parametrize("value", [[], {}, (), {"a": [[], np.empty((3, 0))]}, torch.empty(0, 2)])
def test_nothing_at_all_is_allowed(value):
    payload = Payload(value)
    assert payload.nbytes == 0
    assert assign_all(payload, image(payload)) is value


def wrapper():
    from torch._subclasses.fake_tensor import FakeTensorMode  # which takes seconds

    with FakeTensorMode():
        return torch.ones(3)


def cycle():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"layers": [1, 2, None]}, ["value['layers'][2]", "NoneType"]),
        ("text", ["value must", "not str"]),
        ([np.array(["a"])], ["value[0]", "<U1"]),
        ([np.array([None])], ["value[0]", "object"]),
        ([np.array(["2020"], "datetime64[D]")], ["value[0]", "datetime64"]),
        ({"n": 2**63}, ["value['n']", "int64", "64 bits"]),
        ({"n": 10**5000}, ["value['n']", "int64"]),
        ([{1: 1, "a": 2}], ["value[0]", "int, str"]),
        ({(1, 2): 1}, ["keys", "tuple"]),
        ([{1, 2}], ["value[0]", "set"]),
        ([torch.ones(3).to_sparse()], ["value[0]", "sparse"]),
        ([torch.empty(3, device="meta")], ["value[0]", "meta"]),
        ([torch.ones(3, 1).expand(3, 4)], ["value[0]", "expanded"]),
        (cycle(), ["contains itself"]),
    ],
)
def test_what_cannot_be_an_image_is_refused_with_its_place(value, words):
    with pytest.raises(ParametersError) as caught:
        Payload(value)
    for word in words:
        assert word in str(caught.value)


def test_a_tensor_without_values_is_refused_with_its_place():
    with pytest.raises(ParametersError, match=r"value\[0\].*FakeTensor"):
        Payload([wrapper()])


@pytest.mark.parametrize(
    ("start", "stop", "nbytes"), [(0, 33, 33), (-1, 4, 5), (8, 4, 4), (0, 8, 7), (0, 8, 1)]
)
def test_ranges_that_do_not_fit_change_nothing(start, stop, nbytes):
    array = np.arange(4.0)
    payload = Payload(array)
    with pytest.raises(ValueError, match="expected the bytes"):
        payload.assign(start, stop, np.zeros(nbytes, np.uint8))
    with pytest.raises(ValueError, match="expected the bytes"):
        payload.copy_into(start, stop, np.zeros(nbytes, np.uint8))
    assert array.tolist() == [0, 1, 2, 3]


def test_torch_is_not_imported_for_arrays():
    code = (
        "import sys, numpy as np\n"
        "from dpwa.data.payload import Payload\n"
        "from dpwa.data.reduction import check_reducible, reduce_into\n"
        "payload = Payload([np.ones(3), 2.0])\n"
        "check_reducible(payload.layout, 'mean')\n"
        "one, two = np.ones(32, np.uint8), np.ones(32, np.uint8)\n"
        "reduce_into(one, [two], 'float64', 'mean', by=2)\n"
        ""
        "payload.assign(0, 32, one)\n"
        "payload.result()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", TENSOR_DTYPES)
def test_tensors_of_a_device_are_written_back_by_the_result(dtype):
    tensor = torch.ones(4, 6, device="cuda").to(dtype).t()
    payload = Payload([tensor, 1.0])
    source = image(payload)
    payload.assign(0, payload.nbytes, np.zeros_like(source))
    assert bool((tensor.cpu().to(torch.complex64) == 1).all())
    assert payload.result()[0] is tensor
    assert not bool(tensor.cpu().to(torch.complex64).any())
