"""Simulate a run on arrays if these describe the run exactly, otherwise with whole nodes."""

from __future__ import annotations

import numpy as np

from dpwa.errors import UserError
from dpwa.sim.rules.arrays import ArrayRounds
from dpwa.sim.samples import RunOutcome, Sample, Watch
from dpwa.sim.scenario import MAX_WHOLE_NODES, RunSpec, Scenario


def require_engine(scenario: Scenario) -> None:
    """Import the node engine if a scenario surely needs it, to notice missing libraries early."""
    if scenario.detail == "nodes" or scenario.schedule == "asynchronous":
        import dpwa.sim.nodes.engine  # noqa: F401


def simulate(spec: RunSpec, watch: Watch | None = None) -> RunOutcome:
    """Simulate a run.

    Args:
        spec: the run, as `load_scenario` returns it.
        watch: gets each sample, and returns whether to continue. By default the run continues.

    Raises:
        UserError: the run cannot be simulated, or a required library is missing.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # the figures show a run that diverges
        arrays = _as_arrays(spec)
        if arrays is not None:
            return arrays.simulate(watch or _go_on)
        from dpwa.sim.nodes.engine import NodesRun

        return NodesRun(spec, watch or _go_on).simulate()


def _as_arrays(spec: RunSpec) -> ArrayRounds | None:
    """Return an array simulation, or `None` if the run needs whole nodes. See `Scenario.detail`."""
    scenario = spec.scenario
    if scenario.detail == "nodes" or scenario.schedule == "asynchronous":
        return None
    arrays = ArrayRounds(spec)
    if arrays.fits:
        return arrays
    only = "because arrays are only for plain `gossip` in lockstep without failures"
    if scenario.detail == "arrays":
        raise UserError(f"detail: expected auto or nodes, {only} (got arrays) [DPWA-E178]")
    if scenario.nodes > MAX_WHOLE_NODES:
        raise UserError(
            f"nodes: expected at most {MAX_WHOLE_NODES}, {only} (got {scenario.nodes}) [DPWA-E178]"
        )
    return None


def _go_on(sample: Sample) -> bool:  # noqa: ARG001
    return True
