"""Socket files: taken over from the dead, never from the living."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from support.nodes import at_once, eventually

from dpwa.errors import AddressError
from dpwa.transport.ipc import claimed
from dpwa.transport.link import LinkState, PeerLink
from dpwa.transport.sockets import receive, serving_socket
from dpwa.wire.messages import AskStatus, encode

LISTEN = """
import sys, time, zmq
from dpwa.transport.ipc import claimed
from dpwa.transport.sockets import serving_socket

with zmq.Context() as context, claimed(sys.argv[1]), serving_socket(context, sys.argv[1]):
    print("listening", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def endpoint(path: Path) -> str:
    return f"ipc://{path}"


@pytest.fixture
def other(endpoint: str):
    """Another process that listens on the endpoint."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN, endpoint],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout.readline() == b"listening\n"
        yield process
        process.kill()


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


def state_of(link: PeerLink) -> LinkState:
    link.update()
    return link.state


def require_refused(endpoint: str, reason: str) -> None:
    with pytest.raises(
        AddressError, match=rf"^cannot listen on {endpoint}: {reason} \[DPWA-E051\]$"
    ):
        claimed(endpoint).__enter__()


def test_a_path_in_use_is_refused_and_its_owner_goes_on(endpoint, other, context):
    require_refused(endpoint, "another process listens there")
    link = PeerLink(context, "peer", endpoint)
    eventually(lambda: state_of(link) is LinkState.UP)
    link.close()
    assert other.poll() is None


def test_the_path_of_a_killed_process_is_taken_over_and_its_peers_come_back(
    path, endpoint, other, context
):
    link = PeerLink(context, "peer", endpoint)
    eventually(lambda: state_of(link) is LinkState.UP)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert path.exists()
    eventually(lambda: state_of(link) is LinkState.DOWN)
    with claimed(endpoint), serving_socket(context, endpoint) as router:
        # What is sent before the loss is noticed is lost: ask until something arrives.
        _, request = eventually(
            lambda: (link.send_request(AskStatus(request=1)), receive(router))[1]
        )
        assert bytes(request) == encode(AskStatus(request=1))
        link.close()


def test_nothing_is_left_behind(tmp_path, endpoint, context):
    for _ in range(2):
        with claimed(endpoint), serving_socket(context, endpoint):
            assert len(list(tmp_path.iterdir())) == 2
        assert not list(tmp_path.iterdir())


def test_one_that_knows_nothing_of_locks_keeps_its_path(path, endpoint):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen(0)
        for _ in range(3):  # the first one fills the queue of those that wait to be accepted
            require_refused(endpoint, "another process listens there")
    with claimed(endpoint):
        pass


def test_a_file_of_the_users_is_never_removed(path, endpoint):
    path.write_text("precious")
    require_refused(endpoint, "there is a file that is not a socket")
    assert path.read_text() == "precious"


def test_a_folder_that_does_not_exist_is_the_users_error(tmp_path):
    require_refused(f"ipc://{tmp_path}/no/node", "No such file or directory")


def test_of_many_that_want_a_path_only_one_has_it_at_a_time(endpoint):
    owners, most, turns = 0, 0, 0

    def compete() -> None:
        nonlocal owners, most, turns
        for _ in range(300):
            try:
                with claimed(endpoint):
                    owners += 1
                    turns += 1
                    most = max(most, owners)
                    owners -= 1
            except AddressError:
                pass

    at_once([compete] * 4)
    assert (owners, most) == (0, 1)
    assert turns > 10


def test_a_tcp_endpoint_needs_no_claim():
    with claimed("tcp://127.0.0.1:1"), claimed("tcp://127.0.0.1:1"):
        pass
