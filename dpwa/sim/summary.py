"""The results of a simulated run, as figures for people and programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from dpwa.sim.samples import RunOutcome, meets
from dpwa.sim.scenario import RunSpec
from dpwa.types import JsonObject


@dataclass(frozen=True)
class SimulationFigures:
    """Figures of one run. All times are virtual.

    Attributes:
        reached: whether the run reached its target. False if it has none.
        rounds_to_target: mean updates of a node until the target. `None` if never.
        seconds_to_target: seconds until the target. `None` if never.
        bytes_per_node: mean bytes that a node sent, with headers.
        steps_per_s: training steps of all nodes together.
        waiting_share: share of the time of all nodes that they waited for peers.
        variance_ratio, consensus_distance, loss, accuracy: values at the end, as in `Sample`.
        rounds: mean updates of a node.
        seconds: the length of the run.
        nodes: number of nodes that lived at the end.
        serving_fairness: Jain's index of the snapshots that each node served. It is 1 if all nodes
            served equally many, 1 / N if one node served all, and `None` if no node served any.
        most_served: number of snapshots that the busiest node served.
        most_bytes_sent: maximum bytes sent by one node.
        events: number of starts and ends of nodes.
        detail: `arrays` or whole `nodes`.
        seed: seed of the run.
        was_stopped: whether a signal ended the run early.
    """

    reached: bool
    rounds_to_target: float | None
    seconds_to_target: float | None
    bytes_per_node: float
    steps_per_s: float
    waiting_share: float
    variance_ratio: float
    consensus_distance: float
    loss: float | None
    accuracy: float | None
    rounds: float
    seconds: float
    nodes: int
    serving_fairness: float | None
    most_served: int
    most_bytes_sent: int
    events: int
    detail: str
    seed: int
    was_stopped: bool

    def to_json(self) -> JsonObject:
        """Return all figures by name, with `None` for numbers that are not finite."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def figures_of(spec: RunSpec, outcome: RunOutcome) -> SimulationFigures:
    """Return the figures of a finished run."""
    nodes, last = outcome.nodes, outcome.samples[-1]
    first = next((sample for sample in outcome.samples if meets(spec.scenario, sample)), None)
    waited = sum(node.waited_s for node in nodes)
    spent = waited + sum(node.trained_s for node in nodes)
    served = [node.served for node in nodes]
    return SimulationFigures(
        reached=first is not None,
        rounds_to_target=first.round if first else None,
        seconds_to_target=first.time_s if first else None,
        bytes_per_node=last.bytes_per_node,
        steps_per_s=sum(node.updates for node in nodes) / last.time_s if last.time_s else 0.0,
        waiting_share=waited / spent if spent else 0.0,
        variance_ratio=last.variance_ratio,
        consensus_distance=last.consensus_distance,
        loss=last.loss,
        accuracy=last.accuracy,
        rounds=last.round,
        seconds=last.time_s,
        nodes=last.nodes,
        serving_fairness=jain_index(served),
        most_served=max(served, default=0),
        most_bytes_sent=max((node.bytes_sent for node in nodes), default=0),
        events=len(outcome.events),
        detail=outcome.detail,
        seed=spec.scenario.seed,
        was_stopped=outcome.was_stopped,
    )


def jain_index(loads: Sequence[float]) -> float | None:
    """Return (sum x)^2 / (N sum x^2), the fairness of loads, or `None` if there are none.

    Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems", DEC-TR-301, 1984.
    """
    squares = sum(load * load for load in loads)
    return sum(loads) ** 2 / (len(loads) * squares) if squares else None
