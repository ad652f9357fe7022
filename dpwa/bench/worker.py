"""One of the processes of `dpwa bench`; `run_processes` starts it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dpwa.bench.plan import CollectivesPlan, MeasuringPlan, PlanePlan, Rank, TablesPlan
from dpwa.errors import DpwaError

if TYPE_CHECKING:
    from dpwa.bench.factory import MeasureFactory
    from dpwa.bench.session import GlooGroup


def main() -> None:
    """Take part in the benchmark that the environment describes."""
    rank = Rank.from_environment()
    try:
        _work(rank, rank.benchmark_plan())
    except DpwaError as error:
        sys.exit(f"error: {error}")


def _work(rank: Rank, plan: MeasuringPlan) -> None:
    from dpwa.bench.session import GlooGroup, leave_when_asked, repeat, report

    leave_when_asked()
    with GlooGroup(rank) as group, _factory(plan, group) as factory:
        outcome = repeat(group, factory.measures(), plan.repetitions)
        report(outcome)
        group.barrier()


def _factory(plan: MeasuringPlan, group: GlooGroup) -> MeasureFactory[Any]:
    match plan:
        case PlanePlan():
            from dpwa.bench.factories.plane import PlaneFactory

            return PlaneFactory(plan, group)
        case CollectivesPlan():
            from dpwa.bench.factories.collectives import CollectivesFactory

            return CollectivesFactory(plan, group)
        case TablesPlan():
            from dpwa.bench.factories.tables import TablesFactory

            return TablesFactory(plan, group)
    raise AssertionError(f"no benchmark has a {type(plan).__name__}")


if __name__ == "__main__":
    main()
