"""Measure the membership traffic and the recovery of whole nodes with `membership: open`.

The simulation has all messages of all nodes, in virtual time. All nodes start within a second. At
`LOST_AT_S`, half of the nodes are killed at the same time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dpwa.features import FEATURES
from dpwa.sim.load import load_scenario
from dpwa.sim.nodes.engine import NodesRun, SimulatedNode
from dpwa.sim.rules.wire_sizes import wire_bytes
from dpwa.wire.messages import pack

STEADY_FROM_S = 12.0
LOST_AT_S = 22.0
END_S = 60.0
STEP_MS = 500  # long, because the study measures membership and not training
BASE_S = 6.0  # time before the loss in which the usual rate of merges is measured
FULL_RATE = 0.9  # a node has recovered at this share of the usual rate of merges
WINDOW_S = 4.0
WORST_OF_S = 5.0
_TYPES = next(feature.types.split() for feature in FEATURES if feature.name == "membership")
_MARKS = tuple(pack("type") + pack(name) for name in _TYPES)


@dataclass
class MemberTraffic:
    # bytes sent by (second, node), and messages sent by second
    nbytes: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    messages: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def tap(self, time_s: float, sender: str, to: str, frames: Sequence[bytes]) -> None:  # noqa: ARG002
        if not is_of_membership(frames):
            return
        self.nbytes[int(time_s), sender] += wire_bytes([len(frame) for frame in frames])
        self.messages[int(time_s)] += 1

    def between(self, begin_s: float, end_s: float, nodes: int) -> dict[str, float]:
        """Return mean bytes and messages of a node per second, and bytes of the busiest node."""
        by_node: dict[str, int] = defaultdict(int)
        for (second, sender), nbytes in self.nbytes.items():
            if begin_s <= second < end_s:
                by_node[sender] += nbytes
        length_s = end_s - begin_s
        messages = sum(n for second, n in self.messages.items() if begin_s <= second < end_s)
        return {
            "bytes_per_s": sum(by_node.values()) / nodes / length_s,
            "most_bytes_per_s": max(by_node.values(), default=0) / length_s,
            "messages_per_s": messages / nodes / length_s,
        }


def is_of_membership(frames: Sequence[bytes]) -> bool:
    """Return whether a message is of membership. Others do not count, even if they name members."""
    return any(mark in frames[0] for mark in _MARKS)


class Watched:
    """The merges and views of all nodes in each second. Make this object before the run starts."""

    def __init__(self, run: NodesRun) -> None:
        self._run = run
        self.merges: list[tuple[float, int, int]] = []  # second, merges and number of living nodes
        self.unaware: list[tuple[float, int]] = []  # second, pairs of a living node and a dead peer
        self.unknown: list[tuple[float, int]] = []  # second, missing peers in all views
        run.network.call_later(0.0, self._look)

    def _look(self) -> None:
        now = self._run.network.clock.now()
        living = [node for node in self._run.nodes if node.connection is not None]
        names = {node.name for node in living}
        views = [
            set(node.connection.node.names()[1:]) for node in living if node.connection is not None
        ]
        self.merges.append((now, sum(map(_merges, living)), len(living)))
        self.unaware.append((now, sum(len(view - names) for view in views)))
        self.unknown.append((now, sum(len(names) - 1 - len(view & names) for view in views)))
        self._run.network.call_later(1.0, self._look)

    def rates(self) -> list[tuple[float, float]]:
        """Return the merges of a living node per second, as means over `WINDOW_S`."""
        width = int(WINDOW_S)
        pairs = zip(self.merges, self.merges[width:], strict=False)
        return [(b[0], (b[1] - a[1]) / WINDOW_S / b[2]) for a, b in pairs if a[2] == b[2]]


def _merges(node: SimulatedNode) -> int:
    return 0 if node.connection is None else node.connection.node.rounds.merges


def study(nodes: int, seed: int, runs: int = 1) -> dict[str, float | int]:
    """Simulate this number of nodes several times. Return the worst figures of all runs."""
    seen = [simulated(nodes, seed + again) for again in range(runs)]
    steady = [traffic.between(STEADY_FROM_S, LOST_AT_S, nodes) for traffic, _ in seen]
    found: dict[str, float | int] = {"nodes": nodes, "runs": len(seen)}
    found |= {key: max(each[key] for each in steady) for key in steady[0]}
    found["all_known_s"] = max(_first(watched.unknown, 1.0) for _, watched in seen)
    left = nodes - nodes // 2
    after = range(int(LOST_AT_S), int(END_S - WORST_OF_S))
    found["bytes_per_s_after_loss"] = max(
        traffic.between(at, at + WORST_OF_S, left)["bytes_per_s"]
        for at in after
        for traffic, _ in seen
    )
    found["dead_known_s"] = max(
        _first(watched.unaware, LOST_AT_S + 0.5) - LOST_AT_S for _, watched in seen
    )
    found["full_rate_s"] = _recovered([watched.rates() for _, watched in seen])
    return found


def simulated(nodes: int, seed: int) -> tuple[MemberTraffic, Watched]:
    scenario = {
        "nodes": nodes,
        "seed": seed,
        "seconds": END_S,
        "task": "quadratic",
        "detail": "nodes",
        "membership": "open",
        "compute": {"step_ms": STEP_MS, "jitter": 0.3},
        "network": {"latency_ms": 2},
        "churn": {"start_spread_s": 1.0, "lost": [{"at_s": LOST_AT_S, "share": 0.5}]},
    }
    run = NodesRun(load_scenario(scenario), lambda _: True)
    traffic, watched = MemberTraffic(), Watched(run)
    run.tcp.tap = traffic.tap
    run.simulate()
    return traffic, watched


def _first(values: Sequence[tuple[float, int]], after_s: float) -> float:
    """Return the first time after `after_s` with a value of 0, or infinity if there is none."""
    return next((at for at, left in values if at >= after_s and not left), math.inf)


def _recovered(runs: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the seconds after the loss until living nodes merge at the full rate to the end."""
    by_second = [{round(at): rate for at, rate in rates} for rates in runs]
    seconds = sorted(set.intersection(*map(set, by_second)))
    rates = [(at, sum(each[at] for each in by_second) / len(by_second)) for at in seconds]
    before = [rate for at, rate in rates if LOST_AT_S - BASE_S <= at < LOST_AT_S]
    wanted = FULL_RATE * sum(before) / len(before)
    slow = [at for at, rate in rates if at > LOST_AT_S and rate < wanted]
    if not slow:
        return 0.0
    return math.inf if slow[-1] == rates[-1][0] else slow[-1] + 1.0 - WINDOW_S - LOST_AT_S
