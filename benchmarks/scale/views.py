"""Simulate only the membership of many nodes, with the classes of nodes, in virtual time.

Each member has the `MemberList`, `Asking`, `RosterService` and `RosterListener` of a node, and
sends messages with their real encoding over a `VirtualNetwork`. Messages need no connections, but
dead members refuse them. If a process ends, `CONNECTIONS` peers detect this at once. At the start,
all members know each other. The script prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import random
import sys

from dpwa.wire import limits

CONNECTIONS = 64
STEADY_FROM_S = 3.0
LOST_AT_S = 8.0
WORST_OF_S = 5.0
LATENCY_S = 0.002
END_S, LATER_S = 38.0, 10.0
CHURN_FROM_S, CHURN_END_S = 10.0, 30.0


def lost(nodes: int, seed: int) -> dict[str, float]:
    from members import Cluster  # after `main` has set the limit

    cluster = Cluster(nodes, seed, LATENCY_S, min(CONNECTIONS, nodes - 1))
    network = cluster.network
    steady = cluster.sent_between(STEADY_FROM_S, LOST_AT_S)
    known = min(len(member.member_list.peers) for member in cluster.living) + 1
    cluster.kill(random.Random(seed).sample(cluster.living, nodes // 2))
    after = cluster.sent_between(LOST_AT_S, LOST_AT_S + WORST_OF_S)
    while cluster.unaware() and network.clock.now() < END_S:
        network.run_for(0.5)
    dead_known_s = math.inf if cluster.unaware() else network.clock.now() - LOST_AT_S
    later = cluster.sent_between(END_S - LATER_S, END_S)
    return {
        "nodes": nodes,
        "known": known,
        **steady,
        "bytes_per_s_after_loss": after["bytes_per_s"],
        "dead_known_s": dead_known_s,
        "bytes_per_s_later": later["bytes_per_s"],
        "trials_per_s": later["trials_per_s"],
    }


def churning(nodes: int, seed: int, lives_s: float) -> dict[str, float]:
    from members import Cluster  # after `main` has set the limit

    cluster = Cluster(nodes, seed, LATENCY_S, min(CONNECTIONS, nodes - 1))
    network, rng = cluster.network, random.Random(f"{seed}/kills")

    def kill_one() -> None:
        cluster.kill([rng.choice(cluster.living)])
        network.call_later(rng.expovariate(nodes / lives_s), kill_one)

    network.call_later(0.0, kill_one)
    found = cluster.sent_between(CHURN_FROM_S, CHURN_END_S)
    return {"nodes": nodes, "killed": len(cluster.dead), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lives-s", type=float, default=0.0, help="mean life (0: half die once)")
    parser.add_argument("--most", type=int, default=0, help="limit of a view (0: the default)")
    options = parser.parse_args()
    if options.most:
        limits.MAX_ROSTER_ENTRIES = options.most
        limits.MAX_ROSTER_BYTES = 512 * options.most
    logging.disable(logging.ERROR)
    gc.disable()  # the garbage collector would scan millions of objects without any garbage
    if options.lives_s:
        found = churning(options.nodes, options.seed, options.lives_s)
    else:
        found = lost(options.nodes, options.seed)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
