"""Targets: what a run is to reach, and whether a sample of it does."""

from __future__ import annotations

from dpwa.sim.samples import Sample
from dpwa.sim.scenario import Scenario, TargetSpec

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
