"""For every test: nothing may be left behind, and a failing example can be replayed."""

import gc
import threading
import time
from pathlib import Path

import hypothesis
import pytest
import zmq

hypothesis.settings.register_profile("dpwa", deadline=None, print_blob=True)
hypothesis.settings.load_profile("dpwa")


def _open_sockets():
    """Sockets of this process, by inode."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


@pytest.fixture(autouse=True, scope="session")
def _zeromq_collector():
    """Start pyzmq's thread for messages sent without a copy; a process has one, for good."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        one.bind("inproc://start")
        two.connect("inproc://start")
        two.send(bytes(zmq.COPY_THRESHOLD), copy=False)
        one.recv()


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """Fail a test that leaks a thread or a socket."""
    threads, sockets = set(threading.enumerate()), _open_sockets()
    yield
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        left = [t.name for t in threading.enumerate() if t not in threads]
        left += sorted(_open_sockets() - sockets)
        if not left:
            return
        gc.collect()
        time.sleep(0.02)
    pytest.fail(f"left behind: {left}")
