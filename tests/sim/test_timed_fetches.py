"""What nodes say of answers and streams that they have timed, in runs whose links are known."""

import pytest
from support.simulated_logs import write_simulated_logs
from support.simulated_nodes import nodes_run

from dpwa.observe.run_log_reader import read_run
from dpwa.sim.calibration import calibrate

LATENCY_S = 0.02
MODEL_MB, MBPS = 0.5, 40.0
STREAM_S = 8.0 * MODEL_MB / MBPS  # of nodes that share no link
LINKS = {"latency_ms": 1000 * LATENCY_S, "upload_mbps": MBPS, "download_mbps": MBPS}


def timed(settings, nodes=2, **scenario):
    """Return the sums of all nodes at the end of a run."""
    known = {"network": LINKS, "model_mb": MODEL_MB, "seconds": 30.0, "detail": "nodes"}
    run = nodes_run(nodes, settings, **{**known, **scenario})
    sums = {}

    def add_up():
        for node in run.nodes:
            for name, value in node.connection.node.report()["gossip"].items():
                if name in ("fetches", "answer_s", "streams", "stream_s"):
                    sums[name] = sums.get(name, 0) + value

    run.network.call_later(0.99 * run.spec.scenario.seconds, add_up)
    run.simulate()
    return sums


@pytest.mark.parametrize("algorithm", ["gossip", "symmetric"])
def test_a_stream_is_no_longer_than_what_comes_takes(algorithm):
    """In a transaction, what the partner still has to do is no part of it."""
    found = timed({"algorithm": algorithm}, compute={"steps_ms": [200.0, 400.0]})
    assert found["streams"] > 20
    assert found["stream_s"] / found["streams"] == pytest.approx(STREAM_S, rel=0.1)
    assert found["answer_s"] / found["fetches"] == pytest.approx(2 * LATENCY_S, rel=0.5)


def test_streams_count_where_answers_wait_for_others_and_are_not_timed():
    found = timed({"topology": "one_peer_exponential"}, nodes=4, seconds=12.0)
    assert (found["fetches"], found["answer_s"]) == (0, 0.0)
    assert found["streams"] > 20
    assert found["stream_s"] / found["streams"] == pytest.approx(STREAM_S, rel=0.5)


def test_what_time_was_up_for_counts_with_its_seconds():
    """A stream of 0.8 s, for which the trainer waits 0.5 s at most."""
    found = timed({"timeout_ms": 500}, model_mb=4.0)
    assert found["fetches"] >= found["streams"] > 10
    assert found["stream_s"] / found["streams"] < 0.5


@pytest.mark.slow
def test_a_run_whose_answers_are_not_timed_can_be_calibrated(tmp_path, monkeypatch):
    monkeypatch.setattr("dpwa.sim.calibration.STEPS", 300)
    monkeypatch.setattr("dpwa.sim.calibration.MAX_TRIES", 3)
    known = {"nodes": 4, "seconds": 10, "model_mb": MODEL_MB, "network": LINKS}
    logs = write_simulated_logs(tmp_path, {**known, "topology": "one_peer_exponential"})
    network = calibrate(read_run(logs)).scenario["network"]
    assert network["upload_mbps"] == pytest.approx(MBPS, rel=0.15)
