"""Configurations of nodes on free loopback ports, and patience for what happens soon."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from support.ports import free_ports
from support.times import HANGS_AFTER_S, Bound

__all__ = [
    "again_and_again",
    "at_once",
    "config_of",
    "eventually",
    "has_merged",
    "is_connected",
    "merge_of",
    "refuses",
    "status_of",
]


def config_of(count, **settings):
    """A configuration mapping of nodes w1, w2, ... on free loopback ports."""
    nodes = [
        {"name": f"w{index}", "host": "127.0.0.1", "port": port}
        for index, port in enumerate(free_ports(count), start=1)
    ]
    return {"nodes": nodes, "timeout_ms": 2000, "seed": 7, **settings}


def eventually(check, timeout_s=HANGS_AFTER_S, every_s=0.01):
    """Return the first true value of `check()`; fail when it stays false.

    Give a `timeout_s` that is promised; by default only a hang fails.
    """
    bound = Bound(timeout_s)
    while not (value := check()):
        if bound.is_over:
            raise AssertionError(f"still not so after {timeout_s} s: {check}")
        time.sleep(every_s)
    return value


def at_once(tasks):
    """Run tasks at the same time, each on a thread of its own, until all have ended."""
    with ThreadPoolExecutor(len(tasks)) as threads:
        for called in [threads.submit(task) for task in tasks]:
            called.result()


@contextmanager
def again_and_again(task, pause_s=0.0):
    """Call a task all the time, on a thread of its own, until the block is over."""
    is_over = threading.Event()

    def run():
        while not (is_over.wait(pause_s) if pause_s else is_over.is_set()):
            task()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        is_over.set()
        thread.join()


def merge_of(first, second, loss=None, during=lambda: None):
    """Publish on both sides until the first adapter merges the second one's parameters."""

    def attempt():
        second.update_send(loss)
        first.update_send(loss)
        during()
        return first.update_wait(loss)

    return eventually(attempt)


def has_merged(one, two):
    """Publish on both sides; whether the first connection merges the second one's parameters."""
    for each in (two, one):
        each.update_send(np.ones(1000), 0.5)
    return one.update_wait(0.5)[0] is not None


def refuses(one, two, health):
    """Publish on both sides, and see that nothing is merged; whether the first adapter says this of
    the second one's health.
    """
    two.update_send()
    one.update_send()
    assert one.update_wait() is None
    return status_of(one.connection, two.name)["health"] == health


def status_of(connection, peer):
    return next(p for p in connection.node.report()["peers"] if p["name"] == peer)


def is_connected(connection, peer):
    return connection.node.links[peer].value == "up"
