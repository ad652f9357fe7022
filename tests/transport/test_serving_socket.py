"""Connections that send more than is read, or break off: connections take turns, all goes on."""

import random
import socket
import struct
import time
from contextlib import contextmanager

import pytest
import zmq
from support.nodes import eventually

from dpwa.transport.sockets import bound_endpoint, receive_from, serving_socket
from dpwa.wire import limits

GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01NULL".ljust(54, b"\0")
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
PING = b"\x04\x07\x04PING\0\0"
LARGEST = struct.pack(">BQ", 2, limits.MAX_PUSH_BYTES) + bytes(limits.MAX_PUSH_BYTES)
SEED = 5


def small(body):
    return bytes([0, len(body)]) + body


class Scene:
    def __init__(self, router):
        self.router = router
        self.port = int(bound_endpoint(router).rpartition(":")[2])
        self.messages = 0

    def peer(self):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        connection.sendall(GREETING + READY)
        answer = b""
        while b"Socket-Type" not in answer:
            answer += connection.recv(4096)
        return connection

    def read(self, most=10**9):
        for _ in range(most):
            if receive_from(self.router, is_named=False) is None:
                break
            self.messages += 1
        return self.messages


@contextmanager
def listening():
    with zmq.Context() as context, serving_socket(context, "tcp://127.0.0.1:0") as router:
        yield Scene(router)


def test_of_a_connection_that_sends_much_others_wait_for_a_few_messages():
    with listening() as scene, scene.peer() as greedy, scene.peer() as other:
        greedy.sendall(LARGEST * 40)
        other.sendall(small(b"hello"))
        time.sleep(0.3)  # until both wait to be read
        bodies = []

        def has_heard():
            received = receive_from(scene.router, is_named=False)
            if received is not None:
                bodies.append(bytes(received.frames[1]))
            return b"hello" in bodies

        eventually(has_heard)
        assert len(bodies) <= 5
        eventually(lambda: scene.read() == 41 - len(bodies))


def test_a_message_beyond_the_largest_is_cut_off():
    with listening() as scene, scene.peer() as connection:
        connection.sendall(struct.pack(">BQ", 2, limits.MAX_PUSH_BYTES * 2))
        connection.settimeout(10)
        assert connection.recv(1) == b""


@pytest.mark.parametrize("heartbeats", [b"", PING])
def test_connections_that_break_with_much_unread_do_not_end_the_process(heartbeats):
    rng = random.Random(SEED)
    with listening() as scene:
        for _ in range(10):
            connection = scene.peer()
            connection.sendall((small(b"x" * 20) * 4 + heartbeats) * 1000)
            if rng.random() < 0.5:  # a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            time.sleep(rng.random() * 0.05)
            scene.read(most=rng.choice([0, 3, 100]))
        with scene.peer() as honest:
            before = scene.messages
            honest.sendall(small(b"hello"))
            eventually(lambda: scene.read() > before)
