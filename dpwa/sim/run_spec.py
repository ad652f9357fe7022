"""RunSpec: all that an engine is told of the run that it is to simulate."""

from __future__ import annotations

from dataclasses import dataclass

from dpwa.config import Config
from dpwa.sim.scenario import Scenario
from dpwa.types import StrictModel


@dataclass(frozen=True)
class RunSpec:
    """One run, as `dpwa/sim/load.py` has read it.

    Attributes:
        scenario: what is simulated.
        config: the ordinary settings; its nodes are n0, n1, ... of the scenario, each at an address
            of its own. With `membership: open` it has `join`, with the address of n0.
        task_options: those of the task, which are set under its name.
    """

    scenario: Scenario
    config: Config
    task_options: StrictModel


def node_name(index: int) -> str:
    """Return the name of a simulated node; the first has index 0."""
    return f"n{index}"
