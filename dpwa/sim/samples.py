"""What a simulated run tells: samples while it goes on, and figures of each node at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpwa.sim.scenario import Scenario, TargetSpec


@dataclass(frozen=True)
class Sample:
    """The run at one moment of virtual time.

    Attributes:
        time_s: virtual seconds since the start.
        round: updates that a living node has taken in the mean.
        nodes: that live and train.
        variance_ratio: V / V0, V = sum over living nodes of |x_i - mean|^2, by their number. V0 is
            that of the beginning, or 1 where all began alike.
        consensus_distance: sqrt(V / nodes).
        loss: mean of the living nodes; `None` for `consensus`.
        accuracy: of the mean model; `None` where the task has none.
        bytes_per_node: sent until now by a node in the mean, with headers.
    """

    time_s: float
    round: float
    nodes: int
    variance_ratio: float
    consensus_distance: float
    loss: float | None
    accuracy: float | None
    bytes_per_node: float


@dataclass(frozen=True)
class NodeFigures:
    """What became of one node.

    Attributes:
        name: of the node.
        updates: steps that it has taken.
        merges: snapshots that it has merged.
        bytes_sent, bytes_received: with headers.
        trained_s: virtual seconds in training steps, and in what else a node does itself.
        waited_s: virtual seconds in which it waited for peers.
        served: snapshots that it has sent to others.
    """

    name: str
    updates: int
    merges: int
    bytes_sent: int
    bytes_received: int
    trained_s: float
    waited_s: float
    served: int


@dataclass(frozen=True)
class RunOutcome:
    """The end of a simulated run.

    Attributes:
        samples: in order of time; the first is of the beginning, the last of the end.
        nodes: of all that ever lived, in order of their names.
        events: what happened to nodes, as (virtual second, text).
        detail: which engine it was, `rules` or `nodes`.
        was_stopped: whether somebody ended it before it was over (Ctrl-C).
    """

    samples: tuple[Sample, ...]
    nodes: tuple[NodeFigures, ...]
    events: tuple[tuple[float, str], ...]
    detail: str
    was_stopped: bool = False


Watch = Callable[[Sample], bool]
"""Is shown each sample, and in between the last one again; returns whether to go on."""


BEGIN_ALIKE = ("quadratic", "digits")  # tasks whose nodes all have the same parameters at first


def has_target(target: TargetSpec) -> bool:
    """Tell whether anything is to be reached."""
    return any(value is not None for _, value in target)


def meets(scenario: Scenario, sample: Sample) -> bool:
    """Tell whether all that is to be reached is reached; false if nothing is.

    Variance says something once there are two nodes to compare (if there ever are) and all have
    started; where they begin alike, once each has taken a step in the mean.
    """
    target = scenario.target
    ratio, loss, accuracy = sample.variance_ratio, sample.loss, sample.accuracy
    have_started = sample.time_s >= scenario.churn.start_spread_s
    have_moved = sample.round >= 1.0 or scenario.task not in BEGIN_ALIKE
    says_variance = have_started and have_moved and sample.nodes >= min(2, scenario.nodes)
    return has_target(target) and all(
        (
            sample.nodes > 0,
            target.variance_ratio is None or (says_variance and ratio <= target.variance_ratio),
            target.loss is None or (loss is not None and loss <= target.loss),
            target.accuracy is None or (accuracy is not None and accuracy >= target.accuracy),
        )
    )
