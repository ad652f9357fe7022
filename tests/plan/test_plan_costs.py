"""What a plan says a round costs, beside what real nodes and codecs do."""

import dataclasses

import pytest
import torch
from support.nodes import config_of, eventually
from torch import nn

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.config import load_config
from dpwa.data.layout import Layout, TensorSpec
from dpwa.plan.costs import LinkFigures, Setting, asks_per_round, cost_of, obeys_probability
from dpwa.plan.payloads import Payloads, Work
from dpwa.wire import limits

ELEMENTS = 400_000  # float32: two pieces, the last of which is not whole
MODEL_BYTES = 4 * ELEMENTS
LINK = LinkFigures(latency_ms=10.0, bandwidth_mbps=80.0)  # 10 MB/s
ROUNDS = 12


class FixedPayloads:
    """A model of 10 MB in ten pieces, of which codecs leave so much; they take no time."""

    model_bytes = 10_000_000
    shares = {"none": 1.0, "bf16": 0.5, "int8": 0.25}  # noqa: RUF012

    def fetch(self, codec, fraction):
        return Work(self.model_bytes * self.shares[codec] * fraction, 10 * fraction, 0.0)


def config(groups="xx", **settings):
    nodes = [{"name": f"w{n}", "port": 1000 + n, "group": g} for n, g in enumerate(groups)]
    return load_config({"nodes": nodes, **settings}, environ={})


def cost(nodes=2, step_s=0.5, link=LINK, payloads=None, **settings):
    made = config(**{"timeout_ms": 60_000, **settings})
    return cost_of(made, payloads or FixedPayloads(), Setting(nodes, step_s, link))


def test_averaged_gradients_go_out_and_come_back_and_nothing_hides_that():
    found = cost(nodes=4, algorithm="together", fetch_probability=0.1)
    assert found.round_bytes == pytest.approx(15e6)
    assert found.wait_s == pytest.approx(0.04 + 1.5)
    assert found.round_s == pytest.approx(0.5 + 0.04 + 1.5)
    assert not obeys_probability(config(algorithm="together"))


def test_what_the_step_does_not_hide_is_waiting():
    found = cost()
    assert found.fetch_s == pytest.approx(0.010 + 1.0)
    assert found.overlap_s == pytest.approx(0.5)
    assert found.wait_s == pytest.approx(0.51)
    assert found.wait_share == pytest.approx(0.51 / 1.01)
    assert found.round_bytes == 10_000_000
    assert found.mbps == pytest.approx(80 / 1.01)
    assert found.gb_per_hour == pytest.approx(36 / 1.01)
    assert cost(step_s=2.0).wait_s == 0.0


def test_a_fetch_in_every_other_round_waits_half_as_long_in_the_mean():
    assert cost(fetch_probability=0.5).wait_s == pytest.approx(cost().wait_s / 2)


@pytest.mark.parametrize(("nodes", "readers"), [(2, 1.0), (3, 1.5), (101, 1.99)])
def test_those_who_read_at_once_share_the_bandwidth(nodes, readers):
    assert cost(nodes=nodes).fetch_s == pytest.approx(0.010 + readers)


def test_a_cap_on_what_is_sent_is_a_thinner_link():
    assert cost(max_upload_mbps=8.0).fetch_s == pytest.approx(10.010)


def test_a_far_link_waits_for_the_reader_to_ask_for_more():
    far = LinkFigures(latency_ms=1000.0, bandwidth_mbps=8000.0)
    assert cost(link=far).fetch_s == pytest.approx(2.0)  # 6 pieces at once, then 4
    assert cost(link=far, fraction=0.5).fetch_s == pytest.approx(1.0, rel=0.01)


def test_a_codec_that_is_slower_than_the_link_is_what_counts():
    class Slow(FixedPayloads):
        def fetch(self, codec, fraction):
            return dataclasses.replace(super().fetch(codec, fraction), busy_s=3.0)

    assert cost(payloads=Slow()).fetch_s == pytest.approx(3.010)


def test_fetches_that_are_longer_than_the_timeout_bring_nothing():
    found = cost(timeout_ms=600)
    assert found.is_late
    assert found.timeout_ms == 1600
    assert found.wait_s == pytest.approx(0.1)
    assert not cost(timeout_ms=found.timeout_ms).is_late


def test_nothing_is_sent_on_one_host():
    found = cost(link=None)
    assert (found.round_bytes, found.fetch_s, found.wait_s) == (0.0, 0.0, 0.0)
    assert (found.memory_bytes, found.most_memory_bytes) == (20_000_000, 30_000_000)


@pytest.mark.parametrize(
    ("settings", "nodes", "asks"),
    [
        ({"fetch_probability": 0.3}, 2, 0.3),
        ({"algorithm": "push_sum", "push_sum": {"probability": 0.4}}, 2, 0.4),
        ({"algorithm": "noloco", "noloco": {"period": 50}}, 2, 0.02),
        ({"algorithm": "elastic", "elastic": {"period": 10}}, 2, 0.1),
        ({"algorithm": "symmetric", "fetch_probability": 0.3}, 2, 0.51),
        ({"algorithm": "symmetric"}, 2, 1.0),
        ({"algorithm": "lsgd"}, 3, 3 / 16),
        ({"algorithm": "lsgd", "lsgd": {"local_period": 8, "global_period": 32}}, 4, 4 / 32),
        ({"algorithm": "lsgd", "groups": "ab", "lsgd": {"local_period": 8}}, 4, 4 / 8 + 4 / 16),
    ],
)
def test_each_algorithm_asks_as_often_as_it_says(settings, nodes, asks):
    made = config(**settings)
    assert asks_per_round(made, nodes) == pytest.approx(asks)
    assert obeys_probability(made) == (made.algorithm in ("gossip", "symmetric"))


# Codecs and cuts of the product


def layout_of(elements, dtype="float32", item_bytes=4):
    return Layout((TensorSpec("weight", dtype, (elements,), item_bytes),))


@pytest.mark.parametrize(
    ("codec", "per_value"), [("none", 4), ("bf16", 2), ("fp16", 2), ("int8", 1 + 4 / 256)]
)
def test_payloads_have_the_sizes_of_the_codecs(codec, per_value):
    work = Payloads(layout_of(ELEMENTS)).fetch(codec, 1.0)
    assert work.nbytes == pytest.approx(per_value * ELEMENTS, rel=1e-5)
    assert (work.pieces, work.busy_s > 0) == (2, True)


def test_fractions_are_cut_as_nodes_cut_them():
    found = Payloads(layout_of(ELEMENTS))
    assert found.fetch("none", 0.25).nbytes == pytest.approx(MODEL_BYTES / 4)
    assert found.fetch("none", 0.001).nbytes >= limits.MIN_CHUNK_BYTES * 0.99


class Net(nn.Module):
    """One tensor, of normally distributed values that change all the time."""

    def __init__(self, seed):
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(ELEMENTS, generator=self.random))

    def step(self):
        with torch.no_grad():
            self.weight += torch.randn(ELEMENTS, generator=self.random)


@pytest.mark.parametrize(
    "settings",
    [
        {"codec": "none"},
        {"codec": "int8", "fraction": 0.5},
    ],
    ids=lambda settings: settings["codec"],
)
def test_two_real_nodes_receive_what_the_plan_says(settings):
    made = load_config(config_of(2, transport="tcp", timeout_ms=20_000, **settings))
    one, two = Net(1), Net(2)
    with DpwaPyTorchAdapter(one, "w1", made) as mine, DpwaPyTorchAdapter(two, "w2", made) as theirs:

        def merges():
            one.step()
            two.step()
            theirs.update_send()
            mine.update_send()
            theirs.update_wait()
            return mine.update_wait()

        def received_in_a_row():
            before = mine.connection.node.report()["bytes_received"]
            if all(merges() for _ in range(ROUNDS)):
                return mine.connection.node.report()["bytes_received"] - before
            return 0

        eventually(merges)
        received = eventually(received_in_a_row, timeout_s=60.0)
    payloads = Payloads(layout_of(ELEMENTS))
    planned = cost_of(made, payloads, Setting(2, 0.1, LINK)).round_bytes
    assert received / ROUNDS == pytest.approx(planned, rel=0.05)
