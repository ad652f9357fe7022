import socket

import pytest

from dpwa.errors import AddressError
from dpwa.transport.addresses import all_resolved, is_ipv6, resolved


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
    assert is_ipv6(address) == ("::" in address)


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
