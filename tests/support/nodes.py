"""Configurations of nodes on free loopback ports, and patience for what happens soon."""

import contextlib
import socket
import time


def free_ports(count):
    """Ports that were free at the same moment a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def config_of(count, **settings):
    """A configuration mapping of nodes w1, w2, ... on free loopback ports."""
    nodes = [
        {"name": f"w{index}", "host": "127.0.0.1", "port": port}
        for index, port in enumerate(free_ports(count), start=1)
    ]
    return {"nodes": nodes, "timeout_ms": 2000, "seed": 7, **settings}


def eventually(check, timeout_s=10.0, every_s=0.01):
    """Return the first true value of `check()`; fail when it stays false."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(every_s)
    raise AssertionError(f"still not so after {timeout_s} s: {check}")


def status_of(connection, peer):
    """What a node reports of one peer."""
    return next(p for p in connection.node.report()["peers"] if p["name"] == peer)
