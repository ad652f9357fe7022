"""One of the processes of `dpwa bench`; `run_processes` starts it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dpwa.bench.plan import CollectivesPlan, MeasuringPlan, PlanePlan, Seat, TablesPlan
from dpwa.errors import DpwaError

if TYPE_CHECKING:
    from dpwa.bench.session import Group
    from dpwa.bench.workshop import Workshop


def main() -> None:
    """Take part in the benchmark that the environment describes."""
    seat = Seat.from_environment()
    try:
        _work(seat, seat.benchmark_plan())
    except DpwaError as error:
        sys.exit(f"error: {error}")


def _work(seat: Seat, plan: MeasuringPlan) -> None:
    from dpwa.bench.session import Group, leave_when_asked, repeat, report

    leave_when_asked()
    with Group(seat) as group, _workshop(plan, group) as workshop:
        outcome = repeat(group, workshop.measures(), plan.repetitions)
        report(outcome)
        group.barrier()


def _workshop(plan: MeasuringPlan, group: Group) -> Workshop[Any]:
    match plan:
        case PlanePlan():
            from dpwa.bench.workshops.plane import PlaneWorkshop

            return PlaneWorkshop(plan, group)
        case CollectivesPlan():
            from dpwa.bench.workshops.collectives import CollectivesWorkshop

            return CollectivesWorkshop(plan, group)
        case TablesPlan():
            from dpwa.bench.workshops.tables import TablesWorkshop

            return TablesWorkshop(plan, group)
    raise AssertionError(f"no benchmark has a {type(plan).__name__}")


if __name__ == "__main__":
    main()
