"""From a run directory to what was observed, fitted, and simulated by it, as YAML.

The links are changed until simulated nodes measure on them what the real ones did. Streams that
share a link take longer, and how many share it depends on the whole run. So the run is simulated,
with the very classes that have measured the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dpwa.config.schema import yaml_comment, yaml_flow
from dpwa.observe.figures import INDEX, figures_of
from dpwa.observe.rates import ACTIVITIES
from dpwa.observe.run_data import Run
from dpwa.sim.calibration.fit import (
    COUNTED_BY,
    FILE,
    Fit,
    FittedLinks,
    Settings,
    fit,
    mean_s,
    scenario_of,
    untold_options,
)
from dpwa.sim.calibration.observed import ObservedRun, observe, usual_step_s
from dpwa.sim.load import load_scenario
from dpwa.sim.summary import figures_of as figures_of_outcome
from dpwa.types import JsonObject

MOST_TRIES = 8
CLOSE = 0.03  # relative
STEPS = 3000  # of all nodes, that are simulated to compare by: with fewer, chance decides
MOST_NODES = 32  # more take minutes
LARGEST_CHANGE = 4.0  # in one try
MOST_MBPS = 1e5
PATIENCE = 1.5  # a fetch that takes longer is not waited for by all trainers: so more is changed
TELLING_WAITS = 0.02  # share of the time


@dataclass(frozen=True)
class Simulated:
    """What a simulation of the run has come to, in the figures that a real one has."""

    answer_s: float  # mean, from a request to its answer
    stream_s: float  # mean, of a stream
    steps_per_s: float  # of all nodes together
    sent_bytes_per_s: float  # by a node in the mean, with headers
    wait_s: float  # of the trainer for each stream, in the mean
    waiting_share: float  # of the time of all nodes


def simulated(run: ObservedRun, fit: Fit) -> Simulated:
    from dpwa.sim.nodes.engine import NodesRun

    settings = scenario_of(run, fit)
    settings["seconds"] = STEPS / run.steps_per_s
    settings.pop("churn", None)  # late starts would take most of so short a run
    spec = load_scenario(settings)
    engine = NodesRun(spec, lambda _: True)
    totals: dict[str, float] = {}

    def add_up() -> None:
        reports = [n.connection.node.condition() for n in engine.nodes if n.connection is not None]
        for values in map(figures_of, reports):
            for name in (*COUNTED_BY, *COUNTED_BY.values(), *(f"{a}_s" for a in ACTIVITIES)):
                totals[name] = totals.get(name, 0.0) + values[INDEX[name]]

    engine.network.call_later(settings["seconds"] * (1.0 - 1e-9), add_up)
    outcome = engine.run()
    figures = figures_of_outcome(spec, outcome)
    fetches, streams = (max(1.0, totals.get(name, 0.0)) for name in ("fetches", "streams"))
    return Simulated(
        answer_s=totals.get("answer_s", 0.0) / fetches,
        stream_s=totals.get("stream_s", 0.0) / streams,
        steps_per_s=figures.steps_per_s,
        sent_bytes_per_s=figures.bytes_per_node / figures.seconds,
        wait_s=totals.get("wait_s", 0.0) / streams,
        waiting_share=figures.waiting_share,
    )


def refine(
    run: ObservedRun, fit: Fit, progress: Callable[[int], Any] = lambda _: None
) -> tuple[Fit, Simulated]:
    """Return a fit with better links, and what comes of it in the simulation.

    `progress` is told how many simulations there were, as each ends.
    """
    tried: list[tuple[float, Fit, Simulated]] = []
    next_fit: Fit | None = fit
    while next_fit is not None and len(tried) < MOST_TRIES:
        progress(len(tried))
        found = simulated(run, next_fit)
        ratio, missing_s = _difference(run, found)
        error = max(abs(ratio - 1.0), abs(missing_s) / _round_s(run))
        tried.append((error, next_fit, found))
        is_enough = error < CLOSE or found.stream_s == 0.0
        next_fit = None if is_enough else _changed(fit, next_fit, ratio, missing_s)
    _, fit, found = min(tried, key=lambda each: each[0])
    return fit, found


def _changed(first: Fit, fit: Fit, ratio: float, missing_s: float) -> Fit | None:
    """Return what to try next; `None` if there are no links."""
    if fit.links is None or first.links is None:
        return None
    ratio = min(max(ratio, 1.0 / LARGEST_CHANGE), LARGEST_CHANGE)
    latency_ms = fit.links.latency_ms + PATIENCE * 1000.0 * missing_s / 2.0
    latency_ms = max(first.links.latency_ms, latency_ms)  # answers do not come before that
    return replace(fit, links=FittedLinks(latency_ms, min(MOST_MBPS, fit.links.mbps * ratio)))


def _round_s(run: ObservedRun) -> float:
    return usual_step_s(run) + run.total("wait_s") / run.total("steps")


def _difference(run: ObservedRun, found: Simulated) -> tuple[float, float]:
    """Return how many times as long simulated streams took, and what real fetches took besides.

    The trainer waits also for threads to hand over, which shows in nothing but its waits. Where it
    hardly waits, they tell nothing, and answers have to do.
    """
    stream_s, answer_s = mean_s(run, "stream_s"), mean_s(run, "answer_s")
    if not stream_s:
        return 1.0, 0.0
    ratio = found.stream_s / stream_s
    if run.waiting_share < TELLING_WAITS:
        return ratio, 0.0 if answer_s is None else answer_s - found.answer_s
    return ratio, run.total("wait_s") / run.total("streams") - found.wait_s


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
    parts = [HEAD.format(folder=folder), *map(yaml_comment, calibration.remarks()), "\n"]
    parts += _own_keys(calibration, scenario)
    parts += ["\n", TASK]
    rest = {key: value for key, value in scenario.items() if key not in (*_ABOUT, "membership")}
    if rest:
        parts += ["\n", _SETTINGS, *(f"{key}: {yaml_flow(value)}\n" for key, value in rest.items())]
    return "".join(parts)


def _own_keys(calibration: Calibration, scenario: dict[str, Any]) -> Iterator[str]:
    nodes = [node.name for node in calibration.run.nodes]
    more = ", ..." if len(nodes) > MOST_NAMES else ""
    for key, about in _ABOUT.items():
        if key in scenario:
            yield yaml_comment(about.format(names=", ".join(nodes[:MOST_NAMES]) + more))
            yield f"{key}: {yaml_flow(scenario[key])}\n"
    if "membership" in scenario:
        yield f"membership: {yaml_flow(scenario['membership'])}\n"
