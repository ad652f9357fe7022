"""`calibrate`: from a run directory to what was observed, fitted, and simulated by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpwa.observe.run_data import Run
from dpwa.sim.calibration.fit import Fit, fit
from dpwa.sim.calibration.observed import ObservedRun, observe
from dpwa.sim.calibration.refine import MOST_NODES, Simulated, refine
from dpwa.sim.calibration.scenario import FILE, Settings, scenario_of, untold_options
from dpwa.types import JsonObject


@dataclass(frozen=True)
class Calibration:
    """A scenario that is fitted to a real run.

    Attributes:
        run: what was observed.
        fit: what was fitted to it.
        simulated: what comes of it; `None`: there are too many nodes to try.
    """

    run: ObservedRun
    fit: Fit
    simulated: Simulated | None

    @property
    def scenario(self) -> Settings:
        """As plain values, which `load_scenario` takes."""
        return scenario_of(self.run, self.fit)

    def to_json(self) -> JsonObject:
        """Return the scenario, and the figures of the run and of its simulation."""
        run, found = self.run, self.simulated
        figures = ("steps_per_s", "sent_bytes_per_s", "waiting_share")
        return {
            "scenario": self.scenario,
            "nodes": [node.name for node in run.nodes],
            "run": {name: getattr(run, name) for name in figures},
            "simulated": found and {name: getattr(found, name) for name in figures},
            "remarks": list(self.remarks()),
        }

    def remarks(self) -> tuple[str, ...]:
        """Say what is not as it might be expected, in words."""
        run, fit_ = self.run, self.fit
        found = list(run.remarks)
        if fit_.model_mb is None:
            found.append("nothing was merged: the size of the model is not known")
        if fit_.links is None:
            found.append(
                "nothing was streamed, as between nodes of one host that map each other's memory: "
                "links have their defaults; `transport: tcp` would stream"
            )
        elif run.hosts == 1:
            found.append(
                "all nodes were on one host, whose cores they share: in a run with less to do, "
                "each figure here may be lower"
            )
        if run.settings.get("links"):
            found.append("`links` are left out: they have names of nodes")
        if run.settings.get("topology") == FILE:
            found.append("`topology: file` is left out: its edges have names of nodes")
        if untold := untold_options(run):
            named = ", ".join(untold)
            found.append(f"options of {named} are left out: run logs tell none of plugins")
        if self.simulated is None:
            found.append(f"more than {MOST_NODES} nodes: links were not refined by simulation")
        return tuple(found)


def calibrate(run: Run, progress: Callable[[int], Any] = lambda _: None) -> Calibration:
    """Fit a scenario to a real run.

    Args:
        run: what `read_run` has returned.
        progress: is told how many simulations there were.

    Raises:
        UserError: the logs do not tell enough; see `observe`.
    """
    observed = observe(run)
    found = fit(observed)
    if len(observed.nodes) > MOST_NODES:
        return Calibration(observed, found, None)
    return Calibration(observed, *refine(observed, found, progress))
