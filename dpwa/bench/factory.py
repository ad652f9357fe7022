"""Builds the measures of a plan, and holds what they share."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Generic, TypeVar

from dpwa.bench.plan import MeasuringPlan
from dpwa.bench.session import GlooGroup, Measure
from dpwa.lifecycle import Closeable

AnyMeasuringPlan = TypeVar("AnyMeasuringPlan", bound=MeasuringPlan)


class MeasureFactory(Closeable, Generic[AnyMeasuringPlan]):
    """Holds the memory, the nodes and the sockets of this process until it is closed.

    All processes build the same measures in the same order.

    Args:
        plan: what to measure.
        group: the processes.
    """

    def __init__(self, plan: AnyMeasuringPlan, group: GlooGroup) -> None:
        self._plan = plan
        self._group = group
        self._rank = group.rank
        self._is_first = group.rank.index == 0
        self._open = ExitStack()

    def measures(self) -> dict[str, Measure]:
        """Return the measures of the plan by name, ready to be repeated."""
        return {name: self._measure(name) for name in self._plan.measures}

    def close(self) -> None:
        """Close all nodes and sockets."""
        self._open.close()

    def _measure(self, name: str) -> Measure:
        raise NotImplementedError
