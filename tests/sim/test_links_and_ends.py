"""Links, codecs and ends of simulated runs."""

import json

import numpy as np
import pytest
from support.commands import run_dpwa
from support.simulations import run_spec

from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.sim.simulate import simulate
from dpwa.sim.summary import figures_of

SCHEDULES = pytest.mark.parametrize("schedule", ["lockstep", "asynchronous"])


def figures(nodes, settings=None, **scenario):
    spec = run_spec(nodes, settings, **scenario)
    outcome = simulate(spec)
    return figures_of(spec, outcome), outcome


def merges(outcome):
    return [node.merges for node in outcome.nodes]


def test_what_is_sent_of_a_snapshot_that_nobody_waits_for_is_counted():
    network = {"upload_mbps": 100, "download_mbps": 100}
    found, outcome = figures(3, {"timeout_ms": 5000}, seconds=30.0, network=network, model_mb=500)
    assert merges(outcome) == [0, 0, 0]
    # Links are busy much of the time, with 12.5 MB/s.
    assert 0.35 * 30 * 12.5e6 < found.bytes_per_node < 1.05 * 30 * 12.5e6


@SCHEDULES
def test_who_nobody_can_connect_to_takes_no_part_in_exchanges(schedule):
    found, outcome = figures(
        4,
        {"algorithm": "symmetric"},
        schedule=schedule,
        rounds=30,
        network={"unreachable": 0.5},
    )
    assert sorted(n > 0 for n in merges(outcome)) == [False, False, True, True]
    assert found.variance_ratio > 0.1


@pytest.mark.parametrize(
    ("settings", "share"),
    [({"codec": "bf16"}, 0.5), ({"codec": "int8"}, 0.254), ({"codec": "fp16"}, 0.5)],
)
def test_a_codec_makes_of_a_model_what_it_makes_of_float32(settings, share):
    spec = run_spec(8, rounds=1, model_mb=8)
    coded = WireSizes.from_spec(run_spec(8, settings, rounds=1, model_mb=8), 1)
    assert coded.answer / WireSizes.from_spec(spec, 1).answer == pytest.approx(share, rel=0.01)


def test_other_parts_of_a_version_that_was_merged_are_fetched():
    settings = {"fraction": 0.25, "merge": "interpolate"}
    stragglers = [{"nodes": 3, "slower": 10}]
    _, outcome = figures(4, settings, seconds=20.0, model_mb=1, compute={"stragglers": stragglers})
    # The slow ones publish twenty times each, which is four parts of three nodes each time.
    assert max(merges(outcome)) > 100


def test_nodes_that_are_lost_come_back_if_nodes_do():
    churn = {"lost": [{"at_s": 2.0, "share": 1.0}], "return_after_s": 1.0}
    found, _ = figures(4, seconds=20.0, churn=churn)
    assert (found.nodes, found.events) == (4, 8)


@SCHEDULES
def test_a_run_is_as_long_as_it_says_at_most(schedule):
    for seconds in (1.95, 2.0, 2.05):
        found, outcome = figures(3, schedule=schedule, seconds=seconds)
        assert found.seconds == seconds
        assert all(19 <= node.updates <= 21 for node in outcome.nodes)


@SCHEDULES
def test_no_round_is_left_half_done_at_the_end(schedule):
    spec = run_spec(4, seconds=0.99, schedule=schedule, task="quadratic")
    assert {node.updates for node in simulate(spec).nodes} == {9}


def test_bytes_of_the_run_are_those_of_its_nodes():
    # Ends in the middle of many streams.
    found, outcome = figures(6, rounds=30, model_mb=2, target={"variance_ratio": 0.01})
    assert found.reached
    mean = np.mean([node.bytes_sent for node in outcome.nodes])
    assert found.bytes_per_node == pytest.approx(mean, rel=0.001)


def test_variance_says_nothing_before_there_is_something_to_compare():
    target = {"variance_ratio": 0.001}
    trained, _ = figures(4, task="quadratic", rounds=3, target=target)
    assert trained.rounds_to_target is None or trained.rounds_to_target >= 1.0
    churn = {"start_spread_s": 10.0}
    spread, _ = figures(4, seconds=60.0, churn=churn, target=target)
    assert spread.reached
    assert spread.seconds_to_target >= 10.0


def test_a_run_that_diverges_is_valid_json(tmp_path):
    path = tmp_path / "diverges.yaml"
    path.write_text("nodes: 4\nrounds: 400\ntask: quadratic\nquadratic: {lr: 300}\n")
    result = run_dpwa("sim", path, "--json")
    found = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"it has {name}"))
    assert found["loss"] is None
    assert "Warning" not in result.stderr
