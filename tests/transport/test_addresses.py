import socket

import pytest
import zmq
from support.times import HANGS_AFTER_S

from dpwa.errors import AddressError
from dpwa.transport.addresses import all_resolved, is_at, is_elsewhere, resolved
from dpwa.transport.sockets import asking_socket, listening_socket, receive_from, serving_socket


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("tcp://localhost:5000", "tcp://127.0.0.1:5000"),
        ("tcp://127.0.0.1:5000", "tcp://127.0.0.1:5000"),
        ("tcp://0.0.0.0:5000", "tcp://0.0.0.0:5000"),
        ("tcp://[::1]:5000", "tcp://[::1]:5000"),
        ("tcp://*:5000", "tcp://*:5000"),
        ("ipc:///tmp/[x]", "ipc:///tmp/[x]"),
    ],
)
def test_where_to_listen(endpoint, address):
    assert resolved(endpoint) == address


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b"])
def test_a_name_without_an_address_is_the_users_error(host):
    with pytest.raises(AddressError, match=f"cannot listen on tcp://{host}:5000: "):
        resolved(f"tcp://{host}:5000")


def test_a_name_stands_for_all_its_addresses_each_once(monkeypatch):
    def look_up(host, port, **_options):
        found = [
            (socket.AF_INET6, "::1"),
            (socket.AF_INET, "10.0.0.1"),
            (socket.AF_INET, "10.0.0.1"),
        ]
        return [(family, socket.SOCK_STREAM, 6, "", (at, port)) for family, at in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert all_resolved("tcp://h.test:5000") == ("tcp://10.0.0.1:5000", "tcp://[::1]:5000")
    for endpoint in ("tcp://10.0.0.2:1", "tcp://[::1]:1", "ipc:///tmp/x"):
        assert all_resolved(endpoint) == (endpoint,)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b"])
def test_a_name_that_cannot_be_looked_up_is_told(host):
    with pytest.raises(AddressError, match=f"{host} has no address: "):
        all_resolved(f"tcp://{host}:5000")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize("server", ["[::1]", "127.0.0.1"])
def test_all_addresses_are_those_of_ipv6_too(server):
    with zmq.Context() as context:
        listener = listening_socket("tcp://*:0")
        port = listener.getsockname()[1]
        with (
            listener,
            serving_socket(context, f"tcp://*:{port}", listener=listener) as router,
            asking_socket(context, f"tcp://{server}:{port}") as dealer,
        ):
            dealer.connect(f"tcp://{server}:{port}")
            assert dealer.poll(HANGS_AFTER_S * 1000, zmq.POLLOUT)
            dealer.send(b"hello")
            assert router.poll(HANGS_AFTER_S * 1000)
            source = receive_from(router, is_named=False).source
    assert is_at(f"tcp://{server}:1", source)


@pytest.mark.parametrize(
    ("host", "is_far"),
    [
        ("localhost", False),
        ("127.0.0.5", False),
        ("::1", False),
        ("h2", True),
        ("192.0.2.77", True),
    ],
)
def test_who_is_elsewhere(host, is_far):
    assert is_elsewhere(host) == is_far
