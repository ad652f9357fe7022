"""How many connections a node lets in within a second, at a real listening socket."""

import contextlib
import errno
import socket
import struct
import threading
import time

import pytest
import zmq
from support.nodes import eventually

from dpwa.clock import SystemClock
from dpwa.transport import authenticator
from dpwa.transport.accept_limiter import AT_ONCE_S, CLOSED_S, AcceptLimiter
from dpwa.transport.authenticator import Authenticator
from dpwa.transport.authorizer import ACCEPTED, DISCONNECTED, Authorizer
from dpwa.transport.sockets import bound_endpoint, serving_socket

PER_S = 20
EVENTS = 20_000
MOST_PER_EVENT_S = 100e-6


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request):
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as found:
        found.settimeout(0.2)
        yield found


@contextlib.contextmanager
def knocking(listener):
    with socket.socket(listener.family) as knocker:
        knocker.setblocking(False)
        knocker.connect_ex(listener.getsockname()[:2])
        yield


def comes_in(listener):
    with contextlib.suppress(TimeoutError):
        listener.accept()[0].close()
        return True
    return False


def closed(listener, now):
    accept_limiter = AcceptLimiter(PER_S)
    accept_limiter.belongs_to(listener.fileno())
    for _ in range(PER_S + 1):
        accept_limiter.let_in(now)
    return accept_limiter


def test_as_many_as_may_come_within_a_second_may_come_at_once(listener):
    accept_limiter = AcceptLimiter(PER_S)
    accept_limiter.belongs_to(listener.fileno())
    for _ in range(PER_S):
        accept_limiter.let_in(100.0)
    assert (accept_limiter.look(100.0), accept_limiter.closings) == (None, 0)
    with knocking(listener):
        assert comes_in(listener)


def test_one_more_waits_until_it_is_time_and_comes_in_then(listener):
    accept_limiter = closed(listener, 100.0)
    wait_s = accept_limiter.look(100.0)
    assert 0 < wait_s < 2 * AT_ONCE_S / PER_S + 0.1
    with knocking(listener):
        assert not comes_in(listener)
        assert accept_limiter.look(100.0 + wait_s - 0.001) is not None
        assert not comes_in(listener)
        assert accept_limiter.look(100.0 + wait_s + 0.001) is None
        listener.settimeout(5)  # TCP asks again after a second
        assert comes_in(listener)
    assert accept_limiter.closings == 1


def test_when_there_is_no_descriptor_to_open_it_with_it_is_opened_a_moment_later(
    listener, monkeypatch
):
    accept_limiter, later = closed(listener, 100.0), 100.0 + 10 * AT_ONCE_S

    def no_descriptor_left(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.dup", no_descriptor_left)
    assert accept_limiter.look(later) == CLOSED_S
    monkeypatch.undo()
    assert accept_limiter.look(later + CLOSED_S) is None
    with knocking(listener):
        assert comes_in(listener)


def test_connections_that_are_up_are_not_touched():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        closed(listener, 100.0)
        near.sendall(b"still here")
        far.settimeout(5)
        assert far.recv(100) == b"still here"


def test_what_is_no_listener_any_more_is_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        accept_limiter = AcceptLimiter(PER_S)
        accept_limiter.belongs_to(number)
    for _ in range(PER_S + 1):
        accept_limiter.let_in(100.0)
    assert (accept_limiter.look(100.0), accept_limiter.closings) == (None, 0)
    accept_limiter.belongs_to(12345)  # none at all


def test_a_socket_of_the_file_system_is_never_closed(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "it"))
        listener.listen()
        assert closed(listener, 100.0).closings == 0


@contextlib.contextmanager
def kept(per_s):
    """A listening socket of ZeroMQ and its authenticator, without keys."""
    authorizer, accept_limiter = Authorizer(), AcceptLimiter(per_s)
    with zmq.Context() as context:
        keeper = Authenticator(
            "w1", context, (authorizer, accept_limiter), SystemClock(), lambda: None
        )
        keeper.start()
        try:
            with serving_socket(context, "tcp://127.0.0.1:0", authorizer) as router:
                port = int(bound_endpoint(router).rpartition(":")[2])
                yield authorizer, accept_limiter, port
        finally:
            assert keeper.stop(5.0)


def test_a_crowd_comes_in_no_faster_than_it_may_and_all_of_it_in_the_end():
    many = 3 * PER_S
    with kept(PER_S) as (authorizer, accept_limiter, port), contextlib.ExitStack() as stack:
        for _ in range(PER_S + 1):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        eventually(lambda: accept_limiter.closings == 1)
        start = time.monotonic()
        for _ in range(many):
            knocker = stack.enter_context(socket.socket())
            knocker.setblocking(False)
            knocker.connect_ex(("127.0.0.1", port))
        eventually(lambda: authorizer.connections()["accepted"] == PER_S + 1 + many, 20)
        assert time.monotonic() - start > 1.0


def test_an_authenticator_that_is_late_does_not_hold_up_zeromqs_own_thread(monkeypatch):
    may_go_on = threading.Event()
    real = authenticator.Authenticator._hear_events

    def late(keeper):
        may_go_on.wait()
        real(keeper)

    monkeypatch.setattr(authenticator.Authenticator, "_hear_events", late)
    reset = struct.pack("ii", 1, 0)
    many = 900  # events of 3 x as many: more than the bound that the queue would have
    with kept(100_000) as (authorizer, _, port):
        try:
            for _ in range(many):
                with socket.create_connection(("127.0.0.1", port), 5) as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.settimeout(5)
                assert connection.recv(1) == b"\xff"  # ZeroMQ goes on
        finally:
            may_go_on.set()
        eventually(lambda: authorizer.connections()["accepted"] == many + 1)


def test_an_event_costs_microseconds():
    authorizer, accept_limiter = Authorizer(), AcceptLimiter(1e9)
    with zmq.Context() as context:
        keeper = Authenticator(
            "w1", context, (authorizer, accept_limiter), SystemClock(), lambda: None
        )
        with context.socket(zmq.PAIR) as sender:
            sender.sndhwm = 0
            sender.bind(authenticator.MONITOR_ENDPOINT)
            for index in range(EVENTS):
                kind = (ACCEPTED, DISCONNECTED)[index % 2]
                sender.send_multipart([authenticator.EVENT.pack(kind, 5), b"tcp://127.0.0.1:1"])
            start = time.thread_time()
            while authorizer.connections()["ended"] < EVENTS // 2:
                keeper._hear_events()
            spent_s = (time.thread_time() - start) / EVENTS
        keeper.discard()
    print(f"{1e6 * spent_s:.1f} us each")
    assert spent_s < MOST_PER_EVENT_S
