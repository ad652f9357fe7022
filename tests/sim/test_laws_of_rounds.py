"""Laws of averaging that need many nodes, in the engines at the level of rules."""

import itertools
import math
import statistics

import numpy as np
import pytest
from support.simulations import BY_ARRAYS, BY_EVENTS, BY_NODES, played, run_spec, simulated

TARGET = {"variance_ratio": 1e-6}


def rounds_to_target(nodes, seed, **settings):
    """Of pulls with f = 0.5 in lockstep."""
    outcome = simulated(nodes, settings, schedule="lockstep", rounds=200, target=TARGET, seed=seed)
    last = outcome.samples[-1]
    assert last.variance_ratio <= 1e-6
    return last.round


@pytest.mark.slow
def test_rounds_of_pulls_to_consensus_of_ten_thousand():
    assert rounds_to_target(10_000, 1) in (20, 21)


@pytest.mark.parametrize("kind", [BY_ARRAYS, BY_NODES])
@pytest.mark.parametrize(("f", "p"), [(0.5, 1.0), (0.3, 0.6)])
def test_variance_shrinks_by_the_law_of_lockstep_pulls(kind, f, p):
    nodes, ratios = 12, []
    for seed in range(4 if kind is BY_NODES else 8):
        settings = {"constant": {"value": f}, "fetch_probability": p}
        spec = run_spec(nodes, settings, schedule="lockstep", rounds=30, seed=seed)
        samples = played(kind, spec)[1]
        assert len(samples) == 31
        values = [sample.variance_ratio for sample in samples]
        ratios += [after / before for before, after in itertools.pairwise(values)]
    n, one = nodes, 1.0 / (nodes - 1)
    law = 1 - 2 * p * f * (1 - f) * n * one - f**2 * (2 * p * one - p**2 * n * one**2)
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    assert statistics.mean(ratios) == pytest.approx(law, abs=4 * error)
    assert error < 0.02


def test_arrays_and_nodes_do_the_same_where_there_is_no_chance():
    settings = {"topology": "one_peer_exponential", "interpolation": "clock", "fraction": 0.5}
    for merge in ("delta", "interpolate"):
        spec = run_spec(
            9,
            {**settings, "merge": merge},
            {"dimension": 5, "heterogeneity": 1.0},
            schedule="lockstep",
            task="quadratic",
            rounds=25,
            compute={"jitter": 0.3},
            network={"latency_ms": 40, "upload_mbps": 2, "sites": [{"name": "a"}, {"name": "b"}]},
            model_mb=0.01,
        )
        (arrays, by_arrays), (nodes, by_nodes) = played(BY_ARRAYS, spec), played(BY_NODES, spec)
        assert arrays.x == pytest.approx(nodes.fleet.x, abs=1e-12)
        assert arrays.time_s == pytest.approx(nodes.time_s, abs=1e-9)
        assert [s.bytes_per_node for s in by_arrays] == pytest.approx(
            [s.bytes_per_node for s in by_nodes]
        )
        for one, other in zip(arrays.figures(), nodes.fleet.figures(), strict=True):
            assert vars(one) == pytest.approx(vars(other), abs=1e-6)


@pytest.mark.parametrize("topology", ["random", "ring", "small_world"])
def test_arrays_and_nodes_follow_the_same_law_where_there_is(topology):
    means = []
    for kind in (BY_ARRAYS, BY_NODES):
        logs = []
        for seed in range(8):
            spec = run_spec(16, {"topology": topology}, schedule="lockstep", rounds=12, seed=seed)
            logs.append(math.log(played(kind, spec)[1][-1].variance_ratio))
        means.append((statistics.mean(logs), statistics.variance(logs) / len(logs)))
    (one, one_error), (other, other_error) = means
    assert one == pytest.approx(other, abs=4 * math.sqrt(one_error + other_error))


@pytest.mark.parametrize("kind", [BY_NODES, BY_EVENTS])
@pytest.mark.parametrize("settings", [{}, {"topology": "ring"}])
def test_exchanges_keep_the_mean(kind, settings):
    spec = run_spec(
        16,
        {"algorithm": "symmetric", **settings},
        schedule="lockstep",
        rounds=40,
        compute={"spread": 0.3, "jitter": 0.3},
    )
    made, samples = played(kind, spec)
    assert samples[-1].variance_ratio < 0.1
    # What is decided and not yet merged is on both sides of the mean.
    in_flight = sum(
        0.5 * (a.snapshot.values.array - a.published.array)
        for node in made.fleet.participants
        for a in node.inbox
    )
    starts = np.random.default_rng(0).normal(size=(16, 8))
    assert (made.fleet.x.sum(axis=0) + in_flight) == pytest.approx(starts.sum(axis=0), abs=1e-12)


@pytest.mark.parametrize("kind", [BY_NODES, BY_EVENTS])
def test_push_sum_finds_the_exact_mean_on_a_directed_graph(kind):
    settings = {"algorithm": "push_sum", "topology": "exponential", "push_sum": {"probability": 1}}
    spec = run_spec(8, settings, schedule="lockstep", rounds=200)
    made = played(kind, spec)[0]
    starts = np.random.default_rng(0).normal(size=(8, 8))
    assert made.fleet.x == pytest.approx(np.tile(starts.mean(axis=0), (8, 1)), abs=1e-12)
    weights = sum(node.mass.held + node.mass.in_flight for node in made.fleet.participants)
    assert weights == 8 * 2**40


@pytest.mark.parametrize(("nodes", "is_exact"), [(1024, True), (1000, False), (16, True)])
def test_the_one_peer_exponential_graph_is_exact_iff_nodes_are_a_power_of_two(nodes, is_exact):
    rounds = math.ceil(math.log2(nodes))
    settings = {"topology": "one_peer_exponential"}
    outcome = simulated(nodes, settings, schedule="lockstep", rounds=rounds)
    assert (outcome.samples[-1].variance_ratio < 1e-25) is is_exact


def test_it_is_exact_too_if_nobody_waits_as_rounds_have_numbers():
    settings = {"topology": "one_peer_exponential"}
    for jitter in (0.0, 0.5):
        outcome = simulated(16, settings, rounds=4, compute={"jitter": jitter})
        assert outcome.samples[-1].variance_ratio < 1e-25


def test_elastic_averaging_keeps_the_sum_of_parameters_and_center():
    settings = {"algorithm": "elastic", "topology": "one_peer_exponential"}
    settings["elastic"] = {"period": 1}
    made = played(BY_NODES, run_spec(16, settings, schedule="lockstep", rounds=40))[0]
    nodes = made.fleet.participants
    center = np.mean([node.algorithm.center.array for node in nodes], axis=0)
    starts = np.random.default_rng(0).normal(size=(16, 8))
    kept = starts.sum(axis=0) + starts.mean(axis=0)
    assert made.fleet.x.sum(axis=0) + center == pytest.approx(kept, abs=1e-12)
