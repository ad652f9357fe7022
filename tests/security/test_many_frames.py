"""One message of millions of empty frames: the node goes on to answer, and gives the memory back.

ZeroMQ hands over a message when all of its frames have come, and holds each of two bytes in 64; no
option bounds how many there are.
"""

import contextlib
import json
import math
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
import zmq
from abuse import PROGRAMS
from programs.attackers import GREETING, MORE, frame, message, ready
from support.inside import threads_of
from support.nodes import again_and_again, config_of, eventually, has_merged
from support.processes import resident_mb, start
from support.times import at_most

from dpwa import DpwaConnection
from dpwa.config import load_config
from dpwa.config.model import Limits
from dpwa.node.serving.admission import AdmissionControl
from dpwa.transport.authorizer import Authorizer
from dpwa.transport.sockets import bound_endpoint, receive, send_frames, serving_socket
from dpwa.wire.messages import AskStatus, encode

EMPTY = frame(b"", MORE)
ASK = message(encode(AskStatus(request=1)))
SLOWEST_S = 0.5
MAX_GROWTH_MB = 64  # once the message is gone: it was 190


def shaken(port):
    """A connection that has shaken hands."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    try:
        connection.sendall(GREETING + ready())
        answer = b""
        while b"Socket-Type" not in answer:
            part = connection.recv(4096)
            if not part:
                raise ConnectionError
            answer += part
    except OSError:
        connection.close()
        raise
    return connection


class Asker:
    """Asks a node how it is, again and again, and connects again when it has to."""

    def __init__(self, port):
        self._port, self._connection = port, socket.socket()  # the first question connects it

    def slowest_of(self, seconds):
        """The longest that went by between two answers."""
        end = time.monotonic() + seconds
        answered, slowest_s = time.monotonic(), 0.0
        while answered < end:
            with contextlib.suppress(OSError):
                self._connection.sendall(ASK)
                if self._connection.recv(1 << 20):
                    slowest_s = max(slowest_s, time.monotonic() - answered)
                    answered = time.monotonic()
                    time.sleep(0.005)
                    continue
            with contextlib.suppress(OSError):
                self._connection.close()
                self._connection = shaken(self._port)
        return slowest_s

    def close(self):
        self._connection.close()


def send_all(connection, data):
    """Send as much as is taken, in a thread: who is cut off learns of it by and by."""

    def run():
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):  # to close before it was read would reset the connection
                pass

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.timed
@pytest.mark.parametrize(
    ("frames", "end", "malformed", "clogged"),
    [
        pytest.param(3_000_000, frame(b""), 1, 1, id="endless"),
        pytest.param(3_000_000, b"", 0, 0, id="broken off", marks=pytest.mark.slow),
        pytest.param(5_000, frame(b""), 1, 0, id="long"),
    ],
)
def test_a_node_answers_though_a_message_of_many_frames_has_come(
    frames, end, malformed, clogged, tmp_path
):
    config = config_of(1, transport="tcp", log_level="error")
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(config))
    victim = start(PROGRAMS / "small_victim.py", path, stdin=subprocess.PIPE)
    try:
        assert victim.stdout.readline() == "ready\n"
        port = load_config(config).node("w1").port
        with contextlib.closing(Asker(port)) as honest, shaken(port) as stranger:
            honest.slowest_of(0.2)
            before = resident_mb(victim.pid)
            thread = send_all(stranger, EMPTY * frames + end)
            slowest_s = honest.slowest_of(2.0)
            thread.join()
            slowest_s = max(slowest_s, honest.slowest_of(1.0))
        eventually(lambda: resident_mb(victim.pid) - before < MAX_GROWTH_MB, 100.0)
        report, errors = victim.communicate("end\n", timeout=60)
    finally:
        victim.kill()
        victim.communicate()
    print(f"slowest answer {slowest_s:.3f} s, {report}")
    assert (victim.returncode, errors) == (0, "")
    assert json.loads(report)["malformed"] == malformed
    assert json.loads(report)["clogged"] == clogged
    assert slowest_s < at_most(SLOWEST_S)


def test_gossip_goes_on_after_a_message_without_an_end():
    config = config_of(2, transport="tcp", log_level="error")
    port = config["nodes"][0]["port"]
    with DpwaConnection("w1", config) as one, DpwaConnection("w2", config) as two:
        eventually(lambda: has_merged(two, one))
        with shaken(port) as stranger:
            stranger.sendall(EMPTY * 1_000_000 + frame(b""))
            eventually(
                lambda: has_merged(two, one) and one.node.report()["refused"]["clogged"] == 1
            )
        eventually(lambda: has_merged(two, one))
        assert one.node.endpoint.endswith(f":{port}")


def test_sockets_are_made_anew_while_others_connect_and_leave():
    """ZeroMQ's own thread tells of each, and must not wait for who has listened to that."""
    with DpwaConnection("w1", config_of(1, transport="tcp", log_level="error")) as node:
        port = int(node.node.endpoint.rpartition(":")[2])
        connected_s = []

        def connect_and_leave():
            began = time.monotonic()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
            connected_s.append(time.monotonic() - began)

        with again_and_again(connect_and_leave):
            for count in range(1, 16):
                threads_of(node.node).rx.admission.is_clogged = True
                threads_of(node.node).rx.wake()
                eventually(lambda: not threads_of(node.node).rx.admission.is_clogged)
                if count % 5 == 0:
                    with contextlib.closing(Asker(port)) as honest:
                        assert honest.slowest_of(0.05) < at_most(SLOWEST_S)
        assert max(connected_s) < at_most(SLOWEST_S)  # none had to ask TCP twice


def test_others_have_their_turn_while_frames_are_dropped(monkeypatch):
    monkeypatch.setattr("dpwa.node.serving.admission.MAX_DROPPING_S", math.inf)
    with zmq.Context() as context:
        authorizer = Authorizer()
        admission = AdmissionControl(authorizer, Limits(serving_share=1.0))
        with serving_socket(context, "tcp://127.0.0.1:0") as router:
            port = int(bound_endpoint(router).rpartition(":")[2])
            bodies, turns = [], 0
            with shaken(port) as stranger, shaken(port) as other:
                stranger.sendall(EMPTY * 20_000 + frame(b""))
                eventually(lambda: router.getsockopt(zmq.EVENTS) & zmq.POLLIN)
                other.sendall(ASK)
                while len(bodies) < 2:
                    received = admission.take_message(router)
                    turns += 1
                    if received is not None:
                        bodies.append(bytes(received.frames[1]))
                assert turns > 20_000 / 4096  # others have had theirs in between
                assert not admission.is_clogged


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
                send_frames(liar, [sender, *[b""] * 20_000])
            other.update_wait()
            return one.update_wait()[0] is not None

        def left():
            """Whether w2 was given up, by its answer to a fetch or to a question who it is."""
            told = [p for node in (one, other) for p in node.node.report()["peers"]]
            outcomes = [p["outcomes"] for p in told if p["name"] == "w2"]
            return any("misbehaved" in seen or "unreachable" in seen for seen in outcomes)

        # Links to both, and another one to one of them; and both merge each other.
        eventually(lambda: lies() and len(senders) > 2 and left())
