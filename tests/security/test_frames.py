"""One message of millions of empty frames: the node goes on to answer, and its memory stays small.

ZeroMQ hands over a message when all of its frames have come, and holds each of two bytes in 64.
"""

import contextlib
import json
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zmq
from abuse import PROGRAMS
from programs.attackers import GREETING, MORE, frame, message, ready
from support.nodes import config_of, eventually
from support.processes import start
from support.times import at_most

from dpwa import DpwaConnection
from dpwa.config import load_config
from dpwa.config.limits import Limits
from dpwa.node.serving.admission import AdmissionControl
from dpwa.transport.authenticator import Authenticator
from dpwa.transport.authorizer import LOOK_EVERY_MS, MOST_UNREAD_BYTES, Authorizer
from dpwa.transport.sockets import bound_endpoint, receive, send, serving_socket
from dpwa.wire import limits
from dpwa.wire.messages import AskStatus, encode

EMPTY = frame(b"", MORE)
ASK = message(encode(AskStatus(request=1)))
LARGEST = message(b"header", bytes(limits.MAX_PUSH_BYTES))
SLOWEST_S = 0.5
MOST_GROWTH_MB = 32  # on a quiet machine; a busy one looks later, and 0.1 s are 64 MB
MOST_BUSY_GROWTH_MB = 160


def shaken(port):
    """A connection that has shaken hands."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(GREETING + ready())
    answer = b""
    while b"Socket-Type" not in answer:
        answer += connection.recv(4096)
    return connection


def peak_mb(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if "VmHWM" in line).split()[1]) / 1024


def slowest_of(connection, seconds):
    """Ask a node how it is, again and again; the longest that an answer took."""
    end, slowest_s = time.monotonic() + seconds, 0.0
    while (began := time.monotonic()) < end:
        connection.sendall(ASK)
        assert connection.recv(1 << 20)
        slowest_s = max(slowest_s, time.monotonic() - began)
        time.sleep(0.005)
    return slowest_s


def send_all(connection, data):
    """Send as much as is taken, in a thread: who is cut off learns of it by and by."""

    def run():
        with contextlib.suppress(OSError):
            connection.sendall(data)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.timed
@pytest.mark.parametrize(
    ("frames", "reason"), [(10_000_000, "cut_off"), (100_000, "malformed")], ids=["cut", "whole"]
)
def test_a_node_answers_while_a_message_of_many_frames_comes(frames, reason, tmp_path):
    config = config_of(1, transport="tcp", log_level="error")
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(config))
    victim = start(PROGRAMS / "small_victim.py", path, stdin=subprocess.PIPE)
    try:
        assert victim.stdout.readline() == "ready\n"
        port = load_config(config).node("w1").port
        with shaken(port) as honest, shaken(port) as stranger:
            slowest_of(honest, 0.2)
            before = peak_mb(victim.pid)
            thread = send_all(stranger, EMPTY * frames + frame(b""))
            slowest_s = slowest_of(honest, 1.0)
            with contextlib.suppress(OSError):
                stranger.shutdown(socket.SHUT_RDWR)
            thread.join()
        growth_mb = peak_mb(victim.pid) - before
        report, errors = victim.communicate("end\n", timeout=60)
    finally:
        victim.kill()
        victim.communicate()
    print(f"slowest answer {slowest_s:.3f} s, +{growth_mb:.0f} MB, {report}")
    assert (victim.returncode, errors) == (0, "")
    assert json.loads(report)[reason] > 0
    assert slowest_s < at_most(SLOWEST_S)
    is_quiet = at_most(0.0) == 0.0
    assert growth_mb < (MOST_GROWTH_MB if is_quiet else MOST_BUSY_GROWTH_MB)


class Scene:
    """A ROUTER that is watched, with what stands before it; time passes by hand."""

    def __init__(self, context):
        self.authorizer = Authorizer()
        self.authenticator = Authenticator(context, self.authorizer, lambda: None)
        self.router = serving_socket(context, "tcp://127.0.0.1:0", self.authorizer)
        self.admission = AdmissionControl(self.authorizer, Limits(serving_share=1.0))
        self.port = int(bound_endpoint(self.router).rpartition(":")[2])
        self.now, self.bodies = 1e6, []

    def came(self, count):
        """So many connections were made so far."""
        with contextlib.suppress(zmq.Again):
            self.authenticator.hear()
        return len(self.authorizer._connections) == count

    def read(self):
        """Read what waits, as the RxThread does."""
        while True:
            received = self.admission.take(self.router)
            if received is None and not self.admission._is_dropping:
                return
            if received is not None:
                self.bodies.append(bytes(received.frames[1]))
                self.authorizer.heard(received.descriptor)
                self.admission.served(received)

    def look(self):
        self.now += LOOK_EVERY_MS / 1000
        self.authorizer.look(self.router, self.now)
        return self.authorizer.cut_off


@pytest.fixture
def scene():
    with zmq.Context() as context:
        scene = Scene(context)
        yield scene
        scene.router.close()
        scene.authenticator.close()


def is_waiting(scene):
    return scene.router.getsockopt(zmq.EVENTS) & zmq.POLLIN


def test_what_is_no_message_yet_is_cut_off_when_it_is_more_than_a_message(scene):
    with shaken(scene.port) as stranger:
        eventually(lambda: scene.came(1))
        stranger.sendall(EMPTY * (MOST_UNREAD_BYTES // 2 - 100))
        time.sleep(0.1)
        assert scene.look() == 0
        stranger.sendall(EMPTY * 200)
        eventually(scene.look)
        assert stranger.recv(1 << 16)[-1:] != b"x"
        eventually(lambda: scene.came(0))


def test_it_is_cut_off_though_others_had_something_to_say_at_that_moment(scene):
    with shaken(scene.port) as stranger, shaken(scene.port) as other:
        eventually(lambda: scene.came(2))
        other.sendall(ASK)
        eventually(lambda: is_waiting(scene))
        stranger.sendall(EMPTY * MOST_UNREAD_BYTES)
        time.sleep(0.1)
        assert scene.look() == 0  # what came may be of the message that waits
        scene.read()
        eventually(scene.look)
        assert scene.authorizer.cut_off == 1
        other.sendall(ASK)
        eventually(lambda: scene.read() or len(scene.bodies) == 2)


def test_whoever_sends_messages_is_never_cut_off_however_many_wait(scene):
    with shaken(scene.port) as peer:
        eventually(lambda: scene.came(1))
        for _ in range(3):
            thread = send_all(peer, LARGEST * 20)
            thread.join()
            eventually(lambda: is_waiting(scene))
            assert scene.look() == 0
            eventually(lambda: scene.read() or len(scene.bodies) == 20)
            assert scene.look() == scene.look() == 0
            scene.bodies.clear()


def test_heartbeats_of_a_day_are_no_message_and_no_attack(scene):
    with shaken(scene.port) as peer:
        eventually(lambda: scene.came(1))
        ping = frame(b"\x04PING\0\0", 4)
        scene.look()
        scene.now += 86_400.0
        scene.look()
        peer.sendall(ping * 86_400)
        time.sleep(0.2)
        assert scene.look() == scene.look() == 0


@pytest.mark.parametrize("frames", [10, 20_000])
def test_another_connection_that_has_got_the_same_descriptor_is_left_alone(scene, frames):
    with shaken(scene.port) as stranger:
        eventually(lambda: scene.came(1))
        stranger.sendall(EMPTY * frames + frame(b""))
        eventually(lambda: is_waiting(scene))
    eventually(lambda: scene.came(0))
    with shaken(scene.port) as honest:
        eventually(lambda: scene.came(1))
        scene.read()
        assert scene.authorizer.cut_off == 0
        honest.sendall(ASK)
        eventually(lambda: scene.read() or len(scene.bodies) == 2)


def test_whoever_sends_a_message_of_too_many_frames_is_cut_off_and_the_next_is_heard(scene):
    with shaken(scene.port) as stranger, shaken(scene.port) as other:
        eventually(lambda: scene.came(2))
        stranger.sendall(EMPTY * 20_000 + frame(b""))
        eventually(lambda: is_waiting(scene))
        other.sendall(ASK)
        turns = 0
        while len(scene.bodies) < 2:
            received = scene.admission.take(scene.router)
            turns += 1
            if received is not None:
                scene.bodies.append(bytes(received.frames[1]))
        assert turns > 20_000 / 4096  # others have had theirs in between
        assert scene.authorizer.cut_off == 1


@pytest.mark.slow
def test_memory_of_a_message_that_came_while_nobody_looked_is_given_back(scene):
    """As while the trainer holds the interpreter for seconds."""

    def resident_mb():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    with shaken(scene.port) as stranger:
        eventually(lambda: scene.came(1))
        before = resident_mb()
        thread = send_all(stranger, EMPTY * 2_000_000 + frame(b""))
        eventually(lambda: is_waiting(scene), timeout_s=60)
        thread.join()
        assert resident_mb() - before > 100
        scene.read()
        assert resident_mb() - before < MOST_GROWTH_MB


def test_a_peer_that_answers_with_too_many_frames_is_left_and_tried_again():
    config = config_of(3, transport="tcp", log_level="error")
    with zmq.Context() as context, contextlib.ExitStack() as stack:
        liar = stack.enter_context(
            serving_socket(context, f"tcp://127.0.0.1:{config['nodes'][1]['port']}")
        )
        one, other = (stack.enter_context(DpwaConnection(name, config)) for name in ("w1", "w3"))
        senders = set()

        def lies():
            one.update_send(np.ones(1000), 0.1)
            other.update_send(np.ones(1000), 0.1)
            if (frames := receive(liar)) is not None:
                sender = bytes(frames[0])
                senders.add(sender)
                send(liar, [sender, *[b""] * 20_000])
            other.update_wait()
            return one.update_wait()[0] is not None

        eventually(lambda: lies() and len(senders) > 2)  # of both, and of one again
        told = next(p for p in one.node.report()["peers"] if p["name"] == "w2")
        assert told["outcomes"]["misbehaved"] > 0
