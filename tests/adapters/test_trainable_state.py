"""`state: trainable`: adapters move alone, on a frozen base that all nodes have alike."""

import contextlib
import json

import pytest
import safetensors.torch
import torch
from support.nodes import config_of, eventually, merge_of, refuses
from support.state_donors import (
    ALONE,
    adapter_of,
    are_equal,
    joined_beside,
    nodes,
    state_of,
    training,
    two_of,
)
from torch import nn

from dpwa.adapters.module_state import FrozenParameters, ModuleState
from dpwa.adapters.training_state import TrainingState
from dpwa.testing.proxy import TcpProxy

TRAINABLE = {**ALONE, "state": "trainable", "initial_state": "peers"}


class Lora(nn.Module):
    """A frozen layer with an adapter of low rank."""

    def __init__(self, seed, base, width, rank):
        super().__init__()
        torch.manual_seed(seed)
        self.a = nn.Parameter(torch.randn(rank, width))
        self.b = nn.Parameter(torch.randn(width, rank))
        torch.manual_seed(base)
        self.base = nn.Linear(width, width).requires_grad_(False)

    def forward(self, inputs):
        return self.base(inputs) + inputs @ self.a.T @ self.b.T


def model(seed, base=0, width=64, layers=2, rank=8):
    """Layers with adapters of one seed on a base of another, and a norm whose buffers count."""
    made = [Lora(10 * seed + index, 10 * base + index, width, rank) for index in range(layers)]
    norm = nn.BatchNorm1d(width)
    norm.running_mean.fill_(float(seed))
    norm.num_batches_tracked.fill_(seed)
    return nn.Sequential(*made, norm)


def adapter_bytes(net):
    """Size of what trains."""
    return sum(p.nbytes for p in net.parameters() if p.requires_grad)


def split(net):
    """What should move, and what should stay."""
    moves = {name for name, p in net.named_parameters() if p.requires_grad}
    moves |= {name for name, b in net.named_buffers() if b.is_floating_point()}
    state = state_of(net)
    return (
        {name: tensor for name, tensor in state.items() if name in moves},
        {name: tensor for name, tensor in state.items() if name not in moves},
    )


@contextlib.contextmanager
def counted(config):
    """The configurations of w1 and of w2, and a count of the bytes that w2 receives."""
    config = {**config, "transport": "tcp"}
    one, two = config["nodes"]
    with TcpProxy("127.0.0.1", one["port"]) as to_one, TcpProxy("127.0.0.1", two["port"]) as to_two:
        seen_by_one = {**config, "nodes": [one, {**two, "port": to_two.port}]}
        seen_by_two = {**config, "nodes": [{**one, "port": to_one.port}, two]}
        yield (
            seen_by_one,
            seen_by_two,
            lambda: to_one.counts.bytes_from_target + to_two.counts.bytes_to_target,
        )


@pytest.mark.parametrize(
    "size",
    [
        {"width": 1024, "rank": 64},  # 8 MB, and adapters of 1 MB
        pytest.param({"width": 2560, "layers": 8}, marks=pytest.mark.slow),  # 210 MB and 1.3 MB
    ],
)
def test_a_joiner_receives_the_adapter_and_leaves_its_base_alone(size):
    one, two = model(1, **size), model(2, **size)
    moved, (_, stays) = split(one)[0], split(two)
    assert not are_equal(split(two)[0], moved)
    with (
        counted(config_of(2, **TRAINABLE)) as (of_one, of_two, received),
        nodes(adapter_of(one, "w1", of_one)) as (first,),
        training(first),
    ):
        eventually(lambda: first.clock >= 1)
        with nodes(adapter_of(two, "w2", of_two)) as (second,):
            nbytes = received()
            assert second.connection.node.report()["state"]["donors"] == ["w1"]
            assert second.clock >= 1
    assert are_equal(split(two)[0], moved)
    assert are_equal(split(two)[1], stays)
    share = nbytes / adapter_bytes(one)
    print(f"base {sum(t.nbytes for t in stays.values()) / 1e6:.0f} MB: {share:.3f} of the adapter")
    assert 1.0 <= share <= 1.1


def test_a_joiner_with_another_base_is_told_once_and_starts_with_its_own(caplog):
    two = model(2, base=1)
    own = state_of(two)
    assert joined_beside(model(1), two, config_of(2, **TRAINABLE)) == 0
    assert are_equal(state_of(two), own)
    (text,) = [text for text in caplog.messages if "starts with its own model" in text]
    assert text.startswith("w2: this node starts with its own model")
    assert "the state of w1 differs (first difference: the frozen parameters: here 4 " in text
    assert "Load the same frozen parameters, in the same dtype, on all nodes" in text


def in_half(net):
    for layer in net[:2]:
        layer.base.half()
    return net


@pytest.mark.parametrize(
    ("two", "settings", "words"),
    [
        (model(2, base=1), {}, "the frozen parameters: here 4 tensors, 33280 bytes, digest "),
        (in_half(model(2)), {}, "there 4 tensors, 16640 bytes"),
        (model(2), {"state": "all"}, "`state: trainable` is set only here. Set it in the same way"),
    ],
    ids=["another base", "the base in another dtype", "only one node has it"],
)
def test_a_peer_that_does_not_fit_is_refused_by_name(two, settings, words, caplog):
    config = config_of(2, interpolation="constant", state="trainable", initial_state="own")
    one = model(1)
    own = split(one)[0]
    first = adapter_of(one, "w1", config)
    second = adapter_of(two, "w2", {**config, **settings})
    with nodes(first, second):
        eventually(lambda: refuses(first, second, "other_model"))
        for _ in range(3):
            refuses(first, second, "other_model")
    (text,) = [text for text in caplog.messages if "w1: peer w2 has a different model" in text]
    assert words in text
    assert are_equal(split(one)[0], own)


def test_equal_bases_gossip_as_ever():
    settings = {"interpolation": "constant", "state": "trainable", "initial_state": "own"}
    one, two = model(1), model(2)
    mean = {name: (a + split(two)[0][name]) / 2 for name, a in split(one)[0].items()}
    with two_of(one, two, **settings) as (first, second):
        merge_of(first, second)
    for name, tensor in split(one)[0].items():
        torch.testing.assert_close(tensor, mean[name])


def test_a_checkpoint_has_what_trains_and_goes_with_its_base_only(tmp_path, caplog):
    settings = {**ALONE, "state": "trainable", "initial_state": "own"}
    config = config_of(1, **settings, checkpoint={"dir": str(tmp_path), "every_steps": 1})
    net = model(1)
    with nodes(adapter_of(net, "w1", config)) as (node,):
        node.update_send()
        node.update_wait()
    (file,) = tmp_path.glob("*.safetensors")
    loaded = safetensors.torch.load_file(file)
    assert are_equal(dict(sorted(loaded.items())), dict(sorted(split(net)[0].items())))
    again, other = model(2), model(2, base=1)
    with nodes(adapter_of(again, "w1", config)) as (node,):
        assert node.updates == 1
    assert are_equal(split(again)[0], split(net)[0])
    with nodes(adapter_of(other, "w1", config)) as (node,):
        assert node.updates == 0
    assert "the checkpoint is kept, but not loaded (first difference: the frozen par" in caplog.text
    assert not are_equal(split(other)[0], split(net)[0])
    (record,) = map(json.loads, [path.read_text() for path in tmp_path.glob("*.json")])
    assert record["parts"]["model"]["kind"]["tensors"][0].startswith("frozen parameters: 4 ")


def state(net):
    return ModuleState(net, with_buffers=True, fits_frozen=True)


def add_in_place(net):
    with torch.no_grad():
        net[0].base.weight[3, 4] += 1


CHANGES = {
    "in place": add_in_place,
    "another tensor": lambda net: setattr(
        net[0].base, "weight", nn.Parameter(torch.zeros(64, 64), requires_grad=False)
    ),
    "loaded": lambda net: net.load_state_dict(model(1, base=1).state_dict()),
    "another dtype": lambda net: net[0].base.half(),
    "rows swapped": lambda net: net[0].base.weight.copy_(net[0].base.weight.flip(0)),
    "frozen": lambda net: net[0].a.requires_grad_(False),
    "unfrozen": lambda net: net[0].base.bias.requires_grad_(True),
    "renamed": lambda net: (
        setattr(net[0], "again", net[0].base.bias),
        delattr(net[0].base, "bias"),
        setattr(net[0].base, "bias", None),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_base_is_another_layout(change):
    net = model(1)
    found = state(net)
    before = found.layout
    found.refresh()
    assert found.layout is before
    change(net)
    found.refresh()
    assert found.layout.fingerprint != before.fingerprint
    assert found.layout.frozen != before.frozen
    assert found.layout.frozen == state(net).layout.frozen


def test_the_base_is_read_once_as_long_as_it_is_the_same(monkeypatch):
    reads = []
    described = FrozenParameters.described
    monkeypatch.setattr(
        FrozenParameters, "described", lambda self: (reads.append(1), described(self))[1]
    )
    net = model(1)
    found = state(net)
    for _ in range(3):
        found.refresh()
    net[0].a = nn.Parameter(torch.zeros_like(net[0].a))  # the module is walked again
    found.refresh()
    assert len(reads) == 1
    add_in_place(net)
    found.refresh()
    found.refresh()
    assert len(reads) == 2


DTYPES = (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.int8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_digest_is_of_values_whatever_dtype_and_memory(dtype):
    def frozen(values):
        return FrozenParameters([("one", values), ("empty", values[:0]), ("none", values[0, 0])])

    values = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).to(dtype)
    strided = values.t().contiguous().t()
    other = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 1.0]]).to(dtype)
    assert frozen(values).described() == frozen(strided).described()
    assert frozen(values).described() != frozen(other).described()


def test_a_parameter_that_shares_the_memory_of_one_that_trains_is_not_of_the_base():
    net = model(1)
    net.tied = nn.Parameter(net[0].a.detach(), requires_grad=False)
    assert state(net).layout.frozen == state(model(1)).layout.frozen
    with torch.no_grad():
        net[0].a += 1
    assert state(net).layout.frozen == state(model(1)).layout.frozen


def test_a_wrapper_is_no_other_base():
    net = model(1)
    plain, wrapped = state(net), state(nn.DataParallel(net))
    assert plain.layout == wrapped.layout


def test_buffers_that_are_kept_stay():
    net = model(1)
    gossiped = ModuleState(net, with_buffers=False, fits_frozen=True)
    names = {spec.name for spec in TrainingState(net, gossiped).capture()["model"].kind.tensors}
    assert names == {name for name, p in net.named_parameters() if p.requires_grad}
