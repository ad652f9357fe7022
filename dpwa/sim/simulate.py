"""A run from its beginning to its end, by the engine that fits it."""

from __future__ import annotations

import numpy as np

from dpwa.sim.samples import RunOutcome, Sample, Watch
from dpwa.sim.scenario import RunSpec, Scenario

MOST_AUTO_NODES = 32


def engine_of(scenario: Scenario) -> str:
    """Return which engine a scenario is for, `nodes` or `rules`; see `Scenario.detail`."""
    if scenario.detail != "auto":
        return scenario.detail
    is_small = scenario.nodes <= MOST_AUTO_NODES and scenario.schedule == "asynchronous"
    return "nodes" if is_small else "rules"


def require_engine(scenario: Scenario) -> None:
    """Check that what the engine of a scenario needs is installed."""
    if engine_of(scenario) == "nodes":
        import dpwa.sim.nodes.engine  # noqa: F401


def simulate(spec: RunSpec, watch: Watch | None = None) -> RunOutcome:
    """Simulate a run.

    Args:
        spec: of the run, as `load_scenario` returns it.
        watch: is shown each sample, and returns whether to go on; `None`: on to the end.

    Raises:
        UserError: the engine cannot simulate this, or a library that it needs is missing.
    """
    if engine_of(spec.scenario) == "nodes":
        from dpwa.sim.nodes.engine import run
    else:
        from dpwa.sim.rules.engine import run
    with np.errstate(over="ignore", invalid="ignore"):  # a run may diverge; its figures say so
        return run(spec, watch or _go_on)


def _go_on(sample: Sample) -> bool:  # noqa: ARG001
    return True
