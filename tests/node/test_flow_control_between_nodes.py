"""Whom a node asks: peers that fail again and again rest, and those far away are asked less."""

import time
from contextlib import ExitStack

import numpy as np
from support.imposters import imposter
from support.inside import context_of
from support.nodes import config_of, eventually, status_of
from support.times import at_most

from dpwa import DpwaConnection
from dpwa.policy.health import Outcome
from dpwa.testing.proxy import TcpProxy
from dpwa.wire.messages import Refused, decode, encode

PARAMETERS = np.zeros(1000, np.float32)


def round_of(connection, parameters=PARAMETERS):
    """Publish and merge; return whether something came."""
    connection.update_send(parameters, 0.1)
    return connection.update_wait(0.1)[0] is not None


def refuse(frames):
    message, _ = decode(frames)
    if message.type == "fetch":
        yield [encode(Refused(request=message.request, reason="no"))]


def failures(connection):
    return status_of(connection, "w2")["outcomes"].get("misbehaved", 0)


def test_a_peer_that_fails_again_and_again_is_left_alone_until_it_is_connected_anew():
    config = config_of(2, transport="tcp", timeout_ms=500, repeat="merge", log_level="error")
    with DpwaConnection("w1", config) as mine:
        with imposter(config["nodes"][1]["port"], refuse):
            eventually(lambda: round_of(mine) or failures(mine) >= 3)
            end, rounds = time.monotonic() + 1.5, 0
            while time.monotonic() < end:
                assert not round_of(mine)
                rounds += 1
                time.sleep(0.002)
            # Rests of 0, up to 1, 2, 4, 8 s: so many in this time are most unlikely.
            assert failures(mine) <= 15 < rounds
            eventually(lambda: round_of(mine) or status_of(mine, "w2")["rests"])
        with DpwaConnection("w2", config) as theirs:
            theirs.update_send(PARAMETERS, 0.1)
            eventually(lambda: round_of(mine), timeout_s=5.0)
            assert not status_of(mine, "w2")["rests"]
            theirs.update_wait(0.1)


def test_while_the_only_peer_rests_it_is_asked_within_seconds_and_found_to_be_back():
    config = config_of(2, transport="tcp", repeat="merge", log_level="error")
    with DpwaConnection("w1", config) as mine, DpwaConnection("w2", config) as theirs:
        theirs.update_send(PARAMETERS, 0.1)
        eventually(lambda: round_of(mine))
        peer_table = context_of(mine.node).peer_table
        for _ in range(20):  # the connection stands, so that none anew ends the rest
            peer_table.record("w2", Outcome.TIMED_OUT)
        assert status_of(mine, "w2")["rests"]
        eventually(lambda: round_of(mine), timeout_s=6.0)
        assert not status_of(mine, "w2")["rests"]
        theirs.update_wait(0.1)


class Star:
    """w1, and peers that it reaches through proxies of these settings (`None`: directly)."""

    def __init__(self, stack, *links, **settings):
        config = config_of(1 + len(links), transport="tcp", repeat="merge", **settings)
        nodes = config["nodes"]
        self.peers = [stack.enter_context(DpwaConnection(n["name"], config)) for n in nodes[1:]]
        seen = [nodes[0]]
        for node, link in zip(nodes[1:], links, strict=True):
            if link is not None:
                proxy = stack.enter_context(TcpProxy("127.0.0.1", node["port"], **link))
                node = {**node, "port": proxy.port}
            seen.append(node)
        self.node = stack.enter_context(DpwaConnection("w1", {**config, "nodes": seen}))

    def publish(self, parameters=PARAMETERS):
        for peer in self.peers:
            peer.update_send(parameters, 0.1)

    def fetched(self, name):
        return status_of(self.node, name)["outcomes"].get("fetched", 0)


def test_a_link_of_200_ms_and_20_mbit_works_with_the_defaults_and_is_measured():
    with ExitStack() as stack:
        link = {"delay_s": 0.1, "bandwidth_bytes_per_s": 2.5e6}
        star = Star(stack, link, timeout_ms=2500)
        parameters = np.zeros(10**6, np.uint8)
        star.publish(parameters)
        eventually(lambda: round_of(star.node, parameters))
        enough = star.fetched("w2") + 3
        eventually(lambda: round_of(star.node, parameters) and star.fetched("w2") >= enough)
        peer = status_of(star.node, "w2")
        assert 120 < peer["latency_ms"] < 1000 * at_most(0.28)
        assert 8 / 24 < 8 / peer["bandwidth_mbps"] < at_most(8 / 16)  # seconds for each MB


def test_a_link_of_2_mbit_works_with_a_longer_timeout():
    with ExitStack() as stack:
        star = Star(stack, {"bandwidth_bytes_per_s": 0.25e6}, timeout_ms=60_000)
        parameters = np.zeros(10**6, np.uint8)
        star.publish(parameters)
        eventually(lambda: round_of(star.node, parameters), timeout_s=12.0)
        bandwidth_mbps = status_of(star.node, "w2")["bandwidth_mbps"]
        assert 8 / 2.4 < 8 / bandwidth_mbps < at_most(8 / 1.6)


def test_a_peer_far_away_is_asked_less_often_than_one_near_by():
    with ExitStack() as stack:
        star = Star(stack, None, {"delay_s": 0.2})
        star.publish()
        eventually(lambda: round_of(star.node) and star.fetched("w2") and star.fetched("w3"))
        before = {name: star.fetched(name) for name in ("w2", "w3")}
        for _ in range(60):
            round_of(star.node)
        # 0.4 s is 4 times what nobody is called slow for: it takes part in 1/4, and wins half.
        near, far = (star.fetched(name) - before[name] for name in ("w2", "w3"))
        assert 0 < far < near  # 7.5 of 60 are expected, 30 by chance alone
