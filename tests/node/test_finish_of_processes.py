"""Whoever finishes waits for a process that trains, and for none that is stopped or killed."""

import json
import signal
import threading

import numpy as np
import pytest
from support.nodes import at_once, config_of, eventually, is_connected
from support.open_cluster import cluster
from support.processes import ended, start

from dpwa.connection import DpwaConnection


class Finishing:
    """One node that finishes on a thread."""

    def __init__(self, connection, **bounds):
        self.result = None
        self._thread = threading.Thread(target=self._run, args=(connection, bounds), daemon=True)
        self._thread.start()

    def _run(self, connection, bounds):
        self.result = connection.finish(np.zeros(4), **bounds)

    @property
    def is_waiting(self):
        return self._thread.is_alive()

    def report(self):
        self._thread.join(60.0)
        return self.result[1]


@pytest.mark.parametrize("transport", [pytest.param("auto", marks=pytest.mark.slow), "tcp"])
def test_a_process_that_trains_is_waited_for_until_it_is_stopped_or_killed(transport):
    config = config_of(2, transport=transport)
    peer = start("gossip.py", "w2", json.dumps(config))
    with ended(peer), DpwaConnection("w1", config) as own:
        assert peer.stdout.readline()  # it gossips
        eventually(lambda: is_connected(own, "w2"), timeout_s=30.0)
        endings = own.node.finish.endings

        finishing = Finishing(own, timeout_s=1e6)
        updates = eventually(
            lambda: endings.ending_of("w2") and endings.ending_of("w2").ending.updates
        )
        eventually(lambda: endings.ending_of("w2").ending.updates > updates + 10, timeout_s=30.0)
        assert finishing.is_waiting
        peer.send_signal(signal.SIGSTOP)
        missed = finishing.report().missed  # its connection may be given up before
        assert missed in ({"w2": "does not answer"}, {"w2": "was lost"})

        peer.send_signal(signal.SIGCONT)
        eventually(lambda: is_connected(own, "w2"), timeout_s=60.0)
        again = Finishing(own, timeout_s=1e6)
        eventually(lambda: endings.ending_of("w2").ending.updates > updates + 100, timeout_s=30.0)
        assert again.is_waiting
        peer.kill()
        assert again.report().missed == {"w2": "was lost"}


def test_members_of_an_open_cluster_finish_together():
    with cluster() as members:
        members.add("a")
        members.add("b", "a")
        members.add("c", "a")
        members.agree(30.0)
        nodes = list(members.nodes.values())
        for node in nodes:
            for peer in node.peers:
                eventually(lambda node=node, peer=peer: is_connected(node, peer))
        results = {}

        def finish(index):
            results[index] = nodes[index].finish(np.full(4, float(index)))

        at_once([lambda index=index: finish(index) for index in range(3)])
    assert all(np.allclose(values, 1.0) for values, _ in results.values())
    assert all(len(report.took_part) == 2 for _, report in results.values())


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_nodes_that_took_part_have_the_same_parameters_though_one_was_stopped(when):
    config = config_of(3)
    stopped = start("stopped_in_finish.py", when, 7, json.dumps(config))
    with ended(stopped), DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        for node in (one, two):
            node.wait_for_peers(2, 60.0)
        found = {}

        def finish(node, value):
            values, report = node.finish(np.full(4, value), timeout_s=20)
            found[node.node.name] = sorted(report.took_part), values[0]

        at_once([lambda: finish(one, 1.0), lambda: finish(two, 2.0)])
        found["w3"] = tuple(json.loads(stopped.stdout.readline()))
    for name, (took_part, value) in found.items():
        for peer in took_part:
            assert found[peer][1] == pytest.approx(value, rel=1e-4), (name, peer)
        assert took_part, name
