"""Laws of averaging that need many rounds, or many nodes."""

import itertools
import math
import statistics

import pytest
from support.simulated_nodes import nodes_run
from support.simulations import by_arrays, run_spec, simulated

from dpwa.sim.nodes.engine import NodesRun

TARGET = {"variance_ratio": 1e-6}
EPS = 2.0**-23  # of float32


def rounds_to_target(nodes, seed, **settings):
    """Of pulls with f = 0.5 in lockstep."""
    outcome = simulated(nodes, settings, schedule="lockstep", rounds=200, target=TARGET, seed=seed)
    last = outcome.samples[-1]
    assert last.variance_ratio <= 1e-6
    return last.round


@pytest.mark.slow
def test_rounds_of_pulls_to_consensus_of_ten_thousand():
    assert rounds_to_target(10_000, 1) in (20, 21)


def by_nodes(nodes, settings, **scenario):
    return nodes_run(nodes, settings, schedule="lockstep", **scenario).simulate()


def in_arrays(nodes, settings, **scenario):
    return by_arrays(run_spec(nodes, settings, schedule="lockstep", **scenario))[1]


KINDS = pytest.mark.parametrize("kind", [in_arrays, pytest.param(by_nodes, marks=pytest.mark.slow)])


@KINDS
@pytest.mark.parametrize(("f", "p"), [(0.5, 1.0), (0.3, 0.6)])
def test_variance_shrinks_by_the_law_of_lockstep_pulls(kind, f, p):
    nodes, ratios = 12, []
    for seed in range(8):
        settings = {"constant": {"value": f}, "fetch_probability": p}
        samples = kind(nodes, settings, rounds=30, seed=seed).samples
        values = {sample.round: sample.variance_ratio for sample in samples}
        assert values.keys() >= set(range(31))
        by_round = [values[n] for n in range(31)]  # down to 1e-12, which float32 can still tell
        ratios += [after / before for before, after in itertools.pairwise(by_round)]
    n, one = nodes, 1.0 / (nodes - 1)
    law = 1 - 2 * p * f * (1 - f) * n * one - f**2 * (2 * p * one - p**2 * n * one**2)
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    assert statistics.mean(ratios) == pytest.approx(law, abs=4 * error)
    assert error < 0.02


@pytest.mark.parametrize("merge", ["delta", "interpolate"])
def test_arrays_and_nodes_do_the_same_where_there_is_no_chance(merge):
    settings = {"topology": "one_peer_exponential", "interpolation": "clock", "merge": merge}
    spec = run_spec(
        9,
        settings,
        {"dimension": 5, "heterogeneity": 1.0},
        schedule="lockstep",
        task="quadratic",
        rounds=25,
        compute={"jitter": 0.3},
        network={"latency_ms": 40, "upload_mbps": 2, "sites": [{"name": "a"}, {"name": "b"}]},
        model_mb=0.01,
    )
    (arrays, outcome), run = by_arrays(spec), NodesRun(spec, lambda sample: True)
    nodes = run.simulate()
    # Nodes send float32: each merge takes half of a value below 1, rounded by EPS / 2 at most.
    assert arrays.x == pytest.approx(run.parameters, abs=25 * EPS / 4)
    # They connect first, and hear of each peer who it is and whether it trains: this takes four
    # round trips of 80 ms, and less than 2 KB for each of 8 peers.
    longer_s = nodes.samples[-1].time_s - outcome.samples[-1].time_s
    assert longer_s == pytest.approx(4 * 0.08, abs=0.02)
    for one, other in zip(outcome.nodes, nodes.nodes, strict=True):
        assert (one.merges, one.served) == (other.merges, other.served)
        assert 0 < other.bytes_sent - one.bytes_sent < 8 * 2000


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["random", "ring", "small_world"])
def test_arrays_and_nodes_follow_the_same_law_where_there_is(topology):
    means = []
    for kind in (in_arrays, by_nodes):
        logs = []
        for seed in range(8):
            outcome = kind(16, {"topology": topology}, rounds=12, seed=seed)
            logs.append(math.log(outcome.samples[-1].variance_ratio))
        means.append((statistics.mean(logs), statistics.variance(logs) / len(logs)))
    (one, one_error), (other, other_error) = means
    assert one == pytest.approx(other, abs=4 * math.sqrt(one_error + other_error))


@pytest.mark.parametrize(("nodes", "is_exact"), [(1024, True), (1000, False), (16, True)])
def test_the_one_peer_exponential_graph_is_exact_iff_nodes_are_a_power_of_two(nodes, is_exact):
    rounds = math.ceil(math.log2(nodes))
    settings = {"topology": "one_peer_exponential"}
    outcome = simulated(nodes, settings, schedule="lockstep", rounds=rounds)
    assert (outcome.samples[-1].variance_ratio < 1e-25) is is_exact
