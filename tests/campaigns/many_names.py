"""Many names: a long list of which two run, and a cluster of many nodes in one process.

Usage: many_names.py list [--names 1000] [--rounds 100] [--transport tcp]
       many_names.py nodes [--nodes 40] [--rounds 20]

`list`: two nodes of a list, whose other names are all down, under 1,024 descriptors. Prints what
they cost while idle, and how many rounds merge; exits with 1 if either merges in fewer than half of
its rounds, a call of `update_wait` takes more than 50 ms longer than `timeout_ms`, or an idle node
takes more than 100 descriptors or 1 % of a core.

`nodes`: so many nodes join each other from one address and gossip. Prints when all see all, and how
many merge; exits with 1 if a view is not complete, or a node merges nothing.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dpwa.connection import DpwaConnection

DESCRIPTORS = 1024
TIMEOUT_MS = 500
SLACK_S = 0.05
FIRST_PORT = 20_100
IDLE_S = 8.0
ELEMENTS = 1000
VIEW_WITHIN_S = 120.0


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def of_a_list(names: int, rounds: int, transport: str) -> bool:
    """Run the first and the last node of a list; tell whether all holds."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    config = {
        "nodes": [
            {"name": f"w{index}", "host": "127.0.0.1", "port": FIRST_PORT + index}
            for index in range(names)
        ],
        "transport": transport,
        "timeout_ms": TIMEOUT_MS,
        "initial_state": "own",
        "log_level": "error",
    }
    before = descriptors()
    with DpwaConnection("w0", config) as first, DpwaConnection(f"w{names - 1}", config) as last:
        both = first, last
        time.sleep(3.0)
        idle_descriptors = (descriptors() - before) / 2
        cpu, began = time.process_time(), time.monotonic()
        time.sleep(IDLE_S)
        idle_share = (time.process_time() - cpu) / (time.monotonic() - began) / 2
        parameters, longest_s = np.ones(ELEMENTS, np.float32), 0.0
        for _ in range(rounds):
            for node in both:
                node.update_send(parameters, 0.1)
            for node in both:
                asked = time.monotonic()
                node.update_wait(0.1)
                longest_s = max(longest_s, time.monotonic() - asked)
        merges = [node.node.rounds.merges for node in both]
    print(
        f"idle: {idle_descriptors:.0f} descriptors and {idle_share:.4f} of a core a node\n"
        f"merged in {merges[0]} and {merges[1]} of {rounds} rounds; "
        f"longest update_wait {longest_s:.3f} s"
    )
    return (
        min(merges) >= rounds / 2
        and longest_s <= TIMEOUT_MS / 1000 + SLACK_S
        and idle_descriptors <= 100
        and idle_share <= 0.01
    )


def of_one_process(count: int, rounds: int) -> bool:
    """Run many nodes that join at the first one; tell whether all see all, and merge."""
    settings = {
        "seed": 1,
        "timeout_ms": 5000,
        "initial_state": "own",
        "log_level": "warning",
        "connections": 8,  # they share the descriptors of one process
    }
    began = time.monotonic()
    with ExitStack() as stack:
        nodes = [stack.enter_context(DpwaConnection("n0", {**settings, "join": []}))]
        place = nodes[0].node.endpoint
        for index in range(1, count):
            config = {**settings, "join": [place]}
            nodes.append(stack.enter_context(DpwaConnection(f"n{index}", config)))
        print(f"{count} nodes are in after {time.monotonic() - began:.1f} s")
        is_complete = _wait_for_views(nodes)
        print(f"all see all: {is_complete}, after {time.monotonic() - began:.1f} s")
        threads = [threading.Thread(target=_gossip, args=(node, rounds)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        merges = [node.node.rounds.merges for node in nodes]
        still_complete = all(len(node.peers) == count - 1 for node in nodes)
        print(
            f"merges of {rounds} rounds: {min(merges)} to {max(merges)}; views are complete: "
            f"{still_complete}; {descriptors()} descriptors; {time.monotonic() - began:.1f} s"
        )
    return is_complete and still_complete and min(merges) > 0


def _wait_for_views(nodes: list[DpwaConnection]) -> bool:
    end = time.monotonic() + VIEW_WITHIN_S
    while time.monotonic() < end:
        if all(len(node.peers) == len(nodes) - 1 for node in nodes):
            return True
        time.sleep(0.1)
    return False


def _gossip(node: DpwaConnection, rounds: int) -> None:
    parameters = np.ones(ELEMENTS, np.float32)
    for _ in range(rounds):
        node.update_send(parameters, 0.1)
        node.update_wait(0.1)
        time.sleep(0.02)


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    of_list = commands.add_parser("list")
    of_list.add_argument("--names", type=int, default=1000)
    of_list.add_argument("--rounds", type=int, default=100)
    of_list.add_argument("--transport", default="tcp")
    of_nodes = commands.add_parser("nodes")
    of_nodes.add_argument("--nodes", type=int, default=40)
    of_nodes.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    logging.captureWarnings(capture=True)
    if given.command == "list":
        holds = of_a_list(given.names, given.rounds, given.transport)
    else:
        holds = of_one_process(given.nodes, given.rounds)
    sys.exit(not holds)


if __name__ == "__main__":
    main()
