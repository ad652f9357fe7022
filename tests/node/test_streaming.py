"""Snapshots that come in pieces: all of one is merged or nothing, and the same as a whole one."""

import contextlib
import json
import random
import threading
import time

import numpy as np
import pytest
import torch
import zmq
from support.imposters import imposter
from support.nodes import config_of, eventually, is_connected, merge_of, status_of
from support.ports import needs_ipv6
from support.processes import ended, start
from support.requests import fetch_of, header_of
from support.times import at_most
from torch import nn

from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.data.checksum import checksum
from dpwa.data.codecs import codec
from dpwa.transport import sockets
from dpwa.wire import limits
from dpwa.wire.messages import Chunk, decode, encode

TIMEOUT_MS = 1000
PIECES = 5
PIECE_ELEMENTS = limits.CHUNK_BYTES // 4
LARGE_ELEMENTS = 16 * 1024 * 1024


class Values(nn.Module):
    """One tensor of so many equal values."""

    def __init__(self, elements, value):
        super().__init__()
        self.weight = nn.Parameter(torch.full((elements,), float(value)))


class Mixed(nn.Module):
    """Tensors large and tiny, channels last and transposed, of three dtypes, and buffers."""

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def randn(*shape):
            return torch.randn(*shape, generator=generator)

        images = randn(64, 96, 9, 7).to(memory_format=torch.channels_last)
        self.images = nn.Parameter(images)
        self.many = nn.ParameterList(randn(index % 7 + 1) for index in range(500))
        self.turned = nn.Parameter(randn(700, 900).t())
        self.narrow = nn.Parameter(randn(300_000).bfloat16())
        self.wide = nn.Parameter(randn(1001).double())
        self.register_buffer("mean", randn(300))


def state_of(net):
    return [tensor.detach().clone() for tensor in (*net.parameters(), *net.buffers())]


def assert_same(net, state):
    found = state_of(net)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, state, strict=True))


def outcomes_of(gossip, peer="w2"):
    return status_of(gossip.connection, peer)["outcomes"]


@contextlib.contextmanager
def pair(one, two, config):
    with (
        DpwaPyTorchAdapter(one, "w1", config) as mine,
        DpwaPyTorchAdapter(two, "w2", config) as theirs,
    ):
        yield mine, theirs


# All or nothing


class Half:
    """A peer that announces a snapshot of 5 pieces, and sends 3 of them or worse ones."""

    def __init__(self, ending, net, may_go_on):
        self._ending, self._may_go_on = ending, may_go_on
        state = ModuleState(net, with_buffers=True)
        self._data = np.empty(state.nbytes, np.uint8)
        state.start_copy(self._data, False).wait_complete()
        if ending == "not finite":
            self._data.view(np.float32)[2 * PIECE_ELEMENTS + 5] = np.nan
        self._pieces = state.layout.pieces(state.nbytes, limits.CHUNK_BYTES)
        assert len(self._pieces) == PIECES
        self._codec = codec(codec_of(ending))
        self.bytes_sent = 0
        self.has_sent = threading.Event()

    def answer(self, frames):
        message, _ = decode(frames)
        if message.type == "fetch":
            header = header_of(
                request=message.request, nbytes=self._data.nbytes, codec=self._codec.name
            )
            yield [encode(header)]
            yield self._chunk(message.request, 0)
            yield self._chunk(message.request, 1)
            self._may_go_on.wait(30)
            yield self._chunk(message.request, 2)
            self.has_sent.set()

    def _chunk(self, request, index):
        piece = self._pieces[index]
        payload = self._codec.encode(self._data[piece.start : piece.stop], piece.dtype)
        total = checksum(payload)
        if index == 2 and self._ending == "corrupted":
            total += 1
        if index == 2 and self._ending == "undecodable":
            payload = payload[:-1]
            total = checksum(payload)
        self.bytes_sent += len(payload)
        return [encode(Chunk(request=request, index=index, checksum=total)), payload]


def codec_of(ending):
    return "int8" if ending == "undecodable" else "none"


OUTCOMES = {
    "silence": "timed_out",
    "closed": "lost",
    "corrupted": "misbehaved",
    "not finite": "diverged",
    "undecodable": "misbehaved",
}


@pytest.mark.parametrize("is_waiting", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("ending", OUTCOMES)
def test_what_does_not_come_whole_is_not_merged_at_all(ending, is_waiting):
    net = Values(PIECES * PIECE_ELEMENTS, 0)
    net.weight.data.normal_(generator=torch.Generator().manual_seed(3))
    before = state_of(net)
    timeout_ms = TIMEOUT_MS if ending == "silence" else 20_000
    settings = {"codec": codec_of(ending), "timeout_ms": timeout_ms}
    config = config_of(2, transport="tcp", **settings)
    may_go_on = threading.Event()
    half = Half(ending, Values(PIECES * PIECE_ELEMENTS, 5), may_go_on)
    with (
        contextlib.ExitStack() as peer,
        DpwaPyTorchAdapter(net, "w1", opened(peer, half.answer, config)) as gossip,
    ):
        gossip.update_send()
        deadline = time.monotonic() + timeout_ms / 1000
        seen = []
        if is_waiting:

            def look():
                seen.append(torch.equal(net.weight, before[0]))
                may_go_on.set()

            threading.Timer(0.1, look).start()  # two pieces have come
        else:
            may_go_on.set()
            eventually(lambda: bytes_received(gossip) == half.bytes_sent and half.has_sent.is_set())
        closing = threading.Thread(target=lambda: half.has_sent.wait(60) and peer.close())
        if ending == "closed":
            closing.start()
        assert gossip.update_wait() is None
        assert all(seen)
        assert_same(net, before)
        assert time.monotonic() < deadline + at_most(0.1)
        if ending == "closed":
            closing.join()
        time.sleep(0.1)
        assert outcomes_of(gossip) == {OUTCOMES[ending]: 1}
        assert gossip.connection.node.report()["merges"] == 0
        assert_same(net, before)


def opened(stack, answer, config):
    """Let an imposter be w2 until the stack is closed; return the configuration."""
    stack.enter_context(imposter(config["nodes"][1]["port"], answer))
    return config


def bytes_received(gossip):
    return gossip.connection.node.report()["bytes_received"]


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_peer_killed_in_mid_stream_leaves_the_parameters_as_they_were(kills):
    rng = random.Random(kills)
    config = config_of(
        2, transport="tcp", timeout_ms=3000, constant={"value": 0.25}, repeat="merge"
    )
    # So slow that the end of a stream is not there before the kill, on a busy machine either.
    slow = {"max_upload_mbps": 8 * 4e-6 * LARGE_ELEMENTS / 0.8}
    server = json.dumps({"nodes": config["nodes"][1:], "transport": "tcp", **slow})
    net = Values(LARGE_ELEMENTS, 1.0)
    with DpwaPyTorchAdapter(net, "w1", config) as gossip:
        for _ in range(kills):
            victim = start("gossip_values.py", server, "w2", LARGE_ELEMENTS, 2.0)
            with ended(victim):
                assert victim.stdout.readline() == "ready\n"
                eventually(lambda: round_of(gossip, net), timeout_s=20)
                enough = bytes_received(gossip) + rng.uniform(0.0, 0.6) * 4 * LARGE_ELEMENTS
                killer = threading.Thread(target=kill_after, args=(enough, gossip, victim))
                assert round_of(gossip, net, killer.start) is None
                killer.join()
        assert outcomes_of(gossip)["lost"] == kills


def kill_after(nbytes, gossip, victim):
    eventually(lambda: bytes_received(gossip) > nbytes, every_s=0.001)
    victim.kill()


def round_of(gossip, net, during=lambda: None):
    """One round; the parameters are all equal before, and so they must be afterwards."""
    before = net.weight[0].item()
    gossip.update_send()
    during()
    merge = gossip.update_wait()
    # The factor is 1 if the peer has taken ten steps before the first round.
    assert merge is None or merge.factor in (0.25, 1.0)
    expected = before if merge is None else before + merge.factor * (2.0 - before)
    low, high = torch.aminmax(net.weight.detach())
    assert low == high
    assert low.item() == pytest.approx(expected, rel=1e-6)
    return merge


# The same as a whole merge


@pytest.mark.parametrize("merge", ["delta", "interpolate"])
def test_streaming_gives_bit_for_bit_what_shared_memory_gives(merge):
    def result(transport):
        mine, theirs = Mixed(1), Mixed(2)
        config = config_of(2, transport=transport, merge=merge, constant={"value": 0.3})
        step = Mixed(3)

        def attempt(one):
            with torch.no_grad():
                mine.load_state_dict(base)  # also what an attempt that came too early had learnt
                one.update_send()
                for parameter, delta in zip(mine.parameters(), step.parameters(), strict=True):
                    parameter.add_(delta, alpha=0.01)
                return one.update_wait()

        base = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
        with pair(mine, theirs, config) as (one, two):
            eventually(lambda: is_connected(one.connection, "w2"))  # or it runs ahead until then
            two.update_send()
            eventually(lambda: attempt(one))
            report = one.connection.node.report()
        assert (report["bytes_received"] > 0) == (transport == "tcp")
        return mine

    whole = result("shm")
    assert not torch.equal(whole.images, Mixed(1).images)
    assert_same(result("tcp"), state_of(whole))


# The guard


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("publisher", ["finite", "off"])
def test_a_peer_with_one_nan_is_refused_whoever_checks(transport, publisher):
    config = config_of(2, transport=transport)
    net, peer = Values(PIECE_ELEMENTS * 3, 1), Values(PIECE_ELEMENTS * 3, 2)
    peer.weight.data[2 * PIECE_ELEMENTS] = float("nan")
    before = state_of(net)
    with (
        DpwaPyTorchAdapter(net, "w1", config) as mine,
        DpwaPyTorchAdapter(peer, "w2", {**config, "guard": publisher}) as theirs,
    ):

        def refused():
            theirs.update_send()
            mine.update_send()
            assert mine.update_wait() is None
            return outcomes_of(mine).get("diverged")

        eventually(refused)
        assert status_of(mine.connection, "w2")["score"] == 900
        assert status_of(mine.connection, "w2")["health"] == "diverged"
    assert_same(net, before)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_without_a_guard_whatever_comes_is_merged(transport):
    config = config_of(2, transport=transport, guard="off")
    net, peer = Values(1000, 1), Values(1000, 2)
    peer.weight.data[5] = float("nan")
    with pair(net, peer, config) as (mine, theirs):
        merge_of(mine, theirs)
    expected = torch.full((1000,), 1.5)
    expected[5] = float("nan")
    assert torch.equal(net.weight.isnan(), expected.isnan())
    assert torch.equal(net.weight.nan_to_num(0), expected.nan_to_num(0))


# Other ways to a peer


def assert_merge(config):
    net, peer = Values(PIECE_ELEMENTS + 7, 1), Values(PIECE_ELEMENTS + 7, 2)
    with pair(net, peer, config) as (mine, theirs):
        merge_of(mine, theirs)
        assert bytes_received(mine) >= 4 * (PIECE_ELEMENTS + 7)
    assert torch.equal(net.weight, torch.full_like(net.weight, 1.5))


def test_nodes_merge_over_ipc_endpoints(tmp_path):
    nodes = [{"name": name, "endpoint": f"ipc://{tmp_path}/{name}"} for name in ("w1", "w2")]
    assert_merge({**config_of(2, transport="tcp"), "nodes": nodes})


@needs_ipv6
def test_nodes_merge_over_ipv6():
    config = config_of(2, transport="tcp")
    for node in config["nodes"]:
        node["host"] = "::1"
    assert_merge(config)


# Deadlines that are learnt


class Promises:
    """A peer that answers at once for so many fetches; then as `later` says."""

    def __init__(self, fetches, later, clock=1.0):
        self.left, self._later, self._clock = fetches, later, clock
        self._data = np.full(1000, 3.0, np.float32).view(np.uint8)

    def answer(self, frames):
        message, _ = decode(frames)
        if message.type != "fetch":
            return
        self.left -= 1
        if self.left < 0 and not self._later():
            return
        header = header_of(
            request=message.request, clock=self._clock, is_finite=True, nbytes=self._data.nbytes
        )
        chunk = Chunk(request=message.request, index=0, checksum=checksum(self._data))
        yield [encode(header)]
        yield [encode(chunk), self._data]


def timed_round(gossip):
    gossip.update_send()
    begin = time.monotonic()
    merge = gossip.update_wait()
    return merge, time.monotonic() - begin


def test_a_peer_that_falls_silent_costs_little_of_the_timeout_and_another_one_is_asked():
    config = config_of(3, transport="tcp", timeout_ms=2500, repeat="merge")
    promises = Promises(20, lambda: False)
    with (
        imposter(config["nodes"][1]["port"], promises.answer),
        DpwaPyTorchAdapter(Values(1000, 1), "w1", config) as mine,
        DpwaPyTorchAdapter(Values(1000, 2), "w3", config) as good,
    ):
        eventually(lambda: is_connected(mine.connection, "w3"))  # or it runs ahead until then
        good.update_send()
        eventually(lambda: timed_round(mine) and promises.left <= 0)
        rounds = []

        def silent():
            rounds.append(timed_round(mine))
            return outcomes_of(mine).get("timed_out", 0) >= 2

        eventually(silent)
        assert max(seconds for _, seconds in rounds) < at_most(1.0)  # and not 2.5
        slowest, _ = max(rounds, key=lambda one: one[1])
        assert slowest.peer == "w3"
        assert status_of(mine.connection, "w2")["score"] <= 800


def test_a_peer_that_becomes_slow_for_good_is_merged_from_again():
    config = config_of(2, transport="tcp", timeout_ms=2500, repeat="merge")
    promises = Promises(20, lambda: time.sleep(0.3) or True, clock=1e6)  # of no beginner
    with (
        imposter(config["nodes"][1]["port"], promises.answer),
        DpwaPyTorchAdapter(Values(1000, 1), "w1", config) as mine,
    ):
        eventually(lambda: timed_round(mine) and promises.left <= 0)
        eventually(lambda: outcomes_of(mine).get("timed_out") or not timed_round(mine))
        before = outcomes_of(mine)["fetched"]
        eventually(lambda: timed_round(mine) and outcomes_of(mine)["fetched"] >= before + 2)


# A reader that is stopped


@pytest.mark.slow
def test_what_was_lent_to_a_reader_that_takes_nothing_comes_back_when_it_is_dropped():
    config = config_of(2, transport="tcp", timeout_ms=300, slots=2)
    net = Values(LARGE_ELEMENTS, 1.0)
    with (
        DpwaPyTorchAdapter(net, "w1", {**config, "nodes": config["nodes"][:1]}) as gossip,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as reader,
    ):
        node = gossip.connection.node
        gossip.update_send()
        reader.linger, reader.rcvhwm, reader.rcvbuf = 0, 1, 64 * 1024
        reader.connect(f"tcp://127.0.0.1:{config['nodes'][0]['port']}")
        fingerprint = ModuleState(net, with_buffers=True).layout.fingerprint
        reader.send(encode(fetch_of(fingerprint, credit=limits.MAX_CREDIT_CHUNKS)))
        assert reader.poll(30_000)

        def lost_slots():
            gossip.update_send()
            return node.report()["memory"]["lost_slots"]

        eventually(lambda: lost_slots() == 1, every_s=0.05)
        skipped = node.report()["rounds_skipped"]
        before = time.monotonic()
        eventually(lambda: lost_slots() == 0, every_s=0.05)
        assert time.monotonic() - before < at_most(sockets.STALLED_MS / 1000 + 2)
        assert node.report()["rounds_skipped"] == skipped
