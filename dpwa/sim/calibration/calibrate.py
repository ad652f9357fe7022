"""From a run directory to what was observed, fitted, and simulated by it, as YAML."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from dpwa.observe.run_data import Run
from dpwa.sim.calibration.fit import FILE, Fit, Settings, fit, scenario_of, untold_options
from dpwa.sim.calibration.observed import ObservedRun, observe
from dpwa.sim.calibration.refine import MOST_NODES, Simulated, refine
from dpwa.types import JsonObject

UNLIKE = 0.15  # as close as predictions of other settings were found to be
LEAST_WAITING = 0.05  # of the time; a share of less, and a half or twice of it, are alike


@dataclass(frozen=True)
class Calibration:
    """A scenario that is fitted to a real run."""

    run: ObservedRun
    fit: Fit
    simulated: Simulated | None  # what comes of it; `None`: there are too many nodes to try

    @property
    def scenario(self) -> Settings:
        """As plain values, which `load_scenario` takes."""
        return scenario_of(self.run, self.fit)

    def to_json(self) -> JsonObject:
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
        elif unlike := self._unlike(self.simulated):
            if fit_.links is None:
                why = (
                    "nodes of the run map each other's memory, and simulated ones, each on a host "
                    "of its own, stream over links as by default"
                )
            elif run.hosts == 1:
                why = "nodes of one host take cores from each other, and simulated ones do not"
            else:
                why = (
                    "links and machines whose speed changes are simulated by their mean; a longer "
                    "run may tell more"
                )
            apart = f"more than {UNLIKE:.0%} apart in the run and simulated"
            found.append(f"{' and '.join(unlike)}: {apart}, as {why}")
        return tuple(found)

    def _unlike(self, simulated: Simulated) -> list[str]:
        run = self.run
        pairs = {
            "steps per second": (run.steps_per_s, simulated.steps_per_s),
            "sent by a node": (run.sent_bytes_per_s, simulated.sent_bytes_per_s),
            "waiting": (LEAST_WAITING + run.waiting_share, LEAST_WAITING + simulated.waiting_share),
        }
        return [name for name, pair in pairs.items() if min(pair) < (1.0 - UNLIKE) * max(pair)]


def calibrate(run: Run, progress: Callable[[int], Any] = lambda _: None) -> Calibration:
    """Fit a scenario to a real run; `progress` is told how many simulations there were."""
    observed = observe(run)
    found = fit(observed)
    if len(observed.nodes) > MOST_NODES:
        return Calibration(observed, found, None)
    return Calibration(observed, *refine(observed, found, progress))


MOST_NAMES = 64

HEAD = """\
# A scenario for `dpwa sim`, fitted to a real run by `dpwa sim calibrate {folder}`.
# docs/simulator.md says how, and what it is good for.
"""
TASK = """\
# What is trained is not your model, but a task of the simulator: consensus, quadratic,
# factorisation or digits. With a target, such as {variance_ratio: 0.001} or {loss: 0.3},
# the simulation ends there, and tells when that was.
task: consensus
"""
_ABOUT = {
    "nodes": "as many as there were: {names}",
    "seconds": "as long as the run",
    "detail": "whole nodes, with every message",
    "model_mb": "megabytes of a snapshot",
    "compute": "steps in milliseconds of each node, in that order; jitter: sigma between steps",
    "costs": "what publishing and merging took, in milliseconds for each megabyte",
    "network": "between all nodes; waits that streams do not explain count as latency",
    "churn": "seconds from the first step of the first node to that of the last",
}
_SETTINGS = "# Settings of the run that are not the defaults.\n"


def yaml_text(calibration: Calibration, folder: str) -> str:
    """Return the file; `folder` is that of the run logs."""
    scenario = calibration.scenario
    parts = [HEAD.format(folder=folder), *map(_comment, calibration.remarks()), "\n"]
    parts += _own_keys(calibration, scenario)
    parts += ["\n", TASK]
    rest = {key: value for key, value in scenario.items() if key not in (*_ABOUT, "membership")}
    if rest:
        parts += ["\n", _SETTINGS, *(_line(key, value) for key, value in rest.items())]
    return "".join(parts)


def _own_keys(calibration: Calibration, scenario: dict[str, Any]) -> Iterator[str]:
    nodes = [node.name for node in calibration.run.nodes]
    more = ", ..." if len(nodes) > MOST_NAMES else ""
    for key, about in _ABOUT.items():
        if key in scenario:
            yield _comment(about.format(names=", ".join(nodes[:MOST_NAMES]) + more))
            yield _line(key, scenario[key])
    if "membership" in scenario:
        yield _line("membership", scenario["membership"])


def _comment(text: str) -> str:
    return textwrap.fill(text, 92, initial_indent="# ", subsequent_indent="# ") + "\n"


def _line(key: str, value: Any) -> str:
    text: str = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=1000, allow_unicode=True
    )
    flow = text.removesuffix("...\n").strip()
    return f"{key}: {flow}\n"
