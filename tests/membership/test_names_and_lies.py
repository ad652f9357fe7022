"""A name belongs to the living, whatever is said of it and whoever else would like to have it."""

import json
import time

import pytest
from support.inside import member_list_of
from support.nodes import eventually
from support.open_cluster import cluster
from support.ports import free_ports
from support.processes import ended, start
from support.strangers import question, request_of
from support.times import at_most

from dpwa.connection import DpwaConnection
from dpwa.errors import NameTakenError
from dpwa.policy.members.states import HIGHEST, HIGHEST_HEARSAY, MemberEntry, MemberStatus
from dpwa.testing import TcpProxy
from dpwa.transport.link import LinkState
from dpwa.wire.members import Roster, TurnedAway, pack_entries

UP = LinkState.UP


def member(node, name):
    """What a node knows of another one."""
    return member_list_of(node).entry(name)


def tell(node, *entries):
    """Tell a node something of others, as a stranger does who says that it is one of them."""
    roster = Roster(request=1, name="x", incarnation=1, digest=b"", asks=True)
    assert isinstance(question(node.node.endpoint, roster, pack_entries(entries)), Roster)


def test_a_member_that_one_node_does_not_reach_keeps_its_name():
    ports = free_ports(2)
    with TcpProxy("127.0.0.1", ports[0]) as to_seed, TcpProxy("127.0.0.1", ports[1]) as to_w1:
        places = [f"tcp://127.0.0.1:{port}" for port in (*ports, to_seed.port, to_w1.port)]
        with cluster() as nodes:
            seed = nodes.add("seed", listen=places[0], advertise=places[2])
            w1 = nodes.add("w1", "seed", listen=places[1], advertise=places[3])
            nodes.add("other", "seed")
            nodes.agree()
            eventually(
                lambda: all(list(n.node.links.values()) == [UP, UP] for n in nodes.nodes.values())
            )
            to_seed.cut()  # both may still connect to `other`
            to_w1.cut()
            eventually(lambda: seed.node.links["w1"] is not LinkState.UP)
            with pytest.raises(NameTakenError, match="the name w1 is taken by the living node at"):
                DpwaConnection("w1", {"join": [places[0]], "seed": 8})
            nodes.agree()
            assert not member_list_of(w1).is_replaced


def test_a_killed_node_that_is_started_elsewhere_has_its_name_in_a_few_seconds():
    """A child of it, which holds its sockets, lives on."""
    with cluster() as nodes:
        nodes.add("seed")
        nodes.add("other", "seed")
        config = json.dumps({"join": [nodes.endpoint("seed")], "log_level": "error"})
        child = start("gossip.py", "w1", config, "--child")
        with ended(child):
            old = child.stdout.readline().split()[0]
            eventually(lambda: all("w1" in node.peers for node in nodes.nodes.values()))
        began = time.monotonic()
        w1 = nodes.add("w1", "seed")
        assert w1.wait_for_peers(1, 10.0)
        assert time.monotonic() - began < at_most(8.0)
        nodes.agree()
        assert w1.node.endpoint != old
        for name in ("seed", "other"):
            assert member(nodes.nodes[name], "w1").endpoint == w1.node.endpoint


@pytest.mark.parametrize("incarnation", [HIGHEST_HEARSAY, HIGHEST])
@pytest.mark.parametrize(
    "status", [MemberStatus.ALIVE, MemberStatus.SUSPECT, MemberStatus.DEAD, MemberStatus.LEFT]
)
def test_a_forged_life_of_a_member_moves_nobody_and_puts_nobody_out(incarnation, status):
    (port,) = free_ports(1)
    lie = MemberEntry("b", f"tcp://127.0.0.1:{port}", incarnation, 0, status)
    with cluster() as nodes:
        a, b = nodes.add("a"), nodes.add("b", "a")
        nodes.agree()
        true = b.node.endpoint
        for node in (a, b, a):
            tell(node, lie)
            assert member(a, "b").endpoint == true
        eventually(lambda: member(a, "b") == member_list_of(b).own)
        assert member(a, "b").endpoint == true
        assert not member_list_of(b).is_replaced
        nodes.agree()


def test_a_forged_number_at_the_true_place_is_not_believed():
    with cluster() as nodes:
        a, b = nodes.add("a"), nodes.add("b", "a")
        nodes.agree()
        known = member(a, "b")
        tell(a, known._replace(incarnation=HIGHEST_HEARSAY))
        request = request_of("b", b.node.endpoint, HIGHEST_HEARSAY)
        answer = question(a.node.endpoint, request, pack_entries([]))
        assert isinstance(answer, TurnedAway)
        assert answer.kind == "address"
        assert member(a, "b").incarnation == known.incarnation


def test_two_that_have_one_name_and_meet_are_one_in_the_end():
    with cluster() as nodes:
        elder, later = nodes.add("w1"), DpwaConnection("w1", {"join": [], "seed": 8})
        nodes._stack.callback(later.close)
        a = nodes.add("a", "w1")
        nodes.agree()
        tell(a, member_list_of(later).own)
        eventually(lambda: member_list_of(elder).is_replaced)
        eventually(lambda: member(a, "w1").endpoint == later.node.endpoint)
        assert not member_list_of(later).is_replaced
