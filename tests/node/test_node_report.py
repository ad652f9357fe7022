"""A report of a node: what is told of it, and what is read of one that is foreign."""

import json

import pytest
from support.nodes import config_of

from dpwa.config import load_config
from dpwa.node.node import Node
from dpwa.node.report import NodeReport, PeerReport, installed, read_report


def test_what_a_node_tells_is_read_as_it_was_meant():
    with Node("w1", load_config(config_of(2))) as node:
        condition = node.condition()
    assert read_report(json.loads(json.dumps(condition.plain()))) == condition


def test_it_tells_the_version_of_a_driver_where_there_is_one(tmp_path, monkeypatch):
    file = tmp_path / "version"
    monkeypatch.setattr("dpwa.node.report._DRIVER", file)
    assert set(installed.__wrapped__()) == {"python", "torch"}
    file.write_text("550.54.15\n")
    assert installed.__wrapped__()["driver"] == "550.54.15"


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ({"clock": "x", "loss": [1], "version": 3}, {"version": 3}),
        ({"memory": {"slots": "x", "slot_bytes": 8}}, {"memory": {"slot_bytes": 8}}),
        ({"peers": [7, {"name": "w2"}]}, {"peers": (PeerReport(), PeerReport("w2"))}),
        ({"gossip": {"waits": {"bounds": ["x"]}}, "pid": 3}, {"pid": 3}),
        ({"memory": {3: 4}, "pid": 3, 5: 6}, {"pid": 3}),
        ({"peers": [{"name": "w2", "newer": 1}]}, {"peers": (PeerReport("w2"),)}),
        ({"ending": {}, "model": 3, "membership": []}, {}),
    ],
)
def test_what_is_amiss_in_a_foreign_report_counts_as_not_told(told, read):
    assert repr(read_report(told)) == repr(NodeReport(**read))  # NaN equals nothing
