"""One of the processes of `dpwa bench plane`; `run_processes` starts it."""

from __future__ import annotations

import sys

from dpwa.bench.plan import PlanePlan, Seat
from dpwa.errors import DpwaError


def main() -> None:
    """Take part in the benchmark that the environment describes."""
    seat = Seat.from_environment()
    try:
        _work(seat, seat.plan(PlanePlan))
    except DpwaError as error:
        sys.exit(f"error: {error}")


def _work(seat: Seat, plan: PlanePlan) -> None:
    from dpwa.bench.session import Group, leave_when_asked, repeat, report
    from dpwa.bench.workshop import Workshop

    leave_when_asked()
    with Group(seat) as group, Workshop(plan, group) as workshop:
        outcome = repeat(group, workshop.measures(), plan.repetitions)
        report(outcome)
        group.barrier()


if __name__ == "__main__":
    main()
