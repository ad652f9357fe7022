import pytest

from dpwa.errors import AddressError
from dpwa.transport.addresses import is_ipv6, resolved


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
