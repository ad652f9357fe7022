"""Garbage of every kind on a live port: no crash, no growth, and fetches are still answered."""

import json
import random
import socket
import struct
import time

import msgpack
import numpy as np
import pytest
import zmq
from support.nodes import config_of, eventually
from support.processes import descriptors, resident_mb
from support.requests import fetch_of
from support.shared_memory import told

from dpwa import DpwaConnection
from dpwa.wire.messages import AskStatus, Cancel, Credit, encode

SEED = 20
GROWTH_LIMIT_MB = 10.0
MAX_PHASES = 5
ZMTP_GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00NULL".ljust(54, b"\0")


def raw_bytes(port, rng):
    """Bytes that are no ZeroMQ, or the start of it and then a frame of an absurd length."""
    beginning = rng.choice([b"", ZMTP_GREETING, b"GET / HTTP/1.1\r\n\r\n"])
    absurd = struct.pack(">BQ", 2, rng.getrandbits(63))
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(beginning + rng.choice([absurd, b""]) + rng.randbytes(2000))
    except OSError:
        pass  # the node hung up: quite right


def framed(rng):
    """Frames that are well-formed ZeroMQ, of random bytes or of messages that were mutated."""
    message = rng.choice(
        [
            fetch_of(bytes(16), credit=4, budget_ms=10**6),
            Credit(request=1, chunks=3),
            Cancel(request=1),
            AskStatus(request=1),
        ]
    )
    header = bytearray(encode(message))
    header[rng.randrange(len(header))] ^= rng.randrange(1, 256)
    return rng.choice(
        [
            [bytes(header)],
            [rng.randbytes(rng.randrange(300))],
            [rng.randbytes(16_000)],
            [b"x"] * 200,
            [encode(message), rng.randbytes(1000)],
            [msgpack.packb([0] * 5000)],
            [encode(message)],
        ]
    )


def throw_garbage(port, seconds, rng, between):
    end = time.monotonic() + seconds
    with zmq.Context() as context:
        while time.monotonic() < end:
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger = 50
                dealer.connect(f"tcp://127.0.0.1:{port}")
                for _ in range(200):
                    dealer.send_multipart(framed(rng))
            for _ in range(20):
                raw_bytes(port, rng)
            between()


@pytest.mark.parametrize(
    "seconds", [1, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(200)])]
)
def test_garbage_changes_nothing(tmp_path, seconds):
    print(f"seed {SEED}")
    config = config_of(2, timeout_ms=5000, repeat="merge")
    alone, port = config["nodes"][:1], config["nodes"][0]["port"]
    path = tmp_path / "w1.json"
    path.write_text(
        json.dumps({"nodes": alone, "limits": {"serving_share": 1.0}, "log_level": "error"})
    )
    with (
        told("told_node.py", "w1", path, 125_000) as victim,
        DpwaConnection("w2", config) as connection,
    ):
        pid = victim.process.pid
        victim.tell("send", 1)

        def fetch():
            connection.update_send(np.zeros(125_000), 0.1)
            parameters, _ = connection.update_wait(0.1)
            return parameters is not None and bool((parameters == 1).all())

        eventually(fetch)
        rng = random.Random(SEED)
        throw_garbage(port, 0.5, rng, between=lambda: None)  # buffers reach their usual size
        files, answered = descriptors(pid), []

        def memory_grows():
            memory, before = resident_mb(pid), len(answered)
            throw_garbage(port, seconds, rng, between=lambda: answered.append(fetch()))
            growth, count = resident_mb(pid) - memory, len(answered) - before
            print(f"memory grew by {growth:.1f} MB over {count} answered fetches")
            assert count >= seconds / 2
            return growth >= GROWTH_LIMIT_MB

        # On a busy machine, buffers take longer to reach that size; a leak never ends.
        assert not all(memory_grows() for _ in range(MAX_PHASES))
        assert all(answered)
        eventually(lambda: descriptors(pid) <= files + 5, timeout_s=20)
        assert victim.tell("report")["bad_messages"] > 100
        assert victim.end() == (0, "")
