"""A cluster of real processes that is cut in two for 30 s, in network namespaces (as root).

Usage: partition.py [--seed SEED] [--nodes N]

What clusters do whose members are killed, come late or are cut off is played in virtual time, see
virtual.py; here the packets are dropped by the kernel. Prints the seed, and each promise with its
figure; exits with 1 if one is broken.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.swarm import Promise, Swarm, tell, wait_until

from dpwa.testing import Namespaces

SPLIT_S = 30.0
HEAL_WITHIN_S = 10.0
LONGEST_GAP_S = 3.0  # between two steps


def partition(seed, count, folder, stack):
    hosts = stack.enter_context(Namespaces(count))
    swarm = Swarm(folder, seed, stack)
    for number, host in enumerate(hosts):
        ranks = [] if number == 0 else [f"tcp://{hosts[0].address}:7000"]
        config = {"join": ranks, "listen": f"tcp://{host.address}:7000"}
        swarm.start(f"n{number}", config, host.command([]))
    swarm.wait_until_all_see_all()
    time.sleep(10.0)
    before = distance(swarm)
    halves = [list(range(count // 2)), list(range(count // 2, count))]
    hosts.partition(halves)
    cut = time.time()
    views = [{f"n{number}" for number in numbers} for numbers in halves]
    wait_until(
        lambda: all(swarm.nodes[name].sees == view for view in views for name in view),
        SPLIT_S,
        "each half sees itself",
    )
    split_after_s = time.time() - cut
    time.sleep(max(0.0, cut + SPLIT_S - time.time()))
    apart = [node.trains[-1] for node in swarm.nodes.values()]
    hosts.heal()
    healed = time.time()
    try:
        swarm.wait_until_all_see_all(60.0)
    except RuntimeError:
        print({node.name: sorted(node.sees) for node in swarm.nodes.values()})
    healed_after_s = time.time() - healed
    time.sleep(10.0)
    after = distance(swarm)
    gaps = [r["gap_s"] for node in swarm.nodes.values() for r in node.trains if r["t"] > cut]
    return [
        Promise("each half goes on by itself", f"after {split_after_s:.1f} s", True),
        Promise("metrics show the split: components", str([r["components"] for r in apart]),
                all(r["components"] == 2 for r in apart)),
        Promise("training never stops: longest gap between two steps", f"{max(gaps):.2f} s",
                max(gaps) <= LONGEST_GAP_S),
        Promise(f"one view again within {HEAL_WITHIN_S:g} s", f"{healed_after_s:.1f} s",
                healed_after_s <= HEAL_WITHIN_S),
        Promise("consensus distance falls below its value before",
                f"{after:.4f} after, {before:.4f} before", after < before),
        swarm.promise_of_no_trouble(),
    ]  # fmt: skip


def distance(swarm):
    """Mean distance between nodes that merged each other in the last five seconds."""
    now = time.time()
    found = [r["distance"] for n in swarm.nodes.values() for r in n.trains if now - r["t"] < 5.0]
    return statistics.mean(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=8)
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.nodes} nodes")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        promises = partition(options.seed, options.nodes, Path(folder), stack)
    tell(promises)


if __name__ == "__main__":
    main()
