"""Members that are killed, stand still, or are cut off: real processes, signals and links."""

import json
import signal
import time
from contextlib import contextmanager

from support.nodes import eventually
from support.open_cluster import cluster
from support.ports import free_ports
from support.processes import ended, start
from support.times import at_most

from dpwa.testing import TcpProxy


@contextmanager
def process(name, *join):
    """A node in a process of its own; its address is what it prints first."""
    config = json.dumps({"join": join, "log_level": "error"})
    child = start("gossip.py", name, config)
    with ended(child):
        child.endpoint = child.stdout.readline().split()[0]
        yield child


def test_a_killed_member_is_dropped_by_all_and_takes_its_place_again():
    with cluster() as nodes:
        nodes.add("a")
        nodes.add("b", "a")
        with process("c", nodes.endpoint("a")) as child:
            eventually(lambda: all("c" in node.peers for node in nodes.nodes.values()))
            child.kill()
            began = time.monotonic()
            nodes.agree()
            assert 2.0 < time.monotonic() - began < at_most(8.0)  # it had its chance to contradict
        with process("c", nodes.endpoint("b")) as child:  # nobody is in its way
            eventually(lambda: all("c" in node.peers for node in nodes.nodes.values()))
            child.kill()
            with process("c", nodes.endpoint("b")):  # nor is it itself, a moment ago
                eventually(
                    lambda: all(
                        next(
                            m["endpoint"]
                            for m in node.node.report()["membership"]["members"]
                            if m["name"] == "c"
                        )
                        != child.endpoint
                        for node in nodes.nodes.values()
                    )
                )


def test_a_member_that_stands_still_is_dropped_and_comes_back_when_it_goes_on():
    with cluster() as nodes:
        nodes.add("a")
        nodes.add("b", "a")
        with process("c", nodes.endpoint("a")) as child:
            eventually(lambda: all("c" in node.peers for node in nodes.nodes.values()))
            child.send_signal(signal.SIGSTOP)
            nodes.agree(timeout_s=20.0)
            child.send_signal(signal.SIGCONT)
            eventually(lambda: all("c" in node.peers for node in nodes.nodes.values()), 20.0)
            time.sleep(1.0)
            assert all({"a", "b"} <= {*node.peers, name} for name, node in nodes.nodes.items())


def test_parts_that_were_cut_off_go_on_and_find_each_other_again():
    ports = free_ports(2)
    with TcpProxy("127.0.0.1", ports[0]) as to_a, TcpProxy("127.0.0.1", ports[1]) as to_b:
        places = [f"tcp://127.0.0.1:{port}" for port in (*ports, to_a.port, to_b.port)]
        with cluster() as nodes:
            nodes.add("a", listen=places[0], advertise=places[2])
            nodes.add("b", "a", listen=places[1], advertise=places[3])
            nodes.agree()
            to_a.cut()
            to_b.cut()
            eventually(lambda: not any(node.peers for node in nodes.nodes.values()), 20.0)
            for node in nodes.nodes.values():
                assert node.node.report()["membership"]["components"] == 2
            assert set(nodes.gossip().values()) == {None}  # and nothing is raised
            to_a.heal()
            to_b.heal()
            nodes.agree(timeout_s=15.0)
            eventually(lambda: all(value is not None for value in nodes.gossip().values()))
            for node in nodes.nodes.values():
                assert node.node.report()["membership"]["components"] == 1
