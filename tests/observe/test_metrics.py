"""What monitoring gets of a node: the list, and how it is read."""

import numpy as np
import pytest
from support.nodes import config_of

from dpwa import DpwaConnection
from dpwa.config import load_config
from dpwa.errors import ConfigError
from dpwa.node.report import PeerReport
from dpwa.observe.figures import NAMES
from dpwa.observe.prometheus import OTHER, PeerCounters


def peers(**counts):
    """Entries of a report, with these bytes received."""
    return [
        PeerReport(name=name, bytes_received=count, bytes_sent=2 * count, merges=1)
        for name, count in counts.items()
    ]


def test_names_are_those_of_the_conventions():
    pytest.importorskip("prometheus_client", reason="needs the extra: pip install dpwa[metrics]")
    from support.metrics import all_metrics

    families = [metric.name for metric in all_metrics()]
    assert len(set(families)) == len(families)
    for metric in all_metrics():
        assert metric.unit in ("", "bytes", "seconds", "updates")
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))


def test_peers_beyond_the_first_are_added_up():
    counters = PeerCounters(most=2)
    assert counters.take(peers(a=1, b=2)) == {"a": (1, 2, 1), "b": (2, 4, 1)}
    rows = counters.take(peers(c=10, b=2, a=1, d=20))
    assert rows == {"b": (2, 4, 1), "a": (1, 2, 1), OTHER: (30, 60, 2)}


def test_what_is_added_up_never_falls_when_peers_come_and_go():
    counters = PeerCounters(most=1)
    counters.take(peers(a=1, b=5, c=7))
    assert counters.take(peers(a=1, c=7))[OTHER][0] == 12  # b has left
    assert counters.take(peers(a=1, b=2, c=8))[OTHER][0] == 15  # and begins again
    assert counters.take(peers(b=3, c=8))[OTHER][0] == 16  # a leaves: b stays where it is
    rows = counters.take(peers(b=3, c=8, e=4))
    assert rows == {"e": (4, 8, 1), OTHER: rows[OTHER]}
    assert rows[OTHER][0] == 16


def test_a_peer_may_be_called_as_all_others_are():
    assert PeerCounters().take(peers(other=3, a=1)) == {"a": (1, 2, 1), OTHER: (3, 6, 1)}


def test_loggers_of_trainers_get_a_flat_dict():
    config = config_of(2, transport="tcp")
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        assert one.metrics()["dpwa/steps"] == 0
        assert "dpwa/loss" not in one.metrics()
        assert "dpwa/staleness" not in one.metrics()
        while one.metrics()["dpwa/merges"] < 2:
            two.update_send(np.zeros(1000), 0.25)
            one.update_send(np.ones(1000), 0.5)
            two.update_wait()
            one.update_wait()
        told = one.metrics()
    assert told["dpwa/loss"] == 0.5
    assert told["dpwa/received_bytes"] >= 16_000
    assert 0 < told["dpwa/wait_share"] < 1
    assert abs(told["dpwa/staleness"]) < 100
    assert all(isinstance(value, (int, float)) for value in told.values())
    assert {tag.removeprefix("dpwa/") for tag in told} - {"wait_share", "staleness"} < {*NAMES}


def test_nodes_need_a_port_each():
    load_config(config_of(2, metrics={"port": 65534}))
    with pytest.raises(
        ConfigError, match=r"metrics.port: expected a port up to 65534, because 2 nodes"
    ):
        load_config(config_of(2, metrics={"port": 65535}))
