"""Snapshots of simulated nodes: they take the time and the bytes of those they stand for."""

import pytest
from support.simulated_nodes import nodes_run
from support.simulations import run_spec

from dpwa.sim.conditions import Conditions
from dpwa.sim.nodes import training
from dpwa.sim.nodes.training import ScaledSnapshots
from dpwa.wire import limits

FAST_STEP = {"step_ms": 1.0}


def links(mbps, latency_ms):
    return {"upload_mbps": mbps, "download_mbps": mbps, "latency_ms": latency_ms}


def run_of(megabytes, network, settings=None, nodes=2, **scenario):
    settings = {"timeout_ms": 60_000, **(settings or {})}
    scenario = {"rounds": 5, "compute": FAST_STEP, **scenario}
    return nodes_run(nodes, settings, model_mb=megabytes, network=network, **scenario)


def stand_in_of(megabytes, settings=None, network=None):
    spec = run_spec(2, settings, model_mb=megabytes, network=network or links(100, 1))
    return ScaledSnapshots.from_spec(spec, Conditions(spec), 32)


def bytes_of_a_fetch(run):
    outcome = run.simulate()
    return sum(n.bytes_sent for n in outcome.nodes) / sum(n.served for n in outcome.nodes)


def test_a_sender_far_away_waits_for_credit():
    node = run_of(100, links(10_000, 35)).simulate().nodes[0]
    # 96 pieces, three of them granted by each of 30 messages; two are under way at once.
    assert node.waited_s / node.merges == pytest.approx(0.07 * (1 + 30 / 2), rel=0.1)


@pytest.mark.parametrize(
    ("network", "settings"),
    [
        (links(10_000, 35), {}),
        pytest.param(links(1000, 12), {}, marks=pytest.mark.slow),
        pytest.param(links(1000, 5), {}, marks=pytest.mark.slow),
        pytest.param(links(100, 1), {}, marks=pytest.mark.slow),
        pytest.param(links(1000, 1), {"max_upload_mbps": 100}, marks=pytest.mark.slow),
        pytest.param(links(1000, 5), {"fraction": 0.3}, marks=pytest.mark.slow),
        (links(1000, 10), {"codec": "int8"}),
        pytest.param(links(1000, 4), {"codec": "bf16"}, marks=pytest.mark.slow),
        pytest.param(links(1000, 10), {"algorithm": "symmetric"}, marks=pytest.mark.slow),
    ],
)
def test_a_run_takes_what_it_takes_with_whole_snapshots(network, settings, monkeypatch):
    # With other seeds, the last bytes of a fetch decide who exchanges with whom.
    def outcome():
        run = run_of(10, network, settings, 3, compute={"step_ms": 50.0, "jitter": 0.2}, seed=3)
        return run.simulate()

    small = outcome()
    for name in ("ENOUGH_BYTES", "FEWEST_PIECES"):
        monkeypatch.setattr(training, name, 10**12)
    whole = outcome()
    assert small.samples[-1].time_s == pytest.approx(whole.samples[-1].time_s, rel=0.01)
    for one, other in zip(small.nodes, whole.nodes, strict=True):
        assert one.waited_s == pytest.approx(other.waited_s, rel=0.02, abs=0.001)
        assert one.bytes_sent == pytest.approx(other.bytes_sent, rel=0.002)


@pytest.mark.parametrize("megabytes", [0.001, 0.6, 3, 10, 100, 1000, 4000])
@pytest.mark.parametrize("settings", [{}, {"codec": "int8"}, {"fraction": 0.05}])
def test_a_snapshot_is_small_and_stands_for_all_its_bytes(megabytes, settings):
    found = stand_in_of(megabytes, settings)
    assert found.layout.nbytes <= 5 * 1024 * 1024
    assert found.layout.nbytes * found.scale == pytest.approx(megabytes * 1e6, rel=1e-3)
    pieces = found.layout.pieces(found.layout.nbytes, limits.CHUNK_BYTES)
    if "fraction" in settings:  # else larger pieces may do
        assert len(pieces) == -(-megabytes * 1e6 // limits.CHUNK_BYTES)


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        pytest.param({"codec": "bf16"}, 0.5, marks=pytest.mark.slow),
        ({"codec": "fp16"}, 0.5),
        pytest.param({"codec": "int8"}, (1 + 4 / 256) / 4, marks=pytest.mark.slow),
    ],
)
def test_codecs_make_of_a_model_what_they_make_of_float32(settings, share):
    network = links(1000, 1)
    plain = bytes_of_a_fetch(run_of(10, network, rounds=20))
    coded = bytes_of_a_fetch(run_of(10, network, settings, rounds=20))
    assert coded / plain == pytest.approx(share, rel=0.03)


def test_codecs_act_on_the_values_whatever_the_size_of_the_model():
    def variance_ratio(codec):
        return (
            run_of(10, links(1000, 1), {"codec": codec}, rounds=20)
            .simulate()
            .samples[-1]
            .variance_ratio
        )

    assert variance_ratio("none") < 1e-12
    assert 1e-12 < variance_ratio("int8") < 1e-3


def test_who_joins_gets_its_state_from_one_donor_at_the_rate_of_its_link():
    network = {"upload_mbps": 20, "download_mbps": 100, "latency_ms": 5}
    settings = {"algorithm": "local"}
    run = run_of(20, network, settings, 6, rounds=None, seconds=100, compute={"step_ms": 500.0})
    run.plan_events()
    run.network.run_until(20.0)
    run.kill(run.nodes[0])
    run.start(run.nodes[0])
    while not run.nodes[0].has_joined:
        run.network.run_for(0.1)
    assert run.nodes[0].has_taken_over
    took_s = run.network.clock.now() - 20.0
    run.end_run()
    # Copies of two donors differ. From two at once it would take half as long.
    assert took_s == pytest.approx(8.7, abs=0.7)
