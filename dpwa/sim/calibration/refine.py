"""The links are changed until simulated nodes measure on them what the real ones did.

Streams that share a link take longer, and how many share it depends on the whole run. So the run is
simulated, with the very classes that have measured the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dpwa.observe.figures import INDEX, figures_of
from dpwa.observe.rates import ACTIVITIES
from dpwa.sim.calibration.fit import COUNTED_BY, Fit, FittedLinks, mean_s, scenario_of
from dpwa.sim.calibration.observed import ObservedRun, usual_step_s
from dpwa.sim.load import load_scenario
from dpwa.sim.summary import figures_of as figures_of_outcome

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
