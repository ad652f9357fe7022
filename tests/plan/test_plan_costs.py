"""What a plan says a round costs, beside what real nodes and codecs do."""

import pytest
import torch
from support.nodes import config_of, eventually
from torch import nn

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.config import load_config
from dpwa.data.layout import Layout, TensorSpec
from dpwa.plan.costs import LinkFigures, Setting, asks_per_round, cost_of, fetch_size
from dpwa.wire import limits

ELEMENTS = 400_000  # float32: two pieces, the last of which is not whole
MODEL_BYTES = 4 * ELEMENTS
MIB = limits.CHUNK_BYTES
LINK = LinkFigures(latency_ms=10.0, bandwidth_mbps=80 * MIB / 1e6)  # 10 pieces a second
ROUNDS = 12


def layout_of(elements, dtype="float32", item_bytes=4):
    return Layout((TensorSpec("weight", dtype, (elements,), item_bytes),))


TEN_PIECES = layout_of(10 * MIB // 4)


def config(groups="xx", **settings):
    nodes = [{"name": f"w{n}", "port": 1000 + n, "group": g} for n, g in enumerate(groups)]
    return load_config({"nodes": nodes, **settings}, environ={})


def cost(nodes=2, step_s=0.5, link=LINK, **settings):
    made = config(**{"timeout_ms": 60_000, **settings})
    return cost_of(made, Setting(TEN_PIECES, nodes, step_s, link))


def test_averaged_gradients_go_out_and_come_back_and_nothing_hides_that():
    found = cost(nodes=4, algorithm="together", fetch_probability=0.1)
    assert found.round_bytes == pytest.approx(15 * MIB)
    assert found.wait_s == pytest.approx(0.04 + 1.5)
    assert found.round_s == pytest.approx(0.5 + 0.04 + 1.5)


def test_what_the_step_does_not_hide_is_waiting():
    found = cost()
    assert found.fetch_s == pytest.approx(0.010 + 1.0)
    assert found.wait_s == pytest.approx(0.51)
    assert found.wait_share == pytest.approx(0.51 / 1.01)
    assert found.round_bytes == 10 * MIB
    assert found.mbps == pytest.approx(LINK.bandwidth_mbps / 1.01)
    assert found.gb_per_hour == pytest.approx(3600 * 10 * MIB / 1e9 / 1.01)
    assert cost(step_s=2.0).wait_s == 0.0


def test_a_fetch_in_every_other_round_waits_half_as_long_in_the_mean():
    assert cost(fetch_probability=0.5).wait_s == pytest.approx(cost().wait_s / 2)


@pytest.mark.parametrize(("nodes", "readers"), [(2, 1.0), (3, 1.5), (101, 1.99)])
def test_those_who_read_at_once_share_the_bandwidth(nodes, readers):
    assert cost(nodes=nodes).fetch_s == pytest.approx(0.010 + readers)


def test_a_cap_on_what_is_sent_is_a_thinner_link():
    assert cost(max_upload_mbps=8 * MIB / 1e6).fetch_s == pytest.approx(10.010)


def test_a_far_link_waits_for_the_reader_to_ask_for_more():
    far = LinkFigures(latency_ms=1000.0, bandwidth_mbps=8000.0)
    assert cost(link=far).fetch_s == pytest.approx(2.0)  # 6 pieces at once, then 4
    assert cost(link=far, fraction=0.5).fetch_s == pytest.approx(1.0, rel=0.01)


def test_fetches_that_are_longer_than_the_timeout_bring_nothing():
    found = cost(timeout_ms=600)
    assert found.is_late
    assert found.timeout_ms == 1600
    assert found.wait_s == pytest.approx(0.1)
    assert not cost(timeout_ms=found.timeout_ms).is_late


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


# Codecs and cuts of the product


@pytest.mark.parametrize(
    ("codec", "per_value"), [("none", 4), ("bf16", 2), ("fp16", 2), ("int8", 1 + 4 / 256)]
)
def test_payloads_have_the_sizes_of_the_codecs(codec, per_value):
    nbytes, pieces = fetch_size(layout_of(ELEMENTS), codec, 1.0)
    assert nbytes == pytest.approx(per_value * ELEMENTS, rel=1e-5)
    assert pieces == 2


def test_fractions_are_cut_as_nodes_cut_them():
    assert fetch_size(layout_of(ELEMENTS), "none", 0.25)[0] == pytest.approx(MODEL_BYTES / 4)
    least = limits.MIN_CHUNK_BYTES * 0.99
    assert fetch_size(layout_of(ELEMENTS), "none", 0.001)[0] >= least


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
    planned = cost_of(made, Setting(layout_of(ELEMENTS), 2, 0.1, LINK)).round_bytes
    assert received / ROUNDS == pytest.approx(planned, rel=0.05)
