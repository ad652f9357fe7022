"""The flat view of a module: laws of copying and merging, whatever the tensors look like."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpwa.adapters import module_state, tensor_merging, tensor_values
from dpwa.adapters.host_side import DeviceSide
from dpwa.adapters.module_state import ModuleState, state_tensors
from dpwa.adapters.tensor_values import TensorValues
from dpwa.data.kernels import are_finite
from dpwa.data.snapshot import MergeTerms
from dpwa.errors import ParametersError

TILE_BYTES = 64  # small tensors span several tiles
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]
TOLERANCES = dict(zip(DTYPES, [1e-12, 1e-5, 1e-2, 6e-2, 0.6], strict=True))

piece_sizes = st.sampled_from([TILE_BYTES, 16, 48, 160])
shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
factors = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.01, 0.99))
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    for module in (tensor_merging, tensor_values):
        monkeypatch.setattr(module, "TILE_BYTES", TILE_BYTES)


def strided(tensor, order):
    """The same values with the dimensions in another order in memory, as `channels_last` has."""
    order = [dimension % max(1, tensor.dim()) for dimension in order]
    order = list(dict.fromkeys([*order, *range(tensor.dim())]))[: tensor.dim()]
    inverse = [order.index(dimension) for dimension in range(tensor.dim())]
    return tensor.permute(order).contiguous().permute(inverse)


tensors = st.lists(
    st.tuples(shapes, st.sampled_from(DTYPES), st.lists(st.integers(0, 3)), st.booleans()),
    min_size=1,
    max_size=8,
)


def net_of(described, seed):
    generator = torch.Generator().manual_seed(seed)
    net = nn.Module()
    net.first = nn.Parameter(torch.randn(3, generator=generator))
    for index, (shape, dtype, order, is_buffer) in enumerate(described):
        value = strided(torch.randn(shape, generator=generator).to(dtype), order)
        if is_buffer:
            net.register_buffer(f"tensor{index}", value)
        else:
            net.register_parameter(f"tensor{index}", nn.Parameter(value))
    net.tied = net.first
    return net


def state_of(net):
    return ModuleState(net, with_buffers=True)


def snapshot_of(state):
    data = np.zeros(state.nbytes, np.uint8)
    assert state.start_copy(data, True).wait_complete()
    return data


def exact(state):
    """The values of all tensors, in float64."""
    return [entry.tensor.detach().double().clone() for entry in state.entries]


def bits(state):
    return snapshot_of(state).tobytes()


def pieces_of(state, piece_bytes=TILE_BYTES):
    return state.layout.pieces(state.nbytes, piece_bytes)


def expected_of(entries, own, peer, published, factor):
    for entry, mine, theirs, then in zip(entries, own, peer, published, strict=True):
        if factor == 0.0:
            yield entry, mine
        elif entry.is_buffer:
            yield entry, (1 - factor) * mine + factor * theirs
        else:
            yield entry, mine + factor * (theirs - then)


def assert_merged(expected):
    for entry, value in expected:
        tolerance = TOLERANCES[entry.tensor.dtype]
        torch.testing.assert_close(
            entry.tensor.detach().double(), value, rtol=tolerance, atol=4 * tolerance
        )


@given(tensors, seeds)
def test_a_snapshot_holds_every_tensor_row_by_row_at_its_offset(described, seed):
    state = state_of(net_of(described, seed))
    flat = torch.from_numpy(snapshot_of(state))
    for entry, spec, start in zip(
        state.entries, state.layout.tensors, state.layout.offsets, strict=True
    ):
        values = flat[start : start + spec.nbytes].view(entry.tensor.dtype).view(spec.shape)
        assert torch.equal(values.double(), entry.tensor.detach().double())


@given(tensors, factors, st.none() | factors, st.data())
def test_merging_matches_the_formula_in_whichever_ranges_the_bytes_come(
    described, factor, delta, data
):
    state, other = state_of(net_of(described, 1)), state_of(net_of(described, 2))
    peer, published = snapshot_of(other), snapshot_of(state)
    own_then, theirs = exact(state), exact(other)
    with torch.no_grad():
        for entry in state.entries:
            entry.tensor.copy_(entry.tensor.double() + 1)  # a local step since
    own = exact(state)
    terms = MergeTerms(factor) if delta is None else MergeTerms(factor, published, delta=delta)
    merge = state.merging(terms)
    pieces = pieces_of(state, data.draw(piece_sizes))
    cuts = sorted(
        data.draw(st.sets(st.integers(1, len(pieces) - 1)) if len(pieces) > 1 else st.just(set()))
    )
    for first, last in zip([0, *cuts], [*cuts, len(pieces)], strict=True):
        start, stop = pieces[first].start, pieces[last - 1].stop
        merge.merge_bytes(start, peer[start:stop])
    share = delta or 0.0
    base = [share * then + (1.0 - share) * now for then, now in zip(own_then, own, strict=True)]
    assert_merged(expected_of(state.entries, own, theirs, base, factor))
    base = own if delta is None else own_then
    distance = math.sqrt(
        sum(
            float((a - b).square().sum())
            for entry, a, b in zip(state.entries, theirs, base, strict=True)
            if not entry.is_buffer
        )
    )
    assert merge.consensus_distance == pytest.approx(distance, rel=1e-2, abs=1e-6)


@given(tensors, factors | st.just(0.0), st.none() | factors, st.booleans())
def test_buffers_have_a_factor_of_their_own_and_parameters_may_be_left_alone(
    described, factor, buffers, with_delta
):
    state, other = state_of(net_of(described, 1)), state_of(net_of(described, 2))
    before, peer = snapshot_of(state), snapshot_of(other)
    own, theirs = exact(state), exact(other)
    published = before.copy() if with_delta else None
    merge = state.merging(MergeTerms(factor, published, buffers))
    merge.merge_bytes(0, peer)
    measured = state_of(net_of(described, 1)).merging(MergeTerms(0.0))
    measured.merge_bytes(0, peer)
    for entry, mine, then in zip(state.entries, own, theirs, strict=True):
        f = (factor if buffers is None else buffers) if entry.is_buffer else factor
        if not (entry.is_buffer or factor):
            assert torch.equal(entry.tensor.detach().double(), mine)
        else:
            assert_merged(expected_of([entry], [mine], [then], [mine], f))
    assert merge.consensus_distance == measured.consensus_distance


@given(tensors, factors, piece_sizes)
def test_a_shard_changes_its_own_elements_only(described, factor, piece_bytes):
    state, other = state_of(net_of(described, 1)), state_of(net_of(described, 2))
    own, theirs, peer = exact(state), exact(other), snapshot_of(other)
    for piece in pieces_of(state, piece_bytes):
        before = snapshot_of(state)
        state.merging(MergeTerms(factor)).merge_bytes(piece.start, peer[piece.start : piece.stop])
        after = snapshot_of(state)
        for start, stop in ((0, piece.start), (piece.stop, state.nbytes)):
            assert after[start:stop].tobytes() == before[start:stop].tobytes()
    assert_merged(expected_of(state.entries, own, theirs, own, factor))


@given(tensors)
def test_factor_1_copies_bit_for_bit_even_over_what_is_not_finite(described):
    net = net_of(described, 1)
    state, other = state_of(net), state_of(net_of(described, 2))
    with torch.no_grad():
        for entry in state.entries:
            entry.tensor.fill_(math.nan)
    published = np.zeros(state.nbytes, np.uint8)
    assert not state.start_copy(published, True).wait_complete()
    for own_then in (None, published):
        with torch.no_grad():
            net.first.fill_(math.nan)
        state.merging(MergeTerms(1.0, own_then)).merge_bytes(0, snapshot_of(other))
        assert bits(state) == bits(other)


@given(tensors, st.data())
def test_one_value_that_is_not_finite_is_found(described, data):
    other = state_of(net_of(described, 2))
    entry = data.draw(st.sampled_from([e for e in other.entries if e.tensor.numel()]))
    place = data.draw(st.tuples(*(st.integers(0, size - 1) for size in entry.tensor.shape)))
    with torch.no_grad():
        entry.tensor[place] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    peer = np.zeros(other.nbytes, np.uint8)
    assert not other.start_copy(peer, True).wait_complete()
    assert other.start_copy(peer, False).wait_complete() is None
    found = [are_finite(peer[p.start : p.stop], p.dtype) for p in pieces_of(other)]
    assert found.count(False) == 1


def estimates_of(state, peer, published):
    """Return the distances that as many merges measure as have samples of their own."""
    estimates = []
    for _ in range(tensor_merging.SAMPLED_EVERY):
        merge = state.merging(MergeTerms(0.0, published))
        merge.merge_bytes(0, peer)
        estimates.append(merge.consensus_distance)
    return estimates


@pytest.mark.parametrize("with_delta", [False, True])
def test_the_distance_of_a_middling_model_is_estimated_from_shares_of_its_few_tiles(with_delta):
    layers = [nn.Linear(300, 250), nn.Linear(200, 100), nn.BatchNorm1d(7)]
    state, other = state_of(nn.Sequential(*layers)), state_of(copy.deepcopy(nn.Sequential(*layers)))
    with torch.no_grad():
        for entry in other.entries:
            entry.tensor.add_(torch.randn_like(entry.tensor))
    published, peer = snapshot_of(state), snapshot_of(other)
    theirs = [t for e, t in zip(state.entries, exact(other), strict=True) if not e.is_buffer]
    mine = [t for e, t in zip(state.entries, exact(state), strict=True) if not e.is_buffer]
    squared = sum(float((a - b).square().sum()) for a, b in zip(theirs, mine, strict=True))
    estimates = estimates_of(state, peer, published if with_delta else None)
    # All shares together are the whole; the last one has what does not divide.
    assert sum(e**2 for e in estimates) / len(estimates) == pytest.approx(squared, rel=1e-2)
    assert len(set(estimates)) == len(estimates)


@pytest.mark.parametrize("with_delta", [False, True])
def test_the_distance_of_a_large_model_is_estimated_from_another_sample_each_round(
    with_delta, monkeypatch
):
    monkeypatch.setattr(tensor_merging, "EXACT_ELEMENTS", 100)
    one, two = torch.zeros(16 * 64 + 5), torch.linspace(1, 3, 16 * 64 + 5)
    net = nn.ParameterList([nn.Parameter(one)])
    state, other = state_of(net), state_of(nn.ParameterList([nn.Parameter(two)]))
    published, peer = snapshot_of(state), snapshot_of(other)
    estimates = estimates_of(state, peer, published if with_delta else None)
    assert estimates == pytest.approx([float(two.norm())] * len(estimates), rel=0.1)
    assert len(set(estimates)) == len(estimates)
    shard = state.merging(MergeTerms(0.0))
    piece = pieces_of(state)[len(pieces_of(state)) // 2]
    shard.merge_bytes(piece.start, peer[piece.start : piece.stop])
    assert shard.consensus_distance == pytest.approx(float(two.norm()), rel=0.1)


def test_a_merge_of_buffers_alone_has_no_distance():
    state = state_of(nn.BatchNorm1d(16, affine=True))
    pieces = [p for p in pieces_of(state) if p.start >= 2 * 16 * 4]
    merge = state.merging(MergeTerms(0.5))
    for piece in pieces:
        merge.merge_bytes(piece.start, snapshot_of(state)[piece.start : piece.stop])
    assert merge.consensus_distance == 0.0


@given(tensors, st.booleans(), piece_sizes)
def test_the_distance_is_over_parameters_and_buffers_in_all_that_has_come(
    described, with_published, piece_bytes
):
    net = net_of(described, 1)
    state, other = state_of(net), state_of(net_of(described, 2))
    published, peer, own = snapshot_of(state), snapshot_of(other), exact(state)
    with torch.no_grad():
        for entry in state.entries:
            entry.tensor.copy_(entry.tensor.double() + 1)  # a local step since
    before, base = bits(state), published if with_published else None
    squared = sum(
        float((then - (mine if with_published and not entry.is_buffer else now)).square().sum())
        for entry, mine, now, then in zip(
            state.entries, own, exact(state), exact(other), strict=True
        )
    )
    expected = pytest.approx(math.sqrt(squared), rel=1e-5)
    assert state.distance(peer, 0, base) == expected
    pieces = pieces_of(state, piece_bytes)
    shards = [state.distance(peer[p.start : p.stop], p.start, base) for p in pieces]
    assert math.hypot(*shards) == expected
    tensors = [(entry.tensor, entry.is_buffer) for entry in state.entries]
    device_side = DeviceSide(tensor_merging.cut(tensors, state.layout))
    assert device_side.distance(peer, 0, base) == expected
    assert bits(state) == before
    assert peer.tobytes() == bits(other)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["weight", "running_var"])
def test_a_distance_to_what_is_not_finite_is_not_finite(name, value):
    net = nn.BatchNorm1d(30)
    state, peer = state_of(net), np.zeros(net.weight.nbytes * 4, np.uint8)
    assert math.isfinite(state.distance(peer, 0, None))
    with torch.no_grad():
        getattr(net, name)[20] = value
    assert not math.isfinite(state.distance(peer, 0, None))


def test_distances_that_overflow_are_infinite():
    net = nn.Linear(2, 2).double()
    state, peer = state_of(net), np.zeros(6 * 8, np.uint8)
    nn.init.constant_(net.weight, 1e200)
    assert state.distance(peer, 0, None) == math.inf
    merge = state.merging(MergeTerms(0.0))
    merge.merge_bytes(0, peer)
    assert merge.consensus_distance == math.inf


@given(tensors)
def test_values_are_the_parameters_and_those_of_a_snapshot_are_read_out_of_it(described):
    state, other = state_of(net_of(described, 1)), state_of(net_of(described, 2))
    own = [entry.tensor for entry in state.entries if not entry.is_buffer]
    values, peer = state.values(), snapshot_of(other)
    state.refresh()
    assert state.values() is values
    assert all(map(torch.Tensor.is_set_to, values.tensors, [t.detach() for t in own]))
    view, (copied, distance) = state.view_of(peer), state.values_of(peer)
    memory = range(peer.ctypes.data, peer.ctypes.data + peer.nbytes)
    assert all(t.data_ptr() in memory for t in view.tensors if t.numel())
    assert [t.stride() for t in copied.tensors] == [t.stride() for t in own]
    peer[:] = 0
    assert_same(copied, other.values())
    again = snapshot_of(state)
    assert distance == values.distance(other.values())
    assert state.values_of(again, into=copied) == (copied, 0.0)
    assert_same(copied, values)
    strange = TensorValues([torch.ones(7)])
    assert_same(state.values_of(again, into=strange)[0], values)
    assert bool((strange.tensors[0] == 1).all())


def assert_same(values, expected):
    for one, two in zip(values.tensors, expected.tensors, strict=True):
        assert torch.equal(one.double(), two.double())


@given(tensors)
def test_other_values_are_published_in_place_of_the_parameters(described):
    state, other = state_of(net_of(described, 1)), state_of(net_of(described, 2))
    before, data = bits(state), np.zeros(state.nbytes, np.uint8)
    assert state.start_copy(data, True, state.values()).wait_complete()
    assert data.tobytes() == before
    assert state.start_copy(data, True, other.values().clone()).wait_complete()
    assert bits(state) == before
    assert_same(state.view_of(data), other.values())
    with torch.no_grad():
        for mine, theirs in zip(state.entries, other.entries, strict=True):
            if not mine.is_buffer:
                mine.tensor.copy_(theirs.tensor)
    assert data.tobytes() == bits(state)  # with the buffers of this module


def test_other_values_that_are_published_are_checked():
    state = state_of(nn.Linear(5, 5))
    values, data = state.values().clone(), np.zeros(state.nbytes, np.uint8)
    values.tensors[1][3] = math.nan
    assert state.start_copy(data, True, values).wait_complete() is False
    assert state.start_copy(data, False, values).wait_complete() is None
    with pytest.raises(ParametersError, match="2 trainable parameters of Linear"):
        state.start_copy(data, True, TensorValues(values.tensors[:1]))


@given(tensors, factors, st.none() | factors)
def test_any_device_merges_like_the_host(described, factor, delta):
    """The way of devices that have no way of their own, which a CPU can go too."""
    one, two = (state_of(net_of(described, 1)) for _ in range(2))
    peer, published = snapshot_of(state_of(net_of(described, 2))), snapshot_of(one)
    terms = MergeTerms(factor) if delta is None else MergeTerms(factor, published, delta=delta)
    tensors = [(entry.tensor, entry.is_buffer) for entry in two.entries]
    device_side = DeviceSide(tensor_merging.cut(tensors, two.layout))
    merges = one.merging(terms), device_side.merging(terms, 1)
    for merge in merges:
        merge.merge_bytes(0, peer)
    assert bits(one) == bits(two)
    assert merges[0].consensus_distance == merges[1].consensus_distance
    copied = np.zeros(two.nbytes, np.uint8)
    assert device_side.start_copy(copied, check_finite=True).wait_complete()
    assert copied.tobytes() == bits(two)


def test_a_copy_on_the_host_is_ready_at_once():
    state = state_of(nn.Linear(2, 2))
    assert state.start_copy(np.zeros(state.nbytes, np.uint8), check_finite=True).is_ready()


def replace(net):
    net.weight = nn.Parameter(torch.ones(2, 3))


def replace_memory(net):
    net.weight.data = torch.ones(2, 3)


def transpose(net):
    net.weight.data = net.weight.data.t()


def cast_in_place(net):
    net.weight.data.fill_(1.0)  # half of a random number may stand for NaN
    net.half().weight.data = net.weight.data.view(torch.bfloat16)


def resize(net):
    net.weight.data = torch.ones(4, 4)


CHANGES = {
    "replaced": replace,
    "given other memory": replace_memory,
    "transposed": transpose,
    "cast": lambda net: net.half(),
    "cast in place": cast_in_place,
    "resized": resize,
    "frozen": lambda net: net.weight.requires_grad_(False),
    "unfrozen": lambda net: net.bias.requires_grad_(True),
    "a buffer replaced": lambda net: setattr(net, "mean", torch.ones(5)),
    "a buffer cast": lambda net: setattr(net, "count", net.count.float()),
    "a layer added": lambda net: net.add_module("more", nn.Linear(1, 1)),
    "a layer replaced": lambda net: net.add_module("child", nn.Linear(1, 1)),
    "a layer removed": lambda net: delattr(net, "child"),
    "a name given to another": lambda net: swap(net, "weight", "other"),
    "tied": lambda net: setattr(net, "other", net.weight),
    "memory shared": lambda net: setattr(net.other, "data", net.weight.data),
}


def swap(net, one, two):
    first, second = getattr(net, one), getattr(net, two)
    setattr(net, one, second)
    setattr(net, two, first)


def changeable():
    net = nn.Linear(3, 2)
    net.bias.requires_grad_(False)
    net.other = nn.Parameter(torch.ones(2, 3))
    net.child = nn.Linear(2, 2)
    net.register_buffer("mean", torch.zeros(5))
    net.register_buffer("count", torch.tensor(0))
    return net


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_module_is_noticed_and_another_generation(change):
    net = changeable()
    state = state_of(net)
    values, generation = state.values(), state.generation
    state.refresh()
    assert state.generation == generation
    change(net)
    state.refresh()
    is_same = change is CHANGES["a buffer replaced"]  # by one of the same kind
    assert (state.generation == generation) == is_same
    assert (state.values() is values) == is_same
    fresh = state_of(net)
    assert state.values().is_same_memory(fresh.values())
    assert state.layout == fresh.layout
    assert all(a.tensor is b.tensor for a, b in zip(state.entries, fresh.entries, strict=True))
    assert bits(state) == bits(fresh)
    peer = np.zeros(state.nbytes, np.uint8)
    state.merging(MergeTerms(1.0)).merge_bytes(0, peer)
    assert all(not bool(entry.tensor.any()) for entry in fresh.entries)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_module_that_is_walked_every_time_is_of_one_generation():
    net = nn.Sequential(nn.Linear(2, 4), nn.LazyBatchNorm1d(affine=False))
    state = state_of(net)
    values, generation = state.values(), state.generation
    state.refresh()
    assert state.generation == generation
    assert state.values() is values


def test_an_unchanged_module_is_not_walked_again(monkeypatch):
    state = state_of(nn.BatchNorm1d(3))
    monkeypatch.setattr(module_state.ModuleState, "_walk", lambda self: pytest.fail("walked"))
    state.refresh()


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_buffer_that_gets_its_memory_later_is_noticed():
    net = nn.Sequential(nn.Linear(2, 4), nn.LazyBatchNorm1d(affine=False))
    state = state_of(net)
    assert len(state.entries) == 2
    net(torch.ones(3, 2))
    state.refresh()
    assert [entry.name for entry in state.entries][2:] == ["1.running_mean", "1.running_var"]


def test_tensors_keep_their_identity_and_autograd_notices_a_merge():
    net = nn.Linear(3, 3)
    state = state_of(net)
    places = [(id(p), p.data_ptr()) for p in net.parameters()]
    loss = (net.weight * net.weight).sum()
    state.merging(MergeTerms(0.5)).merge_bytes(0, np.zeros(state.nbytes, np.uint8))
    assert [(id(p), p.data_ptr()) for p in net.parameters()] == places
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@given(shapes, st.lists(st.integers(0, 3)), st.data())
def test_boxes_cover_any_range_row_by_row(shape, order, data):
    tensor = strided(torch.arange(float(math.prod(shape))).reshape(shape), order)
    start, stop = sorted(data.draw(st.integers(0, tensor.numel())) for _ in range(2))
    if start == stop:
        return
    boxes = list(tensor_merging.boxes(tensor, start, stop))
    values = torch.cat([box.reshape(-1) for box in boxes])
    assert torch.equal(values, torch.arange(float(start), float(stop)))
    assert len(boxes) <= max(1, 2 * len(shape))


# Overlapping tensors


def views(*slices, shape=(8,), registers=False):
    """A module whose parameters are these views of one buffer."""
    net, memory = nn.Module(), torch.zeros(shape)
    net.apart = nn.Parameter(torch.zeros(3))
    for number, view in enumerate(slices):
        net.register_parameter(f"p{number}", nn.Parameter(view(memory)))
    if registers:
        net.register_buffer("flat", memory)
    return net


OVERLAPS = {  # how parameters share memory, and how many elements there are in all
    "the same twice": (lambda: views(lambda m: m, lambda m: m), 8),
    "transposed": (lambda: views(lambda m: m, lambda m: m.t(), shape=(2, 4)), 8),
    "one within": (lambda: views(lambda m: m[2:5], lambda m: m, lambda m: m[1:3]), 8),
    "in part": (lambda: views(lambda m: m[:5], lambda m: m[3:]), 8),
    "in part, by rows": (
        lambda: views(lambda m: m[:2], lambda m: m.flatten()[3:], shape=(3, 4)),
        12,
    ),
    "in part, with gaps": (lambda: views(lambda m: m[::2], lambda m: m[1:5]), 6),
    "side by side": (lambda: views(lambda m: m[:3], lambda m: m[3:]), 8),
    "in turns": (lambda: views(lambda m: m[::2], lambda m: m[1::2]), 8),
    "columns": (lambda: views(lambda m: m[:, :2], lambda m: m[:, 1:], shape=(4, 3)), 12),
    "a flat buffer": (lambda: views(lambda m: m[:3], lambda m: m[3:6], registers=True), 8),
}


@pytest.mark.parametrize("kind", OVERLAPS)
def test_each_place_in_memory_is_merged_and_handed_on_once(kind):
    make, elements = OVERLAPS[kind]
    net, other = make(), make()
    with torch.no_grad():
        for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
            mine.fill_(1.0)
            theirs.fill_(3.0)
        for mine, theirs in zip(net.buffers(), other.buffers(), strict=True):
            mine[6:], theirs[6:] = 1.0, 3.0
    state = state_of(net)
    assert state.layout == state_of(other).layout
    published = snapshot_of(state)
    state.merging(MergeTerms(0.5, published)).merge_bytes(0, snapshot_of(state_of(other)))
    for name, tensor in net.state_dict().items():
        assert bool((tensor == 2.0).all()), name
    handed_on = list(state_tensors(net))
    assert sum(tensor.numel() for _, tensor in handed_on) == 3 + elements
    assert len(dict(handed_on)) == len(handed_on)
    assert state.contents["elements"] == 3 + elements


# Constants


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_a_mask_is_neither_judged_nor_merged_nor_measured(dtype, value):
    def masked(fill):
        net = nn.BatchNorm1d(4)
        nn.init.constant_(net.running_mean, fill)
        mask = torch.full((3, 3), value).triu(1).to(dtype)
        net.register_buffer("mask", mask.nan_to_num(0.0, posinf=math.inf) if fill < 0 else mask)
        return net

    net, other = masked(0.5), masked(1.0)
    state, peer = state_of(net), state_of(other)
    data = np.zeros(peer.nbytes, np.uint8)
    before = net.mask.clone().view(torch.uint8).tolist()
    assert state.start_copy(np.zeros(state.nbytes, np.uint8), True).wait_complete()
    assert peer.start_copy(data, True).wait_complete()
    for piece in pieces_of(peer):
        values = data[piece.start : piece.stop]
        assert are_finite(values, piece.dtype, piece.start, state.spared)
    assert state.distance(data, 0, None) == pytest.approx(1.0)
    state.merging(MergeTerms(0.5)).merge_bytes(0, data)
    assert net.mask.view(torch.uint8).tolist() == before
    assert net.running_mean.tolist() == [0.75] * 4


def test_a_statistic_that_is_no_more_finite_is_judged_beside_a_mask():
    net = nn.BatchNorm1d(4)
    net.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    state, data = state_of(net), np.zeros(4 * 4 * 4 + 8, np.uint8)
    assert state.start_copy(data, True).wait_complete()
    net.running_var[1] = math.inf
    assert not state.start_copy(data, True).wait_complete()
    pieces = [(data[p.start : p.stop], p.dtype, p.start) for p in pieces_of(state)]
    assert not all(are_finite(*piece, state.spared) for piece in pieces)


def test_what_an_observer_has_not_seen_yet_is_left_until_both_have():
    def observing(value):
        net = nn.Linear(1, 1)
        net.register_buffer("least", torch.tensor([value]))
        return net

    one, two = observing(math.inf), observing(2.0)
    for own, peer in ((one, two), (two, one)):
        data = np.zeros(12, np.uint8)
        state_of(peer).start_copy(data, False).wait_complete()
        state_of(own).merging(MergeTerms(0.5)).merge_bytes(0, data)
    assert (one.least.item(), two.least.item()) == (math.inf, 2.0)
