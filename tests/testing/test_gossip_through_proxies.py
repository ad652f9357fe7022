"""Two nodes whose links go through proxies: they bear what the proxies do, and find back."""

import time
from contextlib import ExitStack

import numpy as np
import pytest
from support.nodes import config_of, eventually, status_of
from support.times import at_most

from dpwa import DpwaConnection
from dpwa.testing import TcpProxy

TIMEOUT_MS = 1000
PARAMETERS = np.zeros(1000, np.float32)


class Pair:
    """Nodes w1 and w2; each knows the other by the port of a proxy."""

    def __init__(self, stack):
        config = config_of(2, timeout_ms=TIMEOUT_MS, transport="tcp", log_level="error")
        ports = {node["name"]: node["port"] for node in config["nodes"]}
        self.proxies = {
            name: stack.enter_context(TcpProxy("127.0.0.1", port)) for name, port in ports.items()
        }
        self._nodes = [
            stack.enter_context(DpwaConnection(name, self._seen_from(name, config)))
            for name in ports
        ]

    def _seen_from(self, name, config):
        nodes = [
            node if node["name"] == name else {**node, "port": self.proxies[node["name"]].port}
            for node in config["nodes"]
        ]
        return {**config, "nodes": nodes}

    def round(self):
        """One round of both; return whether both have merged, and how long it took."""
        began = time.monotonic()
        for node in self._nodes:
            node.update_send(PARAMETERS, 0.1)
        merged = [node.update_wait(0.1)[0] is not None for node in self._nodes]
        return all(merged), time.monotonic() - began

    def rounds_until_merged(self):
        return eventually(lambda: self.round()[0])

    def rounds_until(self, outcome):
        """Run rounds, each within its bound, until a fetch of w1 has ended in this way."""

        def attempt():
            _, took_s = self.round()
            assert took_s < at_most(2 * TIMEOUT_MS / 1000 + 0.2)
            return status_of(self._nodes[0], "w2")["outcomes"].get(outcome)

        eventually(attempt)

    def all(self, action):
        for proxy in self.proxies.values():
            getattr(proxy, action)()


@pytest.fixture
def pair():
    with ExitStack() as stack:
        yield Pair(stack)


def test_everything_goes_through_the_proxies(pair):
    pair.rounds_until_merged()
    for proxy in pair.proxies.values():
        assert proxy.counts.bytes_from_target > PARAMETERS.nbytes


def test_nodes_gossip_over_a_slow_link(pair):
    pair.rounds_until_merged()
    for proxy in pair.proxies.values():
        proxy.delay_s = 0.05
    eventually(lambda: pair.round()[1] >= 0.1)
    pair.rounds_until_merged()


def test_a_cut_is_seen_and_healed(pair):
    pair.rounds_until_merged()
    pair.all("cut")
    eventually(lambda: not pair.round()[0])
    assert not any(pair.round()[0] for _ in range(5))
    pair.all("heal")
    pair.rounds_until_merged()


def test_a_black_hole_is_seen_as_timeouts(pair):
    pair.rounds_until_merged()
    pair.all("stall")
    pair.rounds_until("timed_out")
    assert not pair.round()[0]
    pair.all("heal")
    pair.rounds_until_merged()
