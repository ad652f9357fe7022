"""Codecs and shards between two real nodes: what is merged, and how many bytes it takes."""

import contextlib

import numpy as np
import pytest
import torch
from support.nodes import config_of, eventually, is_connected
from torch import nn

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.policy import deadlines
from dpwa.wire import limits

ELEMENTS = 300_000  # two chunks, of which the second is not full
NBYTES = 4 * ELEMENTS
FACTOR = 0.5
COPIES = {"constant": {"value": 1.0}, "merge": "interpolate"}  # bit for bit
BYTES_PER_VALUE = {"none": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0 + 4 / 256, "topk": 0.06}


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
        case _:  # topk, too: a first fetch brings all
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
    expected = 4.0 if name == "topk" else BYTES_PER_VALUE[name]
    assert nbytes == pytest.approx(expected * ELEMENTS, rel=0.01)


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


# topk


def test_topk_brings_the_values_of_the_peer_over_some_rounds():
    net, peer = randn(1), randn(2)
    settings = {"codec": "topk", "topk": {"keep": 0.2}, **COPIES}
    with pair(net, peer, **settings) as (mine, theirs):
        bytes_of_a_merge(mine)
        assert torch.equal(net.weight, peer.weight)
        peer.weight.data.normal_(generator=torch.Generator().manual_seed(9))
        theirs.update_send()
        missing = [ELEMENTS]
        for _ in range(5):
            net.weight.data.zero_()
            nbytes = bytes_of_a_merge(mine)
            missing.append(int((net.weight != peer.weight).sum()))
            assert nbytes == pytest.approx(0.2 * 6 * ELEMENTS, rel=0.02)
    expected = [ELEMENTS * left // 5 for left in (5, 4, 3, 2, 1, 0)]
    assert missing == pytest.approx(expected, abs=20)


def test_topk_fetches_a_whole_snapshot_every_so_many_times():
    settings = {"codec": "topk", "topk": {"resync_every": 4}}
    with pair(randn(1), randn(2), **settings) as (mine, theirs):
        whole = []
        for _ in range(9):
            theirs.update_send()
            whole.append(bytes_of_a_merge(mine) >= NBYTES)
    assert whole == [True, False, False, False] * 2 + [True]


def test_topk_starts_anew_when_the_serving_node_does():
    config = config_of(2, transport="tcp", codec="topk", **COPIES)
    net = randn(1)
    with DpwaPyTorchAdapter(net, "w1", config) as mine:
        for seed in (2, 3):
            peer = randn(seed)
            with DpwaPyTorchAdapter(peer, "w2", config) as theirs:
                theirs.update_send()
                nbytes = [bytes_of_a_merge(mine) for _ in range(2)]
                assert nbytes[0] == NBYTES
                assert nbytes[1] < 0.1 * NBYTES
                assert torch.equal(net.weight, peer.weight)


def test_topk_starts_anew_after_a_fetch_that_broke_off():
    config = config_of(2, transport="tcp", codec="topk", **COPIES)
    net, peer = randn(1), randn(2)
    with (
        DpwaPyTorchAdapter(net, "w1", config) as mine,
        DpwaPyTorchAdapter(peer, "w2", {**config, "guard": "off"}) as theirs,
    ):
        theirs.update_send()
        bytes_of_a_merge(mine)
        assert bytes_of_a_merge(mine) < 0.1 * NBYTES
        peer.weight.data[-5] = float("nan")  # which the reader finds in the second chunk
        theirs.update_send()
        mine.update_send()
        assert mine.update_wait() is None
        peer.weight.data.normal_(generator=torch.Generator().manual_seed(9))
        theirs.update_send()
        assert bytes_of_a_merge(mine) == NBYTES
        assert torch.equal(net.weight, peer.weight)


def test_what_is_held_is_told_and_bounded():
    config = config_of(limits.MAX_HELD + 3, transport="tcp", codec="topk")
    elements = 10_000
    names = [node["name"] for node in config["nodes"]]
    own = config["nodes"][:1]
    with DpwaPyTorchAdapter(filled(1, elements), "w1", {**config, "nodes": own}) as server:
        server.update_send()
        with contextlib.ExitStack() as stack:
            for count, name in enumerate(names[1:], start=1):
                nodes = [*own, *(node for node in config["nodes"] if node["name"] == name)]
                reader = stack.enter_context(
                    DpwaPyTorchAdapter(filled(2, elements), name, {**config, "nodes": nodes})
                )
                bytes_of_a_merge(reader)
                assert report_of(reader)["memory"]["held_bytes"] == 4 * elements
                held = 4 * elements * min(count, limits.MAX_HELD)
                # What has just been sent is told twice for a moment: on its way, and as held.
                eventually(
                    lambda held=held: report_of(server)["memory"]["served_held_bytes"] == held
                )


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


def test_topk_sends_every_shard_whole_before_it_sends_differences():
    """What a reader never had of a peer is no part of a snapshot: it must not be merged."""
    net = filled(1)
    settings = {"codec": "topk", "fraction": 0.25, "topk": {"resync_every": 3}}
    with pair(net, filled(3), **settings) as (mine, _):
        nbytes = [bytes_of_a_merge(mine) for _ in range(4)]
        assert torch.equal(net.weight, torch.full_like(net.weight, 2.0))
        assert sum(nbytes) == NBYTES
        nbytes = [bytes_of_a_merge(mine) for _ in range(12)]
    whole = [size > 0.1 * NBYTES for size in nbytes]
    assert whole == [False] * 8 + [True] * 4
