"""Whoever wants to join is called where it asks from, and learns nothing of any other place."""

import socket
import time
from types import SimpleNamespace

import pytest
from support.inside import member_list_of
from support.open_cluster import cluster
from support.ports import free_ports
from support.strangers import question, request_of

from dpwa import DpwaConnection
from dpwa.errors import AddressError
from dpwa.membership.context import MembershipContext
from dpwa.node import own_address
from dpwa.policy.members.states import MemberEntry
from dpwa.transport.addresses import is_at, is_local
from dpwa.wire.members import Roster, pack_entries

OVER_A_SOCKET = "localhost:0:0:4711"  # as libzmq tells it: user, group, process


@pytest.mark.parametrize(
    ("endpoint", "source", "may_be"),
    [
        ("tcp://10.9.8.7:1", "10.9.8.7", True),
        ("tcp://10.9.8.7:1", "::ffff:10.9.8.7", True),  # of a node that listens on [::]
        ("tcp://[fe80::1%eth0]:1", "fe80::1%2", True),
        ("tcp://[2001:db8::1]:1", "2001:0db8::1", True),
        ("tcp://10.9.8.6:1", "10.9.8.7", False),
        ("tcp://127.0.0.1:1", "10.9.8.7", False),
        ("tcp://0.0.0.0:1", "10.9.8.7", False),
        ("tcp://10.9.8.7:1", "127.0.0.1", False),
        ("tcp://127.0.0.1:1", "127.0.0.2", True),
        ("tcp://[::1]:1", "127.0.0.1", True),
        ("tcp://localhost:1", "127.0.0.1", True),
        ("tcp://localhost:1", "10.9.8.7", False),
        ("tcp://any.name:1", "10.9.8.7", False),
        ("tcp://127.0.0.1:1", OVER_A_SOCKET, True),
        ("tcp://10.9.8.7:1", OVER_A_SOCKET, False),
        ("ipc:///tmp/x", OVER_A_SOCKET, True),
        ("tcp://127.0.0.1:1;10.9.8.7:1", OVER_A_SOCKET, False),
        ("ipc:///tmp/x", "127.0.0.1", False),
        ("ipc:///tmp/x", "", False),
        ("tcp://127.0.0.1:1", "", False),
    ],
)
def test_who_asks_is_where_it_asks_from(endpoint, source, may_be):
    assert is_at(endpoint, source) is may_be
    assert is_local(source) is (source == OVER_A_SOCKET)


def test_this_machine_may_be_at_all_of_its_addresses():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("no address but loopback")
        own = probe.getsockname()[0]
    assert is_at(f"tcp://{own}:1", "127.0.0.1")
    assert is_at("tcp://127.0.0.1:1", own)


def test_who_has_a_key_or_is_listed_may_be_anywhere():
    def may_call(endpoint, keyring=None, source="10.9.8.7"):
        named = frozenset({"tcp://w1.example:7000"})
        parts = {
            "tx": None,
            "rx": None,
            "runtime": None,
            "rng": None,
            "look_up": None,
            "memory": None,
        }
        context = MembershipContext(keyring=keyring, named=named, remembered=(), **parts)
        return context.may_call(endpoint, source)

    assert may_call("tcp://w1.example:7000")
    assert not may_call("tcp://w2.example:7000")
    assert may_call("tcp://w2.example:7000", keyring=SimpleNamespace())
    assert not may_call("ipc:///tmp/x", keyring=SimpleNamespace())


class Watched:
    """Sockets that take note of who connects."""

    def __init__(self, folder):
        self.sockets = [socket.socket(socket.AF_UNIX), socket.socket()]
        self.path = f"{folder}/s"
        self.sockets[0].bind(self.path)
        self.sockets[1].bind(("127.0.0.1", 0))
        for each in self.sockets:
            each.listen()
            each.setblocking(False)

    @property
    def callers(self):
        found = []
        for each in self.sockets:
            try:
                found.append(each.accept()[0])
            except BlockingIOError:
                found.append(None)
        for caller in found:
            if caller is not None:
                caller.close()
        return [caller is not None for caller in found]

    def close(self):
        for each in self.sockets:
            each.close()


@pytest.fixture
def watched(tmp_path):
    watched = Watched(tmp_path)
    yield watched
    watched.close()


def asked(endpoint, name, at):
    return question(endpoint, request_of(name, at, int(time.time() * 1000)), b"\x90")


@pytest.mark.parametrize("waits", [False, True])
def test_a_stranger_learns_nothing_of_other_places(watched, waits):
    (closed,) = free_ports(1)
    places = [f"ipc://{watched.path}", "ipc:///tmp/nothing-there", "tcp://no-such-name.invalid:1"]
    places += ["tcp://10.255.255.1:9", f"tcp://127.0.0.1:{closed}"]
    with cluster() as nodes:
        node = nodes.add("a")
        member_list_of(node).waits = waits
        reasons = set()
        for index, place in enumerate(places[: 4 if waits else 5]):
            answer = asked(node.node.endpoint, f"x{index}", place)
            assert answer.kind == "address"
            reasons.add(answer.reason.replace(place, "there"))
        assert len(reasons) == 1
        time.sleep(0.2)
        assert watched.callers[0] is False
        assert node.peers == ()


def test_members_of_whom_a_stranger_tells_are_at_no_local_socket(watched):
    with cluster() as nodes:
        node = nodes.add("a")
        for name, place in (("x", f"ipc://{watched.path}"), ("y", "tcp://127.0.0.1:9")):
            roster = Roster(request=1, name="b", incarnation=1, digest=b"", asks=True)
            news = pack_entries([MemberEntry(name, place, 1)])
            assert isinstance(question(node.node.endpoint, roster, news), Roster)
        assert {entry.name for entry in member_list_of(node).peers} <= {"y"}
        time.sleep(0.2)
        assert watched.callers[0] is False


def test_nodes_at_local_sockets_join_each_other_over_them(tmp_path):
    with cluster() as nodes:
        nodes.add("a", listen=f"ipc://{tmp_path}/a")
        nodes.add("b", "a", listen=f"ipc://{tmp_path}/b")
        nodes.add("c", "b", listen=f"ipc://{tmp_path}/c")
        nodes.agree()


def test_a_machine_without_a_network_needs_no_address_for_a_node_that_listens_at_one(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(own_address, "local_address", lambda toward: "127.0.0.1")
    for listen in ("tcp://127.0.0.1:0", "tcp://[::1]:0", f"ipc://{tmp_path}/a"):
        with DpwaConnection("a", {"join": [], "listen": listen}) as alone:
            assert alone.node.endpoint.startswith(listen.removesuffix(":0"))
    with pytest.raises(AddressError, match=r"listens on tcp://0\.0\.0\.0:0, but knows no address"):
        DpwaConnection("a", {"join": [], "listen": "tcp://0.0.0.0:0"})
