"""A run ends together: who is waited for, who is not, and what all have then."""

import contextlib
import math
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from support.inside import context_of
from support.nodes import at_once, config_of, eventually, is_connected
from torch import nn

from dpwa import DpwaConnection, FinishReport
from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.errors import ClosedError, ParametersError, UserError
from dpwa.lifecycle import told_ending
from dpwa.node import peers
from dpwa.node.finish import Averaged
from dpwa.node.finish_run import FinishRun
from dpwa.policy.push_sum import UNIT
from dpwa.wire.messages import Finishing
from dpwa.wire.shards import WHOLE


class Nodes:
    """Nodes in threads of this process; node i ends its training with all parameters at i."""

    def __init__(self, count, nets=None, dtype=torch.float32, **settings):
        config = config_of(count, **settings)
        self.names = [f"w{index + 1}" for index in range(count)]
        self.nets = nets or [nn.Linear(3, 2, dtype=dtype) for _ in self.names]
        pairs = zip(self.nets, self.names, strict=True)
        self.nodes = [DpwaPyTorchAdapter(net, name, config) for net, name in pairs]
        self.reports = {}
        self._threads = []

    def __enter__(self):
        for node in self.nodes:
            others = [name for name in self.names if name != node.name]
            for name in others:
                eventually(lambda node=node, name=name: is_connected(node.connection, name))
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.close()
        for thread in self._threads:
            thread.join(30.0)

    def train(self, index, steps=1):
        for _ in range(steps):
            self.nodes[index].update_send(0.5)
            self.nodes[index].update_wait(0.5)

    def begin_to_finish(self, index, value=..., **bounds):
        with torch.no_grad():
            for parameter in () if value is None else self.nets[index].parameters():
                parameter.fill_(float(index if value is ... else value))

        def run():
            with contextlib.suppress(ClosedError):  # the test is over
                self.reports[index] = self.nodes[index].finish(**bounds)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def finish_all(self, **bounds):
        for index in range(len(self.nodes)):
            self.begin_to_finish(index, **bounds)
        return [self.report(index) for index in range(len(self.nodes))]

    def report(self, index):
        eventually(lambda: index in self.reports, timeout_s=60.0)
        return self.reports[index]

    def values(self):
        return [float(net.weight.detach().mean()) for net in self.nets]


def test_nodes_that_finish_together_have_the_exact_mean_of_all():
    with Nodes(3) as nodes:
        for index in range(3):
            nodes.train(index)
        reports = nodes.finish_all()
    assert nodes.values() == pytest.approx([1.0] * 3)
    assert {name for report in reports for name in report.took_part} == set(nodes.names)
    assert all(not report.missed for report in reports)
    assert all(report.distance_before > 1.0 > 1e-4 > report.distance_after for report in reports)
    with pytest.raises(FrozenInstanceError):
        reports[0].rounds = 7


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_nodes_with_narrow_parameters_agree_on_what_is_nearest_to_their_mean(transport):
    unit = torch.finfo(torch.bfloat16).eps
    with Nodes(3, dtype=torch.bfloat16, transport=transport) as nodes:
        for index, units in enumerate((0, 11, 11)):  # merged one by one, they would not agree
            nodes.train(index)
            nodes.begin_to_finish(index, 1.0 + units * unit)
        reports = [nodes.report(index) for index in range(3)]
    assert nodes.values() == [1.0 + 7 * unit] * 3  # of 7.33
    assert [report.distance_after for report in reports] == [0.0] * 3


def test_arrays_of_float16_get_what_is_nearest_to_their_mean():
    unit = 2.0**-10
    arrays = [np.full(4, 1.0 + units * unit, np.float16) for units in (0, 11, 11)]
    for values, _ in finish_arrays(arrays, config_of(3)):
        assert values.dtype == np.float16
        assert values.tolist() == [1.0 + 7 * unit] * 4


def test_a_slower_node_is_waited_for_and_its_parameters_count_as_much(monkeypatch):
    # A busy machine may be late by more than a node waits for the others of its round.
    monkeypatch.setattr("dpwa.node.finish_run.PATIENCE_S", 60.0)
    with Nodes(3) as nodes:
        nodes.begin_to_finish(0)
        nodes.begin_to_finish(1)
        eventually(lambda: nodes.values()[:2] == pytest.approx([0.5, 0.5]), timeout_s=30.0)
        nodes.train(2, steps=5)
        assert nodes.reports == {}
        nodes.begin_to_finish(2)
        reports = [nodes.report(index) for index in range(3)]
    assert nodes.values() == pytest.approx([1.0] * 3)
    assert "w3" in reports[0].took_part
    assert reports[0].waited_s > reports[2].waited_s


@pytest.mark.parametrize("seed", range(4))
def test_nodes_that_end_at_any_time_have_the_exact_mean_of_all(monkeypatch, seed):
    # Also when nobody waits until others have heard of who came last.
    monkeypatch.setattr("dpwa.node.finish_run.PATIENCE_S", 60.0)
    monkeypatch.setattr("dpwa.node.finish_run.HEARD_BY_ALL_S", 0.0)
    rng = random.Random(seed)
    with Nodes(4) as nodes:
        for index in range(4):
            nodes.train(index)
        for index in rng.sample(range(4), 4):
            nodes.begin_to_finish(index)
            time.sleep(rng.choice((0.0, 0.003, 0.01, 0.03)))
        reports = [nodes.report(index) for index in range(4)]
    assert nodes.values() == pytest.approx([1.5] * 4)
    assert all(len(report.took_part) == 3 for report in reports)


def test_those_who_wait_do_not_follow_who_still_trains():
    with Nodes(2) as nodes:
        nodes.begin_to_finish(0)
        with torch.no_grad():
            nodes.nets[1].weight.fill_(8.0)
        eventually(lambda: nodes.nodes[1].update_send(0.5) or nodes.nodes[1].update_wait(0.5))
        assert nodes.values()[0] == 0.0
        assert nodes.values()[1] < 8.0  # the other way round, it is drawn to those who wait


def test_a_node_that_stands_still_in_its_round_did_not_take_part(monkeypatch):
    goes_on, real = threading.Event(), FinishRun._read_all

    def read(run, peers, least):
        if run._name == "w2":
            assert goes_on.wait(60.0)
        return real(run, peers, least)

    monkeypatch.setattr(FinishRun, "_read_all", read)
    with Nodes(3) as nodes:
        for index in range(3):
            nodes.begin_to_finish(index, seconds=1.5 if index != 1 else 20.0)
        reports = [nodes.report(index) for index in (0, 2)]
        ended = nodes.values()
        goes_on.set()
        late = nodes.report(1)
    assert [report.took_part for report in reports] == [("w3",), ("w1",)]
    assert all(set(report.missed) == {"w2"} for report in reports)
    assert ended[0] == pytest.approx(ended[2], rel=1e-4)
    if late.took_part:  # it has read the others until it had their parameters
        assert nodes.values() == pytest.approx([ended[0]] * 3, rel=1e-4)


def test_a_node_whose_time_is_over_offers_the_parameters_that_it_ends_with(monkeypatch):
    offered, judge, report = [], FinishRun._judge, FinishRun._report

    def judged(run, *given):
        judge(run, *given)
        run._end = run._clock.now()

    def reported(run, met_at):
        offered.append(run._published)
        return report(run, met_at)

    monkeypatch.setattr(FinishRun, "_judge", judged)
    monkeypatch.setattr(FinishRun, "_report", reported)
    with Nodes(2) as nodes:
        nodes.finish_all()
    assert len(offered) == 2
    assert None not in offered


def test_nobody_waits_for_who_was_never_there_has_left_or_trains_too_long():
    with Nodes(4) as nodes:
        nodes.nodes[2].close()
        nodes.train(3)
        nodes.begin_to_finish(0, timeout_s=0.5)
        nodes.begin_to_finish(1, timeout_s=0.5)
        reports = [nodes.report(index) for index in range(2)]
    assert nodes.values()[:2] == pytest.approx([0.5, 0.5])
    assert reports[0].took_part == ("w2",)
    assert reports[0].missed["w3"] == "has finished"  # it had nothing to finish
    assert reports[0].missed["w4"] == "still trains, at update 1"


def test_a_node_whose_peers_were_never_there_ends_when_they_have_had_time_to_start(monkeypatch):
    monkeypatch.setattr(peers, "STARTUP_GRACE_S", 0.5)
    net = nn.Linear(2, 1)
    with DpwaPyTorchAdapter(net, "w1", config_of(3)) as alone:
        alone.update_send(0.5)
        report = alone.finish(timeout_s=1e6)
    assert report.took_part == ()
    assert set(report.missed) == {"w2", "w3"}
    assert report.distance_before is None
    assert "no other node" in str(report)
    assert report.waited_s > 0.2


def test_who_ends_before_the_others_have_started_waits_for_them():
    config = config_of(2)
    nets = [nn.Linear(2, 1, bias=False) for _ in range(2)]
    with ThreadPoolExecutor() as pool, DpwaPyTorchAdapter(nets[0], "w1", config) as early:
        early.update_send(0.5)
        ended = pool.submit(early.finish)
        time.sleep(1.5)  # longer than a connection is waited for
        assert not ended.done()
        with DpwaPyTorchAdapter(nets[1], "w2", config) as late:
            late.update_send(0.5)
            late.update_wait(0.5)
            assert late.finish().took_part == ("w1",)
            assert ended.result().took_part == ("w2",)
    assert torch.allclose(nets[0].weight, nets[1].weight)


def test_the_only_node_returns_at_once():
    with DpwaPyTorchAdapter(nn.Linear(2, 1), "w1", config_of(1)) as alone:
        report = alone.finish()
    assert report.took_part == ()
    assert report.missed == {}
    assert report.rounds == 0
    assert report.problem == ""  # there was nobody to miss


def test_it_may_be_called_again_and_training_may_go_on():
    with Nodes(2) as nodes:
        nodes.finish_all()
        again = nodes.nodes[0].finish(timeout_s=60.0)
        assert again.took_part == ("w2",)
        nodes.train(0)
        assert not nodes.nodes[0].connection.node.finish.endings.own.is_finishing
    assert nodes.values() == pytest.approx([0.5, 0.5])


def test_another_call_without_a_change_is_the_same_end_though_a_peer_has_closed():
    with Nodes(3) as nodes:
        first = nodes.finish_all()
        nodes.nodes[0].close()
        assert [node.finish() for node in nodes.nodes[1:]] == first[1:]
        with torch.no_grad():
            nodes.nets[2].bias.add_(1.0)
        changed = nodes.nodes[2].finish()
        assert "w1" in changed.missed
        assert changed.rounds > 0
        nodes.train(1)
        assert "w1" in nodes.nodes[1].finish().missed


def test_a_closed_node_cannot_finish():
    node = DpwaPyTorchAdapter(nn.Linear(2, 1), "w1", config_of(1))
    node.close()
    with pytest.raises(ClosedError):
        node.finish()


@pytest.mark.parametrize("algorithm", ["elastic", "noloco"])
def test_what_an_algorithm_remembers_does_not_undo_it(algorithm):
    options = {algorithm: {"period": 2}, "fetch_probability": 1.0}
    with Nodes(2, algorithm=algorithm, **options) as nodes:
        for step in range(6):  # in which they go far from each other
            for index in range(2):
                with torch.no_grad():
                    for parameter in nodes.nets[index].parameters():
                        parameter.fill_(step * (10.0 if index else -6.0))
                nodes.train(index)
        nodes.finish_all()
        ended_at = nodes.values()
        for _ in range(6):
            for index in range(2):
                nodes.train(index)
        assert nodes.values() == pytest.approx(ended_at, abs=1e-6)


def test_who_waits_keeps_its_share_of_the_mass():
    with Nodes(2, algorithm="push_sum", timeout_ms=200) as nodes:
        for index in range(2):
            nodes.train(index)
        nodes.begin_to_finish(0)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:  # longer than any fetch of the training lasts
            nodes.train(1)
        waiting = nodes.nodes[0].connection.node

        def has_its_share():
            nodes.train(1)
            return waiting.report()["transactions"]["units"] > UNIT / 4

        eventually(has_its_share, timeout_s=30.0)  # the trainer would have all but 2**-40 else
        nodes.begin_to_finish(1)
        nodes.report(1)


@pytest.mark.parametrize("wrong", ["3", -1, math.nan, True])
@pytest.mark.parametrize("bound", ["seconds", "timeout_s"])
def test_bounds_that_are_no_seconds_are_refused_by_name(bound, wrong):
    with (
        DpwaPyTorchAdapter(nn.Linear(2, 1), "w1", config_of(1)) as node,
        pytest.raises(UserError, match=f"finish: {bound} must be"),
    ):
        node.finish(**{bound: wrong})


def test_the_clock_and_the_number_of_updates_stand_still():
    with Nodes(2) as nodes:
        for index in range(2):
            nodes.train(index, steps=3)
        clocks = [node.clock for node in nodes.nodes]
        nodes.finish_all()
        assert min(clocks) <= min(node.clock for node in nodes.nodes)
        assert max(node.clock for node in nodes.nodes) <= max(clocks)
        assert [node.connection.node.rounds.view.updates for node in nodes.nodes] == [3, 3]


EXACTLY = 1e-4
LOSSY = 0.6  # what was still under way, or was left out, is merged with what one node has by then


@pytest.mark.parametrize(
    ("settings", "off_by"),
    [
        ({"algorithm": "symmetric"}, LOSSY),
        ({"algorithm": "push_sum"}, LOSSY),
        ({"algorithm": "noloco"}, EXACTLY),
        ({"algorithm": "local"}, EXACTLY),
        ({"algorithm": "elastic"}, EXACTLY),
        ({"algorithm": "lsgd"}, EXACTLY),
        ({"interpolation": "clock"}, EXACTLY),
        ({"interpolation": "loss"}, EXACTLY),
        ({"interpolation": "leader"}, EXACTLY),
        ({"interpolation": "constant", "constant": {"value": 0.0}}, EXACTLY),
        ({"merge": "delta", "fetch_probability": 0.1}, EXACTLY),
        ({"transport": "tcp", "fraction": 0.5}, EXACTLY),
        ({"transport": "tcp", "codec": "int8"}, EXACTLY),
        ({"robust": "clip"}, 0.95),  # nobody is drawn as far as the mean of all
    ],
    ids=str,
)
def test_it_ends_at_the_mean_of_all_whatever_the_configuration(monkeypatch, settings, off_by):
    monkeypatch.setattr("dpwa.node.finish_run.PATIENCE_S", 60.0)
    with Nodes(3, **settings) as nodes:
        for index in range(3):
            nodes.train(index, steps=20 if "robust" in settings else 2)
        nodes.finish_all(seconds=30.0)
    values = nodes.values()
    assert max(values) - min(values) < 1e-4
    assert values == pytest.approx([1.0] * 3, abs=off_by)


def fill_with_thirds(net, index):
    """Give a module values that no narrow dtype has."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_((torch.arange(parameter.numel()) + index + 1).view_as(parameter) / 3.0)


LOSSY_CODECS = [
    {"codec": "bf16"},
    {"codec": "int8", "fraction": 0.3},
    {"links": [{"between": ["w1", "w3"], "codec": "fp16"}]},
]


@pytest.mark.parametrize("settings", LOSSY_CODECS, ids=str)
def test_finish_sends_whole_values_whatever_the_codec(settings):
    with Nodes(3, transport="tcp", **settings) as nodes:
        for index, net in enumerate(nodes.nets):
            fill_with_thirds(net, index)
            nodes.begin_to_finish(index, None)
        reports = [nodes.report(index) for index in range(3)]
    mean = (torch.arange(6.0) + 2.0).view(2, 3) / 3.0
    for net in nodes.nets:
        torch.testing.assert_close(net.weight.detach(), mean, rtol=1e-6, atol=0.0)
    assert [report.problem for report in reports] == [""] * 3


@pytest.mark.parametrize("settings", [*LOSSY_CODECS, {"transport": "shm"}], ids=str)
def test_nodes_that_are_equal_compare_digests_and_fetch_nothing(settings):
    def received(node):
        return [peer["outcomes"] for peer in node.connection.node.report()["peers"]]

    with Nodes(3, **{"transport": "tcp", **settings}) as nodes:
        for net in nodes.nets:
            fill_with_thirds(net, 0)
        before = [net.weight.detach().clone() for net in nodes.nets]
        outcomes = [received(node) for node in nodes.nodes]
        for index in range(3):
            nodes.begin_to_finish(index, None)
        reports = [nodes.report(index) for index in range(3)]
        assert [received(node) for node in nodes.nodes] == outcomes
    assert all(len(report.took_part) == 2 and report.distance_after == 0.0 for report in reports)
    for net, weight in zip(nodes.nets, before, strict=True):
        assert torch.equal(net.weight, weight)


def test_a_peer_that_had_another_model_a_moment_ago_is_asked_again():
    nets = [nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)) for _ in range(2)]
    with Nodes(2, nets) as nodes:
        nets[1][0].requires_grad_(False)
        nodes.train(1)
        nodes.train(0, steps=2)
        peer_table = context_of(nodes.nodes[0].connection.node).peer_table
        eventually(lambda: nodes.train(0) or peer_table.in_words("w2") == "has a different model")
        nets[1][0].requires_grad_(True)
        reports = nodes.finish_all()
    assert reports[0].took_part == ("w2",)
    torch.testing.assert_close(nets[0][0].weight, nets[1][0].weight)


def test_a_peer_that_lives_but_takes_no_step_is_not_waited_for_any_longer(monkeypatch):
    monkeypatch.setattr("dpwa.policy.finishing.IDLE_AFTER_S", 1.5)
    with Nodes(3) as nodes:
        nodes.begin_to_finish(0)
        nodes.begin_to_finish(1)
        reports = [nodes.report(index) for index in range(2)]  # w3 never takes a step
    assert reports[0].took_part == ("w2",)
    assert reports[0].missed["w3"].startswith("has not trained for")
    assert reports[0].waited_s >= 1.0


def test_buffers_are_averaged_too():
    nets = [nn.BatchNorm1d(2), nn.BatchNorm1d(2)]
    nets[1].running_mean.fill_(4.0)
    with Nodes(2, nets) as nodes:
        nodes.finish_all(value=None)
    assert nets[0].running_mean.tolist() == nets[1].running_mean.tolist() == [2.0, 2.0]


def test_three_nodes_read_all_with_factors_that_make_the_plain_mean():
    with Nodes(3) as nodes:
        for index in range(3):
            nodes.train(index)
        trainer = nodes.nodes[0]._trainer
        arrivals = trainer.rounds.read_all(trainer.model.layout, WHOLE)
        assert [arrival.factor for arrival in arrivals] == pytest.approx([1 / 2, 1 / 3])


def test_a_diverged_peer_is_left_out():
    with Nodes(3) as nodes:
        nodes.begin_to_finish(0)
        nodes.begin_to_finish(1)
        nodes.begin_to_finish(2, value=math.nan, seconds=1.0)
        reports = [nodes.report(index) for index in range(2)]
    assert nodes.values()[:2] == pytest.approx([0.5, 0.5])
    assert "diverged" in reports[0].missed["w3"]


def test_the_optimizer_that_gossips_can_finish():
    net = nn.Linear(2, 1)
    with DpwaPyTorchAdapter(net, "w1", config_of(1)) as gossip:
        optimizer = GossipOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), gossip)
        assert isinstance(optimizer.finish(seconds=1.0, timeout_s=1.0), FinishReport)


def finish_arrays(arrays, config, **bounds):
    results = {}
    connections = [DpwaConnection(f"w{i + 1}", config) for i in range(len(arrays))]

    def run(index):
        results[index] = connections[index].finish(arrays[index], 0.5, **bounds)

    try:
        for connection in connections:
            for peer in connection.peers:
                eventually(lambda c=connection, p=peer: is_connected(c, p))
        at_once([lambda i=i: run(i) for i in range(len(arrays))])
    finally:
        for connection in connections:
            connection.close()
    return [results[index] for index in range(len(arrays))]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_arrays_are_averaged_into_new_ones(transport):
    arrays = [np.full((2, 3), float(i), np.float32) for i in range(3)]
    results = finish_arrays(arrays, config_of(3, transport=transport))
    assert all(np.allclose(values, 1.0) for values, _ in results)
    assert all(values.dtype == np.float32 and values.shape == (2, 3) for values, _ in results)
    assert all(len(report.took_part) == 2 for _, report in results)
    assert (arrays[2] == 2.0).all()


def test_only_arrays_of_floating_numbers_can_be_averaged():
    with DpwaConnection("w1", config_of(1)) as connection:
        for impossible in (b"bytes", np.arange(3), [1.0]):
            with pytest.raises(ParametersError, match="floating"):
                connection.finish(impossible)
    with (
        DpwaConnection("w1", config_of(1, algorithm="symmetric")) as connection,
        pytest.raises(UserError, match="adapter"),
    ):
        connection.finish(np.ones(3))


def test_a_peer_that_stays_silent_is_given_up(monkeypatch):
    monkeypatch.setattr("dpwa.policy.finishing.SILENT_AFTER_S", 0.5)
    monkeypatch.setattr("dpwa.node.finish_run.SILENT_AFTER_S", 0.5)
    with Nodes(2) as nodes:
        service = type(nodes.nodes[1].connection.node.finish.endings)
        monkeypatch.setattr(service, "receive_ending", lambda *_: None)  # nothing is ever heard
        began = time.monotonic()
        nodes.begin_to_finish(0, timeout_s=1e6)
        report = nodes.report(0)
    assert time.monotonic() - began < 30.0
    assert set(report.missed) == {"w2"}


def test_a_peer_that_cannot_be_read_is_given_up(monkeypatch):
    def unread(publish, read, *more):
        return Averaged(publish, lambda peer, weight: None, *more)

    monkeypatch.setattr("dpwa.adapters.pytorch.Averaged", unread)
    with Nodes(2) as nodes:
        reports = nodes.finish_all()
        assert nodes.values() == [0.0, 1.0]
    assert [report.missed for report in reports] == [
        {"w2": "could not be read"},
        {"w1": "could not be read"},
    ]


def test_nodes_that_see_different_peers_end_all_the_same():
    with Nodes(3) as nodes:
        context_of(nodes.nodes[0].connection.node).peer_table.quarantine({"w3"})
        reports = nodes.finish_all()
    assert reports[0].missed == {"w3": "is in quarantine"}
    assert reports[0].took_part == ("w2",)
    assert "w1" in reports[1].took_part
    assert nodes.values()[0] == pytest.approx(nodes.values()[1], abs=0.5)


def test_more_nodes_than_are_read_in_a_round_come_to_agree(monkeypatch):
    monkeypatch.setattr("dpwa.node.finish_run.MAX_PEERS_READ", 2)
    with Nodes(4) as nodes:
        reports = nodes.finish_all()
    assert all(not report.missed for report in reports)
    assert nodes.values() == pytest.approx([nodes.values()[0]] * 4, abs=1e-3)
    assert 0.0 < nodes.values()[0] < 3.0


def test_a_number_that_no_round_has_is_not_followed():
    with Nodes(2) as nodes:
        endings = nodes.nodes[0].connection.node.finish.endings
        lie = Finishing(
            request=0,
            name="w2",
            updates=0,
            version=1,
            round_number=2**62,
            among=0,
            has_read=0,
            agrees=False,
            is_over=False,
            values=b"",
        )
        endings.receive_ending("w2", lie)
        assert endings.ending_of("w2") is None
        nodes.finish_all()
    assert nodes.values() == pytest.approx([0.5] * 2)


def test_without_time_to_wait_those_who_train_are_told_of_all_the_same():
    with Nodes(2) as nodes:
        nodes.train(1)
        nodes.begin_to_finish(0, timeout_s=0.0, seconds=0.0)
        report = nodes.report(0)
        (why,) = report.missed.values()  # by whether it was heard of already
        assert why.startswith(("there was no time left for it", "still trains"))
        nodes.begin_to_finish(1)
        endings = nodes.nodes[0].connection.node.finish.endings
        eventually(lambda: endings.ending_of("w2") and endings.ending_of("w2").ending.is_finishing)
        del nodes.reports[0]
        nodes.begin_to_finish(0, timeout_s=0.0, seconds=0.0)
        assert nodes.report(0).missed == {"w2": "there was no time left for it"}


def with_backbone(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    net[0].requires_grad_(False)
    net[2].load_state_dict({"weight": torch.ones(1, 3), "bias": torch.zeros(1)})
    return net


def finished(nets, frozen_later=(), **settings):
    """Let two nodes take a step, freeze what is to be frozen, and finish; return their reports."""
    with Nodes(2, nets, **settings) as nodes:
        for index in range(2):
            nodes.train(index)
        for module in frozen_later:
            module.requires_grad_(False)
        return nodes.finish_all(value=None)


@pytest.mark.parametrize("in_shards", [False, True])
def test_backbones_of_other_seeds_are_named_although_all_that_trains_agrees(in_shards, caplog):
    reports = finished([with_backbone(1), with_backbone(2)], fraction=0.5 if in_shards else 1.0)
    assert [report.differing for report in reports] == [
        {"w2": ("0.bias", "0.weight")},
        {"w1": ("0.bias", "0.weight")},
    ]
    assert "Not averaged, and different on this node and w2: 0.bias, 0.weight." in str(reports[0])
    told = [r.levelname for r in caplog.records if "different on this node and" in r.getMessage()]
    assert told == ["WARNING", "WARNING"]


def test_what_is_frozen_in_the_middle_of_a_run_is_named_if_it_differs():
    nets = [with_backbone(1), with_backbone(1)]
    nets[1][2].bias.data.fill_(1.0)
    (report, _) = finished(nets, [net[2] for net in nets], fetch_probability=0.0)
    assert report.differing == {"w2": ("2.bias",)}


def test_buffers_that_are_kept_are_named_and_mere_counts_are_not():
    nets = [with_backbone(1), with_backbone(1)]
    nets[0][1].running_mean.fill_(2.0)
    nets[0][1].num_batches_tracked.fill_(7)
    assert finished(nets, buffers="keep")[0].differing == {"w2": ("1.running_mean",)}
    assert finished(nets)[0].differing == {}


def test_many_that_differ_are_counted_in_the_line_and_peers_alike_are_told_together():
    names = tuple(f"layer.{index}" for index in range(5))
    report = FinishReport(("w2", "w3"), {}, 1, 1.0, 0.0, 0.0, 0.0, {"w2": names, "w3": names})
    assert "node and w2, w3: layer.0, layer.1, layer.2 and 2 more." in str(report)


@pytest.mark.parametrize("what", ["parameters", "loss"])
def test_a_node_that_diverges_is_told_once_and_so_is_its_launcher(
    what, caplog, monkeypatch, tmp_path
):
    ending = tmp_path / "ending"
    monkeypatch.setenv("DPWA_ENDING", str(ending))
    with Nodes(2) as nodes:
        nodes.train(0)
        assert told_ending(ending) == 1
        said = "its loss is not finite"
        if what == "parameters":
            nodes.nets[0].bias.data[1] = math.nan
            said = "its parameters are not finite ('bias')"
        for _ in range(3):
            nodes.nodes[0].update_send(0.5)
            nodes.nodes[0].update_wait(0.5 if what == "parameters" else math.nan)
        errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert len(errors) == 1
        assert errors[0].startswith(f"w1: {said} at update 2. No peer merges this node")
        assert told_ending(ending) == said
        nodes.nets[0].bias.data[1] = 0.0
        nodes.train(0)
        assert told_ending(ending) == 5  # it is sound again


def test_a_node_that_is_not_finite_ends_with_an_error_and_not_with_a_distance(caplog):
    with Nodes(2) as nodes:
        nodes.begin_to_finish(0, value=math.nan)
        nodes.begin_to_finish(1, seconds=1.0)
        sick, alone = nodes.report(0), nodes.report(1)
    assert sick.problem == "its parameters are not finite ('weight' and 1 more)"
    assert f". Problem: {sick.problem}. Waited " in str(sick)
    said = "finished together with no other node. Missing peers: w1 (has diverged"
    assert alone.problem.startswith(said)
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert sum("finished together with" in error for error in errors) == 2


@pytest.mark.parametrize("guard", ["finite", "off"])
def test_arrays_that_are_not_finite_end_with_an_error_too(guard, caplog, monkeypatch, tmp_path):
    ending = tmp_path / "ending"
    monkeypatch.setenv("DPWA_ENDING", str(ending))
    config = config_of(2, guard=guard)
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        eventually(lambda: is_connected(one, "w2") and is_connected(two, "w1"))
        one.update_send(np.array([1.0, math.nan]), 0.5)
        one.update_wait()
        assert isinstance(told_ending(ending), str) is (guard == "finite")
        with ThreadPoolExecutor() as threads:
            other = threads.submit(two.finish, np.zeros(2), seconds=1.0)
            _, report = one.finish(np.array([1.0, math.nan]), seconds=1.0)
            other.result()
        assert report.problem == "its parameters are not finite"
        assert told_ending(ending)
        if guard == "finite":  # else the other one is not finite either by now
            assert one.finish(np.zeros(2), seconds=1.0, timeout_s=0.0)[1].diverged == ""
    assert "nan" not in str(report)


@pytest.mark.parametrize("way", ["plain", "sys.exit", "error", "finish", "not needed", "no step"])
def test_a_node_that_ends_its_training_without_finish_says_so_and_what_to_call(way, caplog):
    config = config_of(2, needs_finish=way != "not needed")
    with (
        contextlib.suppress(SystemExit, ZeroDivisionError),
        DpwaConnection("w2", config) as other,
        DpwaConnection("w1", config) as node,
    ):
        eventually(lambda: is_connected(node, "w2") and is_connected(other, "w1"))
        for _ in range(3 * (way != "no step")):
            node.update_send(np.ones(2))
            node.update_wait()
        if way == "finish":
            node.finish(np.ones(2), timeout_s=0.0, seconds=0.0)
        elif way == "sys.exit":
            raise SystemExit(0)
        elif way == "error":
            raise ZeroDivisionError
    said = [r.getMessage() for r in caplog.records if "W093" in r.getMessage()]
    assert [line.split(", so")[0] for line in said] == [
        "w1: the training has ended at update 3 without finish"
    ] * (way in ("plain", "sys.exit"))


def test_a_node_that_is_the_only_one_has_nobody_to_finish_with(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("DPWA_ENDING", str(tmp_path / "ending"))
    with DpwaConnection("w1", config_of(1)) as node:
        node.update_send(np.ones(2))
    assert told_ending(tmp_path / "ending") is None
    assert "W093" not in caplog.text
