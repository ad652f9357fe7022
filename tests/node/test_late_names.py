"""Names of hosts that are not known yet, or stand for another address than before, as of pods."""

import json
import os
import re
import select
import time
from pathlib import Path

import pytest
from support.ports import free_ports
from support.processes import ended, start
from support.times import PROCESS_HANGS_AFTER_S

NAMES = ("w1", "w2")


class Hosts:
    """A file in the place of /etc/hosts, and nodes to which it is that."""

    def __init__(self, file):
        self.file = file
        self.ports = dict(zip(NAMES, free_ports(2), strict=True))
        self.write()

    def write(self, **addresses):
        known = [f"{address} {name}.gossip.test\n" for name, address in addresses.items()]
        self.file.write_text("".join(["127.0.0.1 localhost\n", *known]))

    def node(self, name, bind=None):
        """Start a node that prints a line for each merge; it knows its peer by a name."""
        nodes = [
            {"name": n, "host": f"{n}.gossip.test", "port": self.ports[n], "bind": bind}
            for n in NAMES
        ]
        config = {"nodes": nodes, "transport": "tcp", "repeat": "merge", "log_level": "error"}
        return start(
            "with_own.py",
            "hosts",
            self.file,
            "gossip_values.py",
            json.dumps(config),
            name,
            1000,
            1.0,
        )


@pytest.fixture
def hosts(tmp_path):
    """Skips where a process may not have a file of its own there."""
    made = Hosts(tmp_path / "hosts")
    probe = start("with_own.py", "hosts", made.file, "obeying.py")
    with ended(probe):
        probe.communicate(timeout=PROCESS_HANGS_AFTER_S)
    if probe.returncode:
        pytest.skip("no mount namespaces here")
    return made


def says_something(program, seconds):
    return bool(select.select([program.stdout], [], [], seconds)[0])


def test_peers_whose_names_come_late_or_stand_for_another_address_later_are_found(hosts):
    one, first = hosts.node("w1", "*"), hosts.node("w2", "127.0.0.2")
    with ended(one, first):
        assert [one.stdout.readline(), first.stdout.readline()] == ["ready\n", "ready\n"]
        time.sleep(0.5)  # nobody is found meanwhile, and nobody minds
        hosts.write(w1="127.0.0.1", w2="127.0.0.2")
        assert [one.stdout.readline(), first.stdout.readline()] == ["merged\n", "merged\n"]
        first.kill()
        first.wait()
        while says_something(one, 0.3):
            os.read(one.stdout.fileno(), 65_536)
        hosts.write(w1="127.0.0.1", w2="127.0.0.3")
        again = hosts.node("w2", "127.0.0.3")
        with ended(again):
            assert [again.stdout.readline(), again.stdout.readline()] == ["ready\n", "merged\n"]
            assert says_something(one, PROCESS_HANGS_AFTER_S)


def test_a_node_whose_own_name_is_not_known_says_so_at_once(hosts):
    one = hosts.node("w1")
    with ended(one):
        _, errors = one.communicate(timeout=PROCESS_HANGS_AFTER_S)
    assert one.returncode == 1
    assert "cannot listen on tcp://w1.gossip.test" in errors


IN_ONE_PROCESS = """
import json, sys, time
from dpwa.config import load_config
from dpwa.node.node import Node
from dpwa.transport.link import LinkState
config = load_config(json.loads(sys.argv[1]))
nodes = [Node(name, config) for name in ("w1", "w2")]
print("ready", flush=True)
while not all(state is LinkState.UP for node in nodes for state in node.links.values()):
    time.sleep(0.01)
print("connected", flush=True)
"""


def own_ipv6():
    """Addresses of this machine, but ::1, that all programs may use (scope 00: global)."""
    table = Path("/proc/net/if_inet6")
    found = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    return [":".join(re.findall("....", entry[0])) for entry in found if entry[3] == "00"]


@pytest.mark.skipif(not own_ipv6(), reason="needs an address of IPv6 beside ::1")
def test_names_that_have_addresses_of_ipv6_only_are_found(hosts, tmp_path):
    program = tmp_path / "nodes.py"
    program.write_text(IN_ONE_PROCESS)
    host = own_ipv6()[0]
    hosts.write(w1=host, w2=host)
    nodes = [{"name": n, "host": f"{n}.gossip.test", "port": hosts.ports[n]} for n in NAMES]
    config = json.dumps({"nodes": nodes, "transport": "tcp", "log_level": "error"})
    node = start("with_own.py", "hosts", hosts.file, program, config)
    with ended(node):
        assert [node.stdout.readline(), node.stdout.readline()] == ["ready\n", "connected\n"]
