"""Connections that send more than is read, against a socket whose queues have no bound."""

import socket
import struct
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
import zmq
from support.nodes import eventually

from dpwa.transport.backpressure import LEAST_ALLOWED_BYTES, QUIET_S, Backpressure
from dpwa.transport.sockets import bound_endpoint, receive_from, serving_socket

GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01NULL".ljust(54, b"\0")
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
MIB = 1024 * 1024


def small(body, flags=0):
    return bytes([flags, len(body)]) + body


class Scene:
    def __init__(self, router, backpressure):
        self.router, self.backpressure = router, backpressure
        self.port = int(bound_endpoint(router).rpartition(":")[2])
        self.messages = 0

    def peer(self):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        connection.sendall(GREETING + READY)
        answer = b""
        while b"Socket-Type" not in answer:
            answer += connection.recv(4096)
        connection.settimeout(0.2)
        return connection

    def read(self, most=10**9):
        """Read up to so many messages; return whether there are no more."""
        for _ in range(most):
            received = receive_from(self.router, is_named=False)
            if received is None:
                return True
            self.messages += 1
            self.backpressure.took(
                received.descriptor, sum(len(f) + 2 for f in received.frames[1:])
            )
        return False

    def look(self, *, is_drained=False):
        return self.backpressure.look(is_drained=is_drained)


@contextmanager
def listening(most=100, unread=16 * MIB):
    with zmq.Context() as context, serving_socket(context, "tcp://127.0.0.1:0") as router:
        yield Scene(router, Backpressure(bound_endpoint(router), most, unread))


def send_for(connection, data, seconds):
    end, sent = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            sent += connection.send(memoryview(data)[sent % len(data) :])
        except TimeoutError:
            continue
        except OSError:
            return sent, "cut"
    return sent, "open"


@contextmanager
def sending(connection, data, seconds):
    result = []
    thread = threading.Thread(target=lambda: result.append(send_for(connection, data, seconds)))
    thread.start()
    try:
        yield result
    finally:
        thread.join()


def test_who_sends_more_than_is_read_is_paused_and_nothing_is_lost():
    with listening(unread=MIB) as scene, scene.peer() as connection:
        connection.sendall(small(b"first"))
        time.sleep(0.1)
        assert scene.read()
        scene.look(is_drained=True)
        data = small(b"x" * 60) * 1000
        with sending(connection, data, 1.0) as result:
            while not result:
                scene.read(most=5)
                scene.look()
                time.sleep(0.002)
        assert scene.backpressure.pauses > 0
        (sent, state), received = result[0], scene.messages
        # Unread at most what is allowed, what came between two looks, and the kernels' buffers.
        assert state == "open"
        assert received * 62 < sent < 61 * MIB
        end = time.monotonic() + 60
        while scene.messages < 1 + sent // 62 and time.monotonic() < end:
            scene.look(is_drained=scene.read())
            time.sleep(0.01)
        assert scene.backpressure.unfinished == 0
        assert scene.messages == 1 + sent // 62


def test_a_message_without_an_end_is_cut():
    with listening(unread=LEAST_ALLOWED_BYTES) as scene, scene.peer() as connection:
        with sending(connection, small(b"", flags=1) * 10_000, 20.0) as result:
            while not result:
                scene.look(is_drained=scene.read())
                time.sleep(0.005)
        assert result[0][1] == "cut"
        assert scene.backpressure.unfinished == 1


def test_large_messages_of_a_size_that_is_allowed_are_never_cut():
    with listening() as scene, scene.peer() as connection:
        header = struct.pack(">BQ", 2, 256 * 1024)
        with sending(connection, header + bytes(256 * 1024), 1.0) as result:
            while not result:
                scene.look(is_drained=scene.read())
                time.sleep(0.001)
        assert result[0][1] == "open"
        assert scene.messages > 10
        assert scene.backpressure.unfinished == 0


def test_of_too_many_connections_the_oldest_silent_ones_are_cut():
    with listening(most=3) as scene:
        speaker, *silent = [scene.peer() for _ in range(6)]
        speaker.sendall(small(b"hello"))
        time.sleep(0.1)
        # The speaker is known before it is heard.
        scene.backpressure._find()
        assert scene.read()
        scene.look(is_drained=True)
        assert scene.backpressure.over_capacity == 3
        assert [is_cut(each) for each in (speaker, *silent)] == [
            False, True, True, True, False, False,
        ]  # fmt: skip
        for each in (speaker, *silent):
            each.close()


def is_cut(connection):
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("rest", [0, 100])
def test_a_reset_with_heartbeats_in_the_queue_does_not_end_the_process(rest):
    ping = small(b"\x04PING\0\0", flags=4)
    with listening() as scene:
        for _ in range(5):
            connection = scene.peer()
            connection.sendall((small(b"x" * 20) * 4 + ping) * 100)
            time.sleep(0.03)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            time.sleep(0.03)
            scene.read(most=rest or 10**9)
        assert scene.messages > 100


def test_what_was_read_before_a_connection_was_found_counts():
    with listening(unread=2 * LEAST_ALLOWED_BYTES) as scene, scene.peer() as connection:
        message = struct.pack(">BQ", 2, 256 * 1024) + bytes(256 * 1024)
        with sending(connection, message, 0.5) as result:
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                scene.read()
        complete = result[0][0] // len(message)
        eventually(lambda: scene.read() and scene.messages == complete)
        assert scene.messages * 256 * 1024 > 4 * LEAST_ALLOWED_BYTES
        scene.look(is_drained=True)
        assert (scene.backpressure.pauses, scene.backpressure.unfinished) == (0, 0)


def test_a_reader_that_stood_still_cuts_nobody():
    with listening(unread=2 * LEAST_ALLOWED_BYTES) as scene, scene.peer() as connection:
        connection.sendall(small(b"first"))
        time.sleep(0.1)
        assert scene.read()
        scene.look(is_drained=True)
        scene.look(is_drained=True)
        time.sleep(QUIET_S)
        message = struct.pack(">BQ", 2, 256 * 1024) + bytes(256 * 1024)
        with sending(connection, message, 0.3):
            pass  # and the reader's last word was that there is nothing
        scene.look(is_drained=True)
        assert scene.backpressure.unfinished == 0


def test_connections_to_another_address_with_that_port_are_left_alone():
    with listening() as scene, socket.socket() as other:
        try:
            other.bind(("127.0.0.2", scene.port))
        except OSError as error:
            pytest.skip(f"no second address: {error}")
        other.listen()
        with socket.create_connection(("127.0.0.2", scene.port)), other.accept()[0], scene.peer():
            scene.look()
            assert len(scene.backpressure._connections) == 1


def test_connections_are_listed_when_one_has_come_or_gone_and_now_and_then(monkeypatch):
    with listening() as scene, ExitStack() as peers:

        def known(comings):
            scene.backpressure.look(is_drained=False, comings=comings)
            return len(scene.backpressure._connections)

        peers.enter_context(scene.peer())
        assert known(comings=1) == 1
        peers.enter_context(scene.peer())
        assert known(comings=1) == 1  # nobody has told of it yet
        assert known(comings=2) == 2
        peers.enter_context(scene.peer())
        with monkeypatch.context() as fails:
            fails.setattr("dpwa.transport.backpressure.os.listdir", no_list)
            assert known(comings=3) == 2
        assert known(comings=3) == 3  # a look that failed is made up for at once
        peers.enter_context(scene.peer())
        eventually(lambda: known(comings=3) == 4)


def no_list(path):
    raise OSError("no /proc here")


def test_without_a_list_of_descriptors_nothing_is_done(monkeypatch):
    with listening() as scene, scene.peer():
        monkeypatch.setattr("dpwa.transport.backpressure.os.listdir", no_list)
        assert scene.look() > 0.0
