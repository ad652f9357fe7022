"""Codecs and shards between two real nodes: what is merged, and how many bytes it takes."""

import contextlib

import numpy as np
import pytest
import torch
from support.nodes import config_of, eventually, is_connected
from torch import nn

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.policy import deadlines

ELEMENTS = 300_000  # two chunks, of which the second is not full
NBYTES = 4 * ELEMENTS
FACTOR = 0.5
COPIES = {"constant": {"value": 1.0}, "merge": "interpolate"}  # bit for bit
BYTES_PER_VALUE = {"none": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0 + 4 / 256}


@pytest.fixture(autouse=True)
def _no_deadline_is_learnt(monkeypatch):
    """A busy machine takes longer than before, and what comes too late is fetched again."""
    monkeypatch.setattr(deadlines, "DEVIATIONS", 1e6)


class Values(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)


def randn(seed, elements=ELEMENTS):
    return Values(torch.randn(elements, generator=torch.Generator().manual_seed(seed)))


def filled(value, elements=ELEMENTS):
    return Values(torch.full((elements,), float(value)))


@contextlib.contextmanager
def pair(one, two, **settings):
    usual = {"transport": "tcp", "timeout_ms": 30_000, "constant": {"value": FACTOR}}
    config = config_of(2, **{**usual, **settings})
    with (
        DpwaPyTorchAdapter(one, "w1", config) as mine,
        DpwaPyTorchAdapter(two, "w2", config) as theirs,
    ):
        # Rounds before there is a connection would leave the other one behind, at the beginning.
        eventually(lambda: is_connected(mine.connection, "w2"))
        theirs.update_send()
        yield mine, theirs


def report_of(gossip):
    return gossip.connection.node.report()


def received_by(gossip):
    return report_of(gossip)["bytes_received"]


def bytes_of_a_merge(gossip):
    """Run rounds until one merges; return how many bytes came meanwhile."""
    before = received_by(gossip)

    def attempt():
        gossip.update_send()
        return gossip.update_wait()

    eventually(attempt)
    return received_by(gossip) - before


def error_bound(name, values):
    """The largest error of each value after its way through a codec, as documented."""
    match name:
        case "fp16":
            return torch.clamp(values.abs() * 2**-11, min=2**-25)
        case "bf16":
            return values.abs() * 2**-8
        case "int8":
            blocks = nn.functional.pad(values, (0, -len(values) % 256)).view(-1, 256)
            absmax = blocks.abs().amax(dim=1, keepdim=True).expand_as(blocks)
            return absmax.reshape(-1)[: len(values)] / 254
        case _:
            return torch.zeros_like(values)


@pytest.mark.parametrize("name", BYTES_PER_VALUE)
def test_a_merge_is_as_exact_as_the_codec_is_documented_to_be(name):
    net, peer = randn(1), randn(2)
    own, values = net.weight.detach().clone(), peer.weight.detach().clone()
    with pair(net, peer, codec=name) as (mine, _):
        nbytes = bytes_of_a_merge(mine)
    error = (net.weight.detach() - (own + FACTOR * (values - own))).abs()
    bound = FACTOR * error_bound(name, values)
    assert bool((error <= bound * 1.0001 + 1e-6).all())
    assert nbytes == pytest.approx(BYTES_PER_VALUE[name] * ELEMENTS, rel=0.01)


def test_a_node_has_a_codec_of_its_own_and_a_link_has_one_before_that():
    config = config_of(3, transport="tcp", codec="none")
    config["nodes"][0]["codec"] = "bf16"
    config["nodes"][1]["codec"] = "fp16"
    config["nodes"][2]["codec"] = "int8"
    config["links"] = [{"between": ["w3", "w1"], "codec": "fp16"}]

    def bytes_per_value(server, reader):
        nodes = [node for node in config["nodes"] if node["name"] in (server, reader)]
        between = [link for link in config["links"] if set(link["between"]) == {server, reader}]
        with (
            DpwaPyTorchAdapter(
                randn(1), server, {**config, "nodes": nodes, "links": between}
            ) as theirs,
            DpwaPyTorchAdapter(
                randn(2), reader, {**config, "nodes": nodes, "links": between}
            ) as mine,
        ):
            theirs.update_send()
            return round(bytes_of_a_merge(mine) / ELEMENTS, 1)

    assert bytes_per_value("w2", reader="w1") == 2.0
    assert bytes_per_value("w3", reader="w2") == 1.0
    assert bytes_per_value("w2", reader="w3") == 2.0
    assert bytes_per_value("w1", reader="w3") == 2.0
    assert bytes_per_value("w3", reader="w1") == 2.0  # by the link, in both directions


# Shards


def changed_in_each_round(net, mine):
    """Which values each of four merges has changed, and how many bytes came with them."""
    found = []
    for _ in range(4):
        before = net.weight.detach().clone()
        nbytes = bytes_of_a_merge(mine)
        found.append(((net.weight != before).numpy(), nbytes))
    return found


@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize("elements", [ELEMENTS, 3 * 1024 * 1024 + 5])
def test_a_fraction_brings_another_shard_each_round_and_all_of_them_in_turn(codec, elements):
    net = filled(1, elements)
    with pair(net, filled(3, elements), codec=codec, fraction=0.25) as (mine, _):
        found = changed_in_each_round(net, mine)
        assert torch.allclose(net.weight, torch.full_like(net.weight, 2.0), rtol=0.01)
    shares = [changed.mean() for changed, _ in found]
    assert shares == pytest.approx([0.25] * 4, abs=0.1)
    assert np.sum([changed for changed, _ in found], axis=0).tolist() == [1] * elements
    whole = BYTES_PER_VALUE[codec] * elements
    assert [nbytes / whole for _, nbytes in found] == pytest.approx(shares, abs=0.01)


def test_a_fraction_holds_with_shared_memory_too():
    net = filled(1)
    with pair(net, filled(3), transport="shm", fraction=0.25) as (mine, _):
        found = changed_in_each_round(net, mine)
        assert received_by(mine) == 0
    assert [changed.mean() for changed, _ in found] == pytest.approx([0.25] * 4, abs=0.01)
    assert torch.equal(net.weight, torch.full_like(net.weight, 2.0))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_model_of_a_few_values_has_fewer_shards(transport):
    net = filled(1, elements=10)
    with pair(net, filled(3, elements=10), transport=transport, fraction=0.25) as (mine, _):
        bytes_of_a_merge(mine)
    assert torch.equal(net.weight, torch.full_like(net.weight, 2.0))


def test_a_shard_moves_the_clock_by_its_share():
    with pair(filled(1), filled(3), fraction=0.25, timeout_ms=5000) as (mine, theirs):
        for _ in range(99):
            theirs.update_send()
        for _ in range(60):  # not at the beginning any more
            mine.update_send()
        merge = None
        while merge is None:
            mine.update_send()
            before = mine.clock
            merge = mine.update_wait()
        share = 0.25 * FACTOR
        assert merge.peer_clock == 100
        assert mine.clock == pytest.approx(before + share * (100 - before), rel=1e-3)


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_weights_that_drift_alike_advance_as_far_as_they_drift(codec):
    """What a fetch does not bring must not hold a node back where its peer was before."""
    step, steps, nets = 0.02, 60, [randn(7), randn(7)]
    began = nets[0].weight.detach().clone()
    with pair(*nets, codec=codec, fraction=0.01) as nodes:
        for _ in range(steps):
            for gossip in nodes:
                gossip.update_send()
            for net in nets:
                net.weight.data.add_(step)
            merges = [gossip.update_wait() for gossip in nodes]
    assert any(merges)
    for net in nets:
        advanced = (net.weight.detach() - began).mean().item()
        assert advanced == pytest.approx(step * steps, rel=0.02)
