import pytest

from dpwa.errors import AddressError
from dpwa.transport.addresses import connect_endpoint, listen_endpoint


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("localhost", "tcp://localhost:5000"),
        ("10.0.0.1", "tcp://10.0.0.1:5000"),
        ("::1", "tcp://[::1]:5000"),
        ("node-1.example.org", "tcp://node-1.example.org:5000"),
    ],
)
def test_where_to_connect(host, endpoint):
    assert connect_endpoint(host, 5000) == endpoint


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("localhost", "tcp://127.0.0.1:5000"),
        ("127.0.0.1", "tcp://127.0.0.1:5000"),
        ("0.0.0.0", "tcp://0.0.0.0:5000"),
        ("::1", "tcp://[::1]:5000"),
        ("*", "tcp://*:5000"),
    ],
)
def test_where_to_listen(host, endpoint):
    assert listen_endpoint(host, 5000) == endpoint


def test_a_name_without_an_address_is_the_users_error():
    with pytest.raises(AddressError, match=r"cannot listen on no\.such\.host\.invalid:5000"):
        listen_endpoint("no.such.host.invalid", 5000)
