"""Runs in lockstep, as arrays where these are exact and of whole nodes where they are not."""

import dataclasses
import itertools
import random
import time

import numpy as np
import pytest
from support.simulated_nodes import nodes_run
from support.simulations import by_arrays, run_spec, simulated
from support.times import at_most

from dpwa.errors import UserError
from dpwa.policy.flow_control import HIGHEST_SCORE, FlowControl
from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.sim.simulate import simulate

WITH_PACKETS = (1448 + 66) / 1448


def test_draws_are_those_of_flow_control_while_no_fetch_fails():
    rng, flow = random.Random(1), FlowControl(dict.fromkeys("abcdefgh", HIGHEST_SCORE))
    counts = dict.fromkeys(flow.scores, 0)
    for draw in range(4000):
        peer, flow = flow.choose(rng, float(draw))
        counts[peer] += 1
        flow = flow.succeeded(peer)
    assert list(counts.values()) == pytest.approx([500] * 8, abs=90)  # 4 deviations
    served = [node.served for node in simulated(8, schedule="lockstep", rounds=1000).nodes]
    assert served == pytest.approx([1000] * 8, abs=130)


def test_samples_are_spread_evenly_and_the_ends_are_among_them():
    outcome = simulated(10, schedule="lockstep", rounds=1000)
    assert [sample.round for sample in outcome.samples] == [5.0 * n for n in range(201)]
    rounds = [s.round for s in simulated(10, schedule="lockstep", rounds=7).samples]
    assert rounds == [0, 1, 2, 3, 4, 5, 6, 7]
    by_time = [s.time_s for s in simulated(4, seconds=5.0).samples]
    assert by_time[0] == 0.0
    assert by_time[-1] == 5.0
    assert max(b - a for a, b in itertools.pairwise(by_time)) < 0.11
    ring = {"topology": "ring"}
    endless = simulated(24, ring, schedule="lockstep", target={"variance_ratio": 1e-20})
    assert endless.samples[-1].round > 600
    assert 200 <= len(endless.samples) <= 401


@pytest.mark.parametrize("schedule", ["lockstep", "asynchronous"])
def test_a_run_ends_at_its_target_or_when_somebody_ends_it(schedule):
    reached = simulated(16, schedule=schedule, rounds=900, target={"variance_ratio": 1e-3})
    assert reached.samples[-1].variance_ratio <= 1e-3 < reached.samples[-2].variance_ratio
    assert reached.samples[-1].round < 30
    assert not reached.was_stopped
    spec, seen = run_spec(16, schedule=schedule, rounds=900), {}
    # on a busy machine the last one is shown again
    stopped = simulate(spec, lambda sample: seen.update({sample.round: sample}) or len(seen) < 3)
    assert stopped.was_stopped
    assert stopped.samples == tuple(seen.values())
    trained = simulated(4, schedule=schedule, task="quadratic", rounds=900, target={"loss": 0.5})
    assert trained.samples[-1].loss <= 0.5
    assert trained.samples[-1].round < 100


def test_a_lockstep_round_lasts_as_long_as_its_slowest_node():
    compute = {"step_ms": 100, "stragglers": [{"nodes": 1, "slower": 3.0}]}
    run = {"schedule": "lockstep", "rounds": 10, "compute": compute}
    arrays, nodes = by_arrays(run_spec(6, **run))[1], nodes_run(6, **run).simulate()
    assert arrays.samples[-1].time_s == pytest.approx(3.0)
    # First, nodes look for peers that train already, every 5 ms: twice until all have answered.
    assert nodes.samples[-1].time_s == pytest.approx(3.0, abs=0.01)
    for figures in (arrays.nodes, nodes.nodes):
        assert sorted(n.trained_s for n in figures) == pytest.approx([1.0] * 5 + [3.0])
        assert sorted(n.waited_s for n in figures) == pytest.approx([0.0] + [2.0] * 5)


@pytest.mark.parametrize(("megabytes", "round_s"), [(1, 0.1), (3, 0.253)])
def test_a_fetch_overlaps_the_step(megabytes, round_s):
    network = {"latency_ms": 1, "upload_mbps": 100}
    outcome = simulated(2, schedule="lockstep", rounds=10, model_mb=megabytes, network=network)
    assert outcome.detail == "arrays"
    assert outcome.samples[-1].time_s == pytest.approx(10 * round_s, rel=0.01)
    for node in outcome.nodes:
        assert node.merges == 10
        assert node.trained_s == pytest.approx(0.1 * 10)
        assert node.waited_s == pytest.approx(10 * (round_s - 0.1), rel=0.02, abs=0.01)
        assert node.bytes_sent == pytest.approx(10 * megabytes * 1e6 * WITH_PACKETS, rel=0.01)


@pytest.mark.parametrize("schedule", ["lockstep", "asynchronous"])
def test_a_star_is_slowed_down_by_the_upload_of_its_middle(schedule):
    outcome = simulated(
        11,
        {"topology": "star"},
        schedule=schedule,
        seconds=8.0,
        model_mb=1,
        network={"upload_mbps": 100},
    )
    served = [node.served for node in outcome.nodes]
    assert served[0] == pytest.approx(100, abs=10)  # all that it can send
    # At the end, a fetch of the middle may be under way, unless all take their rounds together.
    under_way = sum(served[1:]) - outcome.nodes[0].updates
    assert under_way in ((0,) if schedule == "lockstep" else (0, 1))


def test_what_a_site_sends_to_others_shares_one_link():
    spec = run_spec(
        8,
        {"topology": "star"},
        schedule="lockstep",
        rounds=1,
        model_mb=1,
        network={"sites": [{"name": "a"}, {"name": "b"}], "between_sites_mbps": 8},
    )
    # Four of the other site read from the middle, and give up.
    assert by_arrays(spec)[0].time_s == pytest.approx(2.5)
    slow = dataclasses.replace(spec, config=spec.config.model_copy(update={"timeout_ms": 60_000}))
    assert by_arrays(slow)[0].time_s == pytest.approx(4.1, abs=0.2)


def test_bytes_are_those_of_real_messages():
    sizes = WireSizes.from_spec(run_spec(2), dimension=1000)
    assert 4000 < sizes.answer < 4600
    assert 200 < sizes.request < 500
    half = WireSizes.from_spec(run_spec(2, {"fraction": 0.5}), dimension=2_000_000)
    assert half.answer == pytest.approx(4_000_000 * WITH_PACKETS, rel=0.01)
    assert half.pieces == 4


@pytest.mark.parametrize(
    ("settings", "scenario"),
    [
        ({"algorithm": "symmetric"}, {}),
        ({"interpolation": "leader"}, {}),
        ({"robust": "clip"}, {}),
        ({"quarantine_s": 3.0}, {}),
        ({}, {"churn": {"start_spread_s": 1.0}}),
        ({}, {"network": {"unreachable": 0.5}}),
        ({}, {"model_mb": 1000, "network": {"upload_mbps": 100}}),
    ],
)
def test_what_arrays_would_leave_out_is_simulated_with_whole_nodes(settings, scenario):
    run = {"schedule": "lockstep", "rounds": 2, "task": "quadratic", **scenario}
    assert simulated(4, settings, **run).detail == "nodes"
    with pytest.raises(UserError, match="detail: expected auto or nodes"):
        simulated(4, settings, detail="arrays", **run)
    with pytest.raises(UserError, match="nodes: expected at most 2000"):
        simulated(2001, settings, **run)


def test_rounds_end_a_run_in_which_no_time_passes():
    assert simulated(4, rounds=3, compute={"step_ms": 0}).nodes[0].updates == 3


@pytest.mark.parametrize("schedule", ["lockstep", "asynchronous"])
def test_one_node_alone_trains(schedule):
    outcome = simulated(1, schedule=schedule, rounds=30, task="quadratic")
    assert outcome.nodes[0].updates == 30
    assert outcome.nodes[0].merges == outcome.nodes[0].bytes_sent == 0


@pytest.mark.slow
@pytest.mark.timed
def test_ten_thousand_nodes_take_a_thousand_rounds_in_less_than_a_minute():
    spec = run_spec(10_000, schedule="lockstep", rounds=1000)
    before = time.monotonic()
    outcome = simulate(spec)
    assert time.monotonic() - before < at_most(60.0)
    assert outcome.samples[-1].variance_ratio < 1e-25
    served = np.array([node.served for node in outcome.nodes])
    assert served.max() < 1200


@pytest.mark.parametrize("schedule", ["lockstep", "asynchronous"])
def test_a_run_of_rounds_ends_however_nodes_come_and_go(schedule):
    for returns in (0.5, None):
        churn = {"kill_every_s": 0.2, "return_after_s": returns}
        for seed in range(3):
            outcome = simulated(5, schedule=schedule, rounds=20, churn=churn, seed=seed)
            assert outcome.samples[-1].round == 20 or outcome.samples[-1].nodes < 5
            assert max(node.updates for node in outcome.nodes) <= 20
            if returns is None:
                assert outcome.samples[-1].nodes == 0 or outcome.samples[-1].round == 20


@pytest.mark.parametrize("schedule", ["lockstep", "asynchronous"])
def test_what_nodes_do_themselves_is_added_to_each_step(schedule):
    costs = {"round_ms": 10.0, "publish_ms_per_mb": 1.0, "merge_ms_per_mb": 2.0}
    run = simulated(
        4, {"fetch_probability": 0.0}, rounds=20, model_mb=40.0, schedule=schedule, costs=costs,
        compute={"steps_ms": [50.0]},
    )  # fmt: skip
    assert run.samples[-1].time_s == pytest.approx(20 * (0.05 + 0.01 + 0.04), rel=0.01)
