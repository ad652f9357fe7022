"""The results of a simulated run: samples over time, and each node's figures at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpwa.sim.scenario import RunSpec, Scenario, TargetSpec
from dpwa.sim.tasks import TrainingTask


@dataclass(frozen=True)
class Sample:
    """The figures of a run at one moment of virtual time.

    Attributes:
        time_s: virtual seconds since the start.
        round: mean number of updates of the living nodes.
        nodes: number of nodes that live and train.
        variance_ratio: V / V0, where V is the sum over living nodes of |x_i - mean|^2, divided by
            their number. V0 is the V of the start, or 1 if all nodes started alike.
        consensus_distance: sqrt(V / nodes).
        loss: mean of the living nodes. `None` for `consensus`.
        accuracy: of the mean model. `None` if the task has none.
        bytes_per_node: mean bytes that a node has sent so far, with headers.
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
    """The results of one node.

    Attributes:
        name: name of the node.
        updates: number of training steps.
        merges: number of merged snapshots.
        bytes_sent, bytes_received: bytes on the wire, with headers.
        trained_s: virtual seconds in training steps, and in the node's other work.
        waited_s: virtual seconds in which the node waited for peers.
        served: number of snapshots that the node has sent to others.
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
    """The samples, node figures and events of a simulated run.

    Attributes:
        samples: samples in order of time, from the start to the end.
        nodes: figures of all nodes that ever lived, in order of their names.
        events: starts and ends of nodes, as (virtual second, text).
        detail: `arrays` or whole `nodes`.
        was_stopped: whether a signal ended the run early (Ctrl-C).
    """

    samples: tuple[Sample, ...]
    nodes: tuple[NodeFigures, ...]
    events: tuple[tuple[float, str], ...]
    detail: str
    was_stopped: bool = False


Watch = Callable[[Sample], bool]
"""Gets each sample, and between samples the last one again. Returns whether to continue."""


BEGIN_ALIKE = ("quadratic", "digits")  # tasks whose nodes all have the same parameters at first


def has_target(target: TargetSpec) -> bool:
    """Return whether the scenario has a target."""
    return any(value is not None for _, value in target)


def meets(scenario: Scenario, sample: Sample) -> bool:
    """Return whether all targets are reached. False if there are none.

    The variance counts once at least two nodes have started (if there ever are two) and no start is
    left. If nodes start alike, it counts once they have taken one step on average.
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


SAMPLES = 200  # of a run with a known length
ROUNDING = 1e-9
ASK_EVERY_S = 0.2  # real seconds between two calls of the watcher
MAX_SAMPLES = 2 * SAMPLES  # of a run with an unknown length


@dataclass(frozen=True)
class Moment:
    """The state of a run at one moment, from which the figures of a sample are computed."""

    time_s: float  # virtual seconds since the start
    round: float  # mean updates of a living node
    x: NDArray[np.float64]  # parameters of the living nodes, shape (n, D)
    loss: float | None  # mean of the living nodes, `None` before the first step
    bytes_per_node: float  # mean bytes that a node has sent so far


class RunRecorder:
    """The samples of one run.

    All nodes start at `starts`, shape (N, D). `watch` gets each sample, and between samples the
    last one again. It returns whether to continue.
    """

    def __init__(
        self, spec: RunSpec, task: TrainingTask, starts: NDArray[np.float64], watch: Watch
    ) -> None:
        self.samples: list[Sample] = []
        self.was_stopped = False
        self.is_reached = False
        self._scenario = spec.scenario
        self._has_target = has_target(spec.scenario.target)
        self._rounds, self._seconds = spec.scenario.rounds, spec.scenario.seconds
        self._task = task
        self._watch = watch
        are_alike = bool((starts == starts[0]).all())
        self._first_variance = 1.0 if are_alike else _variance(starts, starts.mean(axis=0))
        self._interval = 1.0
        self._due = 0.0
        self._asked_at = 0.0

    def observe(self, moment: Moment) -> bool:
        """Check the progress of the run, and take a sample if it is due.

        Returns whether to continue. It is false once the target is reached, or the run was stopped.
        """
        position = self._position(moment)
        is_due = position >= self._due
        if not is_due and not self._has_target:
            return self.is_wanted()
        by_accuracy = self._scenario.target.accuracy is not None
        sample = self._sample(moment, needs_accuracy=is_due or by_accuracy)
        self.is_reached = meets(self._scenario, sample)
        if is_due or self.is_reached:
            self._take(sample)
            self._due = (math.floor(position / self._interval) + 1) * self._interval
        return not self.is_reached and self.is_wanted()

    def is_wanted(self) -> bool:
        """Return whether the caller wants to continue the run. Calls `watch` from time to time."""
        now = time.monotonic()
        if self.samples and not self.was_stopped and now - self._asked_at >= ASK_EVERY_S:
            self._ask(self.samples[-1])
        return not self.was_stopped

    def take_last_sample(self, moment: Moment) -> tuple[Sample, ...]:
        """Take a sample at the end of the run, if none exists for that time. Return all samples."""
        last = self.samples[-1] if self.samples else None
        if last is None or (last.time_s, last.round) != (moment.time_s, moment.round):
            self._take(self._sample(moment, needs_accuracy=True))
        else:  # add the bytes that were on their way
            self.samples[-1] = replace(last, bytes_per_node=moment.bytes_per_node)
        return tuple(self.samples)

    def _position(self, moment: Moment) -> float:
        """Return the progress from 0 to `SAMPLES`, or the round if the run's length is unknown."""
        shares = []
        if self._rounds is not None:
            shares.append(moment.round / self._rounds)
        if self._seconds is not None:
            shares.append(moment.time_s / self._seconds)
        return SAMPLES * max(shares) + ROUNDING if shares else moment.round

    def _take(self, sample: Sample) -> None:
        self.samples.append(sample)
        self._ask(sample)
        if len(self.samples) >= MAX_SAMPLES:
            self.samples = self.samples[::2]
            self._interval *= 2.0

    def _ask(self, sample: Sample) -> None:
        self._asked_at = time.monotonic()
        self.was_stopped = not self._watch(sample) or self.was_stopped

    def _sample(self, moment: Moment, *, needs_accuracy: bool) -> Sample:
        nodes = len(moment.x)
        mean = moment.x.mean(axis=0) if nodes else np.zeros(moment.x.shape[1])
        variance = _variance(moment.x, mean)
        loss, accuracy = moment.loss, None
        if nodes and (loss is None or needs_accuracy):
            mean_loss, accuracy = self._task.evaluate(mean)
            loss = mean_loss if loss is None else loss
        return Sample(
            time_s=moment.time_s,
            round=moment.round,
            nodes=nodes,
            variance_ratio=variance / self._first_variance,
            consensus_distance=math.sqrt(variance),
            loss=loss,
            accuracy=accuracy,
            bytes_per_node=moment.bytes_per_node,
        )


def _variance(x: NDArray[np.float64], mean: NDArray[np.float64]) -> float:
    """Return sum |x_i - mean|^2 divided by the number of nodes, or 0 if there are none."""
    offset = x - mean
    return float(np.einsum("nd,nd->", offset, offset)) / max(1, len(x))
