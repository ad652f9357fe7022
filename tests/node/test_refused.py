"""A node whose every peer is refused says so again and again, or ends its training."""

import json
import logging
from contextlib import ExitStack

import numpy as np
import pytest
from support.commands import run_dpwa
from support.members import Member
from support.nodes import config_of, eventually
from support.runtimes import Ahead

from dpwa import DpwaConnection
from dpwa.errors import MismatchError
from dpwa.node.gossip_rounds import LOOKED_EVERY_S, SAID_EVERY_S


def healths(node):
    return {peer["name"]: peer["health"] for peer in node.node.report()["peers"]}


def test_while_all_peers_are_refused_a_node_says_why_each_minute_or_raises(caplog, tmp_path):
    config = config_of(3, timeout_ms=500)
    values = {"w1": np.zeros(6, np.float32), "w2": np.zeros(4)}
    unlike = {"w1": {}, "w2": {"if_refused": "raise"}}
    with ExitStack() as stack, caplog.at_level(logging.WARNING):
        nodes, time = {}, {name: Ahead() for name in values}
        for name in values:
            made = DpwaConnection(name, {**config, **unlike[name]}, runtime=time[name])
            nodes[name] = stack.enter_context(made)
        other = Member("w3", {**config, "algorithm": "symmetric"})
        stack.callback(other.adapter.close)

        def step(name, seconds=0.0):
            time[name].seconds += seconds
            nodes[name].update_send(values[name])
            nodes[name].update_wait()

        def said():
            found = [
                r for r in caplog.messages if r.startswith("w1: no peer can train with this node, ")
            ]
            caplog.clear()
            return found

        def have_met():
            step("w1")
            step("w2")
            found = [sorted(healths(node).values()) for node in nodes.values()]
            return found == [["other_model", "other_settings"]] * 2

        eventually(have_met)
        assert not said()
        step("w1", LOOKED_EVERY_S)
        step("w1", LOOKED_EVERY_S)
        step("w1", SAID_EVERY_S - 3.0)
        (line,) = said()
        model = "first difference: here 'parameters' float32[6], there 'parameters' float64[4]"
        algorithm = "algorithm is gossip here, symmetric there"
        assert line == (
            f"w1: no peer can train with this node, so this node trains alone. "
            f"w2 has a different model: {model}. "
            f"w3 has different settings and is not merged: {algorithm} [DPWA-W095]"
        )
        for _ in range(2):
            step("w1", SAID_EVERY_S)
            assert said() == [line]
        path = tmp_path / "nodes.yaml"
        path.write_text(json.dumps(config))
        table = " ".join(run_dpwa("status", "-c", path).stdout.split())
        assert f"w1 says that w2 has a different model: {model}" in table
        assert f"w1, w2 say that w3 has different settings and is not merged: {algorithm}" in table
        step("w2", LOOKED_EVERY_S)
        with pytest.raises(
            MismatchError, match=r"w2: no peer can train with this node\. w1 .*\[DPWA-E314\]"
        ):
            step("w2", LOOKED_EVERY_S)
        nodes["w2"].close()
        eventually(lambda: healths(nodes["w1"])["w2"] == "left")
        said()
        step("w1", SAID_EVERY_S)
        assert said() == [line]  # it was never merged
