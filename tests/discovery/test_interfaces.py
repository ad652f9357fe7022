"""Which address of this machine others are told."""

import socket

import pytest

from dpwa.discovery.interfaces import named_host, own_host
from dpwa.errors import UserError

CARDS = [name for _, name in socket.if_nameindex()]
OTHERS = [name for name in CARDS if name != "lo"]


@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_the_card_that_is_named(variable):
    found = named_host({variable: "lo"})
    assert found.host == "127.0.0.1"
    assert found.reason == f"of lo, because {variable}=lo"
    assert found.is_loopback


def test_gloo_goes_before_nccl():
    found = named_host({"NCCL_SOCKET_IFNAME": "nothing", "GLOO_SOCKET_IFNAME": "lo"})
    assert found.host == "127.0.0.1"


def test_exact_names_and_beginnings():
    assert named_host({"NCCL_SOCKET_IFNAME": "l"}).host == "127.0.0.1"
    for wrong in ({"NCCL_SOCKET_IFNAME": "=l"}, {"GLOO_SOCKET_IFNAME": "l"}):
        with pytest.raises(UserError, match=f"expected one of .*{CARDS[0]}"):
            named_host(wrong)


@pytest.mark.skipif(not OTHERS, reason="this machine has no card but loopback")
def test_any_but_some():
    wanted = "^" + ",".join(OTHERS)
    assert named_host({"NCCL_SOCKET_IFNAME": wanted}).host == "127.0.0.1"


def test_without_a_name_the_route_counts():
    assert named_host({"GLOO_SOCKET_IFNAME": " "}) is None
    found = own_host({}, "127.0.0.1")
    assert (found.host, found.reason) == ("127.0.0.1", "of lo, on the route to 127.0.0.1")
