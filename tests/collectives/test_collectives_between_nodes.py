"""What collectives compute, between nodes of one process that are open all the time."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.collective_nodes import collective_nodes, met_nodes, rank_of
from support.examples import examples
from support.nodes import at_once

from dpwa.collectives.entries import INLINE_BYTES
from dpwa.collectives.exchange import MIN_PIECE_BYTES
from dpwa.data.reduction import OPS
from dpwa.errors import ParametersError, UnknownNameError, UserError

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int32", "int64", "uint8")
TENSORS = ("float32", "float64", "bfloat16")
SIZES = (0, 1, 7, 1000, INLINE_BYTES // 4 - 1, INLINE_BYTES // 4, INLINE_BYTES // 4 + 1)
LARGE_SIZES = (*SIZES, MIN_PIECE_BYTES // 4 + 1, 100_003)
WORLDS = [(1, "auto"), (2, "auto"), (2, "tcp"), (4, "tcp"), (5, "auto")]
MORE_WORLDS = [(3, "auto"), (7, "tcp"), (8, "auto")]
DTYPES = {
    "sum": (*FLOATS, *INTEGERS),
    "mean": FLOATS,
    "max": (*FLOATS, *INTEGERS, "bool"),
    "min": (*FLOATS, *INTEGERS, "bool"),
}
SMALLEST = 2.0**-24  # of float16: below, the spacing of numbers does not shrink any more


# Nested values: the same form on all nodes, numbers drawn for each


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


# What is computed with them


@pytest.fixture(
    scope="module",
    params=[*WORLDS, *(pytest.param(world, marks=pytest.mark.slow) for world in MORE_WORLDS)],
    ids=lambda world: f"{world[0]}-{world[1]}",
)
def nodes(request):
    count, transport = request.param
    with met_nodes(count, transport=transport) as opened:
        yield opened


@pytest.fixture(scope="module", params=["auto", "tcp"])
def three(request):
    with met_nodes(3, transport=request.param) as opened:
        yield opened


def of_form(form, seed, node):
    return made(form, np.random.default_rng([seed, rank_of(node)]))


def assert_same_bits(values):
    first, *others = [flat(value) for value in values]
    for other in others:
        assert len(other) == len(first)
        for mine, theirs in zip(first, other, strict=True):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            assert mine.tobytes() == theirs.tobytes()


def assert_is_reduced(form, op, brought, results):
    """Every rounding is at most half a spacing of a partial sum, which is at most sum(abs)."""
    count = len(brought)
    for index, epsilon in enumerate(epsilons(form)):
        values = [leaves[index] for leaves in brought]
        wanted, result = reference(op, values), results[index]
        if epsilon == 0.0 or op in ("max", "min"):
            assert np.array_equal(result, wanted)
        else:
            total = np.sum([np.abs(value.astype(np.float64)) for value in values], axis=0)
            error = np.abs(result.astype(np.float64) - wanted)
            assert np.all(error <= count * epsilon * total + SMALLEST), (op, form)


# all_reduce


@examples(25)
@given(data=st.data(), op=st.sampled_from(OPS), seed=st.integers(0, 2**32))
def test_any_nested_value_is_reduced_to_the_same_bits_everywhere(nodes, data, op, seed):
    form = data.draw(forms(DTYPES[op], LARGE_SIZES))
    brought = [flat(of_form(form, seed, nodes[name])) for name in nodes.names]

    def reduce(node):
        value = of_form(form, seed, node)
        result, contributors = node.all_reduce(value, op)
        assert contributors == len(nodes.names)
        assert shape_of(result) == shape_of(value)
        return result

    results = list(nodes.each(reduce).values())
    assert_same_bits(results)
    assert_is_reduced(form, op, brought, flat(results[0]))


@pytest.mark.parametrize(
    ("op", "nbytes"),
    [
        ("sum", INLINE_BYTES),
        ("mean", INLINE_BYTES + 4),
        ("min", MIN_PIECE_BYTES - 4),
        ("sum", 4 * MIN_PIECE_BYTES + 4),
        ("max", 1_000_004),
        ("sum", 3_000_000),
        ("mean", 3_000_004),
    ],
)
def test_arrays_of_any_size_are_reduced_in_place(nodes, op, nbytes):
    def brought(node):
        return np.random.default_rng(rank_of(node)).normal(size=nbytes // 4).astype(np.float32)

    def reduce(node):
        value = brought(node)
        result, contributors = node.all_reduce(value, op)
        assert result is value
        assert contributors == len(nodes.names)
        return value

    values = [brought(nodes[name]).astype(np.float64) for name in nodes.names]
    results = list(nodes.each(reduce).values())
    assert_same_bits(results)
    bound = len(values) * np.finfo(np.float32).eps * np.abs(values).sum(axis=0)
    assert np.all(np.abs(results[0] - reference(op, values)) <= bound)


def test_many_leaves_of_different_dtypes(nodes):
    def reduce(node):
        rank = rank_of(node)
        value = {
            f"{index:04}": torch.full((index % 7, 3), rank + index, dtype=torch.float32)
            if index % 2
            else np.full(index % 5, rank + index, np.float16)
            for index in range(1000)
        }
        node.all_reduce(value, "max")
        return value

    for value in nodes.each(reduce).values():
        for index, leaf in enumerate(value.values()):
            assert (np.asarray(leaf) == len(nodes.names) - 1 + index).all()


def test_bfloat16_tensors_are_added_up_in_float32_and_rounded_once(nodes):
    def reduce(node):
        value = torch.full((50_000,), 1.0 if rank_of(node) == 0 else 2.0**-8, dtype=torch.bfloat16)
        node.all_reduce(value)
        return value

    others = len(nodes.names) - 1
    wanted = torch.tensor(1.0 + others * 2.0**-8).to(torch.bfloat16)
    for value in nodes.each(reduce).values():
        assert (value == wanted).all()


def test_not_a_number_comes_out_wherever_it_came_in(three):
    def reduce(node):
        value = np.arange(5000.0)
        value[rank_of(node)] = np.nan
        return node.all_reduce(value, "max")[0]

    for value in three.each(reduce).values():
        assert np.isnan(value[:3]).all()
        assert np.array_equal(value[3:], np.arange(3.0, 5000.0))


def test_numbers_come_back_as_numbers(three):
    results = three.each(lambda node: node.all_reduce([rank_of(node), float(rank_of(node))])[0])
    for result in results.values():
        assert result == [3, 3.0]
        assert [type(number) for number in result] == [int, float]


def test_a_value_without_elements_is_nothing_to_reduce(three):
    for value in ([], {}, np.empty(0), (np.empty((3, 0)), [])):
        results = three.each(lambda node, value=value: node.all_reduce(value))
        assert [contributors for _, contributors in results.values()] == [3, 3, 3]


@pytest.mark.parametrize("size", [10, 4000, 200_000])
def test_the_same_memory_twice_is_reduced_once_each(nodes, size):
    """All leaves are read before any is written, as with the tied weights of a model."""

    def reduce(node):
        memory = np.full(size, 1.0 + rank_of(node))
        node.all_reduce([memory, memory[size // 3 :], memory])
        return memory

    count = len(nodes.names)
    for memory in nodes.each(reduce).values():
        assert (memory == count * (count + 1) / 2).all()


def test_large_after_small_after_large(nodes):
    """Images are used again, and grow."""
    for size in (100_000, 3, 300_000, 5000, 0, 300_000):
        wanted = float(sum(range(len(nodes.names))))
        results = nodes.each(
            lambda node, size=size: node.all_reduce(np.full(size, float(rank_of(node))))[0]
        )
        for result in results.values():
            assert result.shape == (size,)
            assert (result == wanted).all()


# broadcast


@pytest.mark.parametrize("size", [1, 5000, 300_000])
def test_everybody_gets_the_value_of_any_root(nodes, size):
    for root in nodes.names:

        def cast(node, root=root):
            value = {"x": np.full(size, rank_of(node)), "n": float(rank_of(node))}
            result = node.broadcast(value, root)
            assert result["x"] is value["x"]
            return result

        wanted = rank_of(nodes[root])
        for result in nodes.each(cast).values():
            assert (result["x"] == wanted).all()
            assert result["n"] == wanted


@examples(15)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_nested_value_is_broadcast_bit_by_bit(three, data, seed):
    form = data.draw(forms((*FLOATS, *INTEGERS, "bool", "complex64"), LARGE_SIZES))
    root = data.draw(st.sampled_from(three.names))
    wanted = of_form(form, seed, three[root])
    results = three.each(lambda node: node.broadcast(of_form(form, seed, node), root))
    assert_same_bits([wanted, *results.values()])


# all_gather


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=10),
        st.binary(max_size=10),
        st.sampled_from([INLINE_BYTES - 6, INLINE_BYTES, 70_000]).map(bytes),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 99)), inner, max_size=4),
    ),
    max_leaves=8,
)


@examples(20)
@given(data=st.data())
def test_objects_of_any_kind_are_gathered(nodes, data):
    objects = {name: data.draw(PLAIN) for name in nodes.names}
    for gathered in nodes.each(lambda node: node.all_gather(objects[node.name])).values():
        assert gathered == objects
        assert list(gathered) == list(nodes.names)


@pytest.mark.parametrize("sizes", [(0, 1, 2), (0, 2000, 400_000), (400_000, 400_001, 3)])
def test_arrays_and_tensors_are_gathered_whatever_their_sizes(three, sizes):
    def gather(node):
        size = sizes[rank_of(node)]
        array = np.arange(size, dtype=np.float32)
        return node.all_gather([array, torch.full((size,), 2.5, dtype=torch.bfloat16)])

    for gathered in three.each(gather).values():
        for size, (array, tensor) in zip(sizes, gathered.values(), strict=True):
            assert np.array_equal(array, np.arange(size, dtype=np.float32))
            assert tensor.dtype == torch.bfloat16
            assert tensor.tolist() == [2.5] * size
            array += 1  # it belongs to the caller


# barrier, and who takes part


def test_nobody_leaves_a_barrier_before_all_have_come(three):
    come = []

    def meet(node):
        for step in range(20):
            come.append(step)
            node.barrier()
            assert come.count(step) == 3
            node.barrier()

    three.each(meet)


def test_everybody_knows_who_takes_part(nodes):
    for index, name in enumerate(nodes.names):
        node = nodes[name]
        assert (node.name, node.rank, node.world_size) == (name, index, len(nodes.names))
        assert node.members == nodes.names


def test_nothing_goes_over_the_network_on_one_host_unless_that_is_asked_for(three):
    def reduce(node):
        node.all_reduce(np.ones(100_000))  # until here, somebody may not have mapped the others
        before = node.collectives.report()["pulled_bytes"]
        node.all_reduce(np.ones(100_000))
        report = node.collectives.report()
        return report["members"], report["pulled_bytes"] - before

    for members, pulled_bytes in three.each(reduce).values():
        assert members[""] == list(three.names)
        third = 800_000 / 3
        wanted = {"auto": 0, "tcp": 4 * third}[three.config["transport"]]
        assert pulled_bytes == pytest.approx(wanted, rel=0.25)  # shards are of whole pieces


# what the user does wrong, alone: nobody else notices


@pytest.mark.parametrize(
    "call",
    [
        lambda node: node.all_reduce(np.array(["text"])),
        lambda node: node.all_reduce(None),
        lambda node: node.all_reduce({"a": 1, 2: 3}),
        lambda node: node.all_reduce(np.ones(3, bool), "sum"),
        lambda node: node.all_reduce([1, 2], "mean"),
        lambda node: node.all_gather(object()),
        lambda node: node.all_gather({1, 2}),
    ],
)
def test_what_cannot_be_reduced_or_sent_is_refused_at_once(three, call):
    with pytest.raises(ParametersError):
        call(three["w1"])
    assert three.each(lambda node: node.all_reduce(1)[0]) == dict.fromkeys(three.names, 3)


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf")])
def test_impossible_timeouts_are_refused_at_once(three, timeout_s):
    node = three["w1"]
    calls = [
        lambda: node.barrier(timeout_s),
        lambda: node.broadcast(1, "w1", timeout_s),
        lambda: node.all_reduce(1, timeout_s=timeout_s),
        lambda: node.all_gather(1, timeout_s),
        lambda: node.join(timeout_s),
    ]
    for call in calls:
        with pytest.raises(UserError, match="timeout_s must be above 0"):
            call()
    assert three.each(lambda node: node.all_reduce(1)[0]) == dict.fromkeys(three.names, 3)


def test_operations_and_roots_that_there_are_not_are_refused_at_once(three):
    with pytest.raises(UserError, match="op must be one of sum, mean, max, min, not 'product'"):
        three["w1"].all_reduce(1, "product")
    with pytest.raises(UnknownNameError, match=r"no node is named 'w9' \(known: w1, w2, w3\)"):
        three["w1"].broadcast(1, "w9")
    assert three.each(lambda node: node.all_reduce(1)[0]) == dict.fromkeys(three.names, 3)


# tags


def test_collectives_of_different_tags_go_on_at_the_same_time():
    tags = ["", "a", "b", "c"]

    def work(node, tag, size):
        for step in range(15):
            value = np.full(size, rank_of(node) + step, np.float64)
            result, contributors = node.all_reduce(value, tag=tag)
            assert contributors == 3
            assert (result == 3 + 3 * step).all()

    with collective_nodes(3, threads=len(tags)) as nodes:
        futures = [
            nodes.begin(name, work, tag, size)
            for name in nodes.names
            for tag, size in zip(tags, (1, 5000, 200_000, 20_000), strict=True)
        ]
        for future in futures:
            future.result(60)


def test_calls_of_one_tag_from_several_threads_take_turns(three):
    """Which thread's turn it is does not matter, as all call the same."""
    done = []

    def work(node):
        at_once([lambda: done.append(node.all_reduce(1.0, tag="turns"))] * 4)

    three.each(work)
    assert done == [(3.0, 3)] * 12


def test_tags_that_are_too_long_or_too_many_are_refused():
    with collective_nodes(1) as nodes:
        node = nodes["w1"]
        with pytest.raises(UserError, match="a tag may have at most 64 characters"):
            node.barrier(tag="x" * 65)
        node.barrier(tag="x" * 64)
        for index in range(63):
            node.barrier(tag=f"{index}")
        with pytest.raises(UserError, match="at most 64 tags"):
            node.barrier(tag="one too many")
        node.barrier(tag="0")
