"""Derive a YAML scenario, with compute times and links, from the run logs of a real run.

    step of node i    mean seconds of training in a step, without gossip: t_i. The simulator draws
                      steps from a log-normal distribution, whose median is t_i exp(-sigma^2 / 2)
    jitter            sigma^2 = ln(1 + v), v the variance of steps divided by their squared mean
    publish, merge    seconds of publishing or merging, divided by the megabytes
    latency           half of the seconds from a request to its answer
    bandwidth         payload divided by the seconds of its stream

Streams that share a link take longer, and the number of these streams depends on the whole run. So
latency and bandwidth are only initial values of `refine`, which simulates the run. It changes the
links until simulated nodes measure the same values as the real nodes. If nodes have
`max_upload_mbps`, it begins with links that are much faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from dpwa.config import Config, load_config
from dpwa.config.schema import OF_REAL_RUNS, yaml_comment, yaml_flow
from dpwa.errors import UserError
from dpwa.observe.figures import COUNTERS, INDEX, figures_of
from dpwa.observe.history import Floats
from dpwa.observe.rates import ACTIVITIES, since_restart
from dpwa.observe.run_log_contents import NodeLog, Run
from dpwa.report.wording import duration, number, plural, share, size
from dpwa.sim.load import load_scenario
from dpwa.sim.scenario import node_name
from dpwa.sim.summary import figures_of as figures_of_outcome

MIN_NODES = 2
MIN_STEPS = 5  # of each node, to measure its step time
WARMING_UP = 0.1  # share of the first samples that are left out, at least one
MAX_NAMES = 3  # names of settings in an error


@dataclass(frozen=True)
class ObservedNode:
    """Measurements of one node from the first to the last training step."""

    name: str
    group: str  # "" if the node has no group
    began: float  # start of its first step, in seconds since the epoch
    seconds: float  # from the first of these samples to the last
    grown: Mapping[str, float]  # increase of each counter of `FIGURES` meanwhile

    @property
    def step_s(self) -> float:
        """Mean seconds of a training step."""
        return self.grown["train_s"] / self.grown["steps"]

    @property
    def jitter_s2(self) -> float:
        """Variance of step times in s^2, as half the mean squared difference of successive steps.

        J. von Neumann, Distribution of the Ratio of the Mean Square Successive Difference to the
        Variance (1941). Steps that steadily become slower do not count as jitter.
        """
        return self.grown["step_changes_s2"] / self.grown["steps"] / 2.0


@dataclass(frozen=True)
class ObservedRun:
    """The measurements of all nodes of a real run. Nodes of a group follow each other."""

    nodes: tuple[ObservedNode, ...]
    settings: Mapping[str, Any]  # as `dpwa.observe.recorder.settings_told` has them
    is_open: bool  # nodes come and go
    seconds: float  # from the first step of any node to the last
    hosts: int  # number of hosts
    remarks: tuple[str, ...] = ()  # notes about unexpected properties of the run

    def total(self, figure: str) -> float:
        return sum(node.grown[figure] for node in self.nodes)

    @property
    def start_spread_s(self) -> float:
        """Seconds from the first step of the first node to the first step of the last node."""
        began = [node.began for node in self.nodes]
        return max(began) - min(began)

    @property
    def steps_per_s(self) -> float:
        """Training steps per second of all nodes together."""
        return sum(node.grown["steps"] / node.seconds for node in self.nodes)

    @property
    def sent_bytes_per_s(self) -> float:
        """Mean payload bytes per second that each node sends."""
        rates = [node.grown["sent_bytes"] / node.seconds for node in self.nodes]
        return sum(rates) / len(rates)

    @property
    def waiting_share(self) -> float:
        """Share of the total time of all nodes in which trainers wait for peers."""
        return self.total("wait_s") / sum(self.total(f"{name}_s") for name in ACTIVITIES)


def observe(run: Run) -> ObservedRun:
    """Return the observations of the nodes of a run, between their first and last steps.

    Raises UserError if there is only one node, an older dpwa has written the logs, the logs belong
    to different runs, or the run was too short.
    """
    logs = list(run.nodes.values())
    if len(logs) < MIN_NODES:
        found = ", ".join(run.nodes)
        raise UserError(
            f"{run.folder}: expected the run logs of {MIN_NODES} nodes or more (got only {found})"
            " [DPWA-E297]"
        )
    settings = _common_settings(run, logs)
    nodes = _observed(run, logs)
    groups = list(dict.fromkeys(node.group for node in nodes))
    nodes.sort(key=lambda node: groups.index(node.group))
    ends = [_last_step_at(since_restart(log.rows)) for log in logs]
    return ObservedRun(
        nodes=tuple(nodes),
        settings=settings,
        is_open=logs[0].told.get("membership") == "open",
        seconds=max(ends) - min(node.began for node in nodes),
        hosts=len({process.host for log in logs for process in log.processes}),
        remarks=tuple(_remarks(logs)),
    )


def _common_settings(run: Run, logs: Sequence[NodeLog]) -> Mapping[str, Any]:
    first = logs[0]
    for log in logs:
        settings, wanted = log.told.get("settings"), first.told.get("settings")
        known = [name for name in COUNTERS if np.isfinite(log.figure(name)).any()]
        if not isinstance(settings, dict) or (known and "streams" not in known):
            raise UserError(
                f"{run.folder}: expected logs that have the settings of the run (the log of "
                f"{log.name} is from an older dpwa) [DPWA-E298]"
            )
        wanted = wanted or {}
        differ = [k for k in settings if k != "log_level" and settings[k] != wanted.get(k)]
        if differ:
            raise UserError(
                f"{run.folder}: expected the logs of one run ({first.name} and {log.name} differ "
                f"in {', '.join(differ[:MAX_NAMES])}) [DPWA-E299]"
            )
    found: Mapping[str, Any] = first.told["settings"]
    return found


def _observed(run: Run, logs: Sequence[NodeLog]) -> list[ObservedNode]:
    """Return each node's measurements, if possible only those after all nodes had begun.

    Before that moment, fewer nodes shared the links.
    """
    found = {log.name: _observed_since(log, 0.0) for log in logs}
    too_short = [name for name, node in found.items() if node is None]
    if too_short:
        named = ", ".join(too_short[:MAX_NAMES]) + (", ..." if too_short[MAX_NAMES:] else "")
        raise UserError(
            f"{run.folder}: expected at least {MIN_STEPS} steps of each node, not counting its "
            f"first and last second (too few steps of {named}) [DPWA-E300]"
        )
    nodes = [node for node in found.values() if node is not None]
    all_began = max(node.began for node in nodes)
    together = [node for log in logs if (node := _observed_since(log, all_began)) is not None]
    return together if len(together) == len(nodes) else nodes


def _observed_since(log: NodeLog, since: float) -> ObservedNode | None:
    """Return a node's measurements after the time `since`, or `None` if it took too few steps."""
    rows = since_restart(log.rows)
    steps = _steps_of(rows)
    begun, rising = np.flatnonzero(steps > 0), _rising(steps)
    if len(begun) < 2 or len(rising) < 2:
        return None
    # The sample that counts the last step may be later than the end of this step.
    earliest = max(begun[1], round(WARMING_UP * len(rows)), np.searchsorted(rows[:, 0], since))
    first, last = rows[min(earliest, len(rows) - 1)], rows[rising[-2]]
    grown = {name: float(last[1 + INDEX[name]] - first[1 + INDEX[name]]) for name in COUNTERS}
    if last[0] <= first[0] or grown["steps"] < MIN_STEPS:
        return None
    spent_s = sum(float(first[1 + INDEX[f"{name}_s"]]) for name in ACTIVITIES)
    group = str(log.told.get("group") or "")
    return ObservedNode(log.name, group, first[0] - spent_s, float(last[0] - first[0]), grown)


def _steps_of(rows: Floats) -> Floats:
    return np.nan_to_num(rows[:, 1 + INDEX["steps"]])


def _rising(steps: Floats) -> Any:
    return 1 + np.flatnonzero(steps[1:] > steps[:-1])


def _last_step_at(rows: Floats) -> float:
    return float(rows[_rising(_steps_of(rows))[-1], 0])


def _remarks(logs: Sequence[NodeLog]) -> Iterator[str]:
    listed = logs[0].told.get("listed")
    if isinstance(listed, int) and logs[0].told.get("membership") != "open" and listed > len(logs):
        yield f"{listed} nodes are listed, but only {len(logs)} have logs here"
    again = [log.name for log in logs if len(log.processes) > 1]
    if again:
        yield f"{', '.join(again)} restarted. Only the newest process of each node counts"
    if sum(log.event_counts.get("diverged", 0) for log in logs):
        yield "some nodes have diverged"


BITS_PER_MB = 8e6 / 1e6  # megabits in a megabyte
FAR_ABOVE = 10.0  # initial link rate, as a multiple of `max_upload_mbps`


@dataclass(frozen=True)
class Fit:
    """The parameters of a scenario that are estimated from a real run."""

    steps_ms: tuple[float, ...]  # of each node, in the order of the observed nodes
    jitter: float  # sigma of the steps of one node
    publish_ms_per_mb: float  # time of a node outside its steps
    merge_ms_per_mb: float
    model_mb: float | None  # megabytes of a snapshot; `None` if nothing was merged
    latency_ms: float = 0.0  # from one node to another, in one direction
    mbps: float | None = None  # rate of a node's link; `None` if nothing was streamed


def fit(run: ObservedRun) -> Fit:
    """Estimate the scenario parameters from the figures of a real run, without a simulation."""
    variance = sum(n.grown["steps"] * n.jitter_s2 / n.step_s**2 for n in run.nodes)
    jitter = math.sqrt(math.log1p(variance / run.total("steps")))
    median_of_mean = math.exp(-(jitter**2) / 2.0)
    megabytes, merges = 0.0, run.total("merges")
    if merges:  # each merge covers a `fraction` of a snapshot
        shards = math.ceil(1.0 / float(run.settings.get("fraction", 1.0)))
        megabytes = shards * run.total("merged_bytes") / merges / 1e6
    published_mb, merged_mb = run.total("steps") * megabytes, merges * megabytes
    return Fit(
        steps_ms=tuple(1000.0 * node.step_s * median_of_mean for node in run.nodes),
        jitter=jitter,
        publish_ms_per_mb=1000.0 * run.total("publish_s") / published_mb if published_mb else 0.0,
        merge_ms_per_mb=1000.0 * run.total("merge_s") / merged_mb if merged_mb else 0.0,
        model_mb=megabytes or None,
        latency_ms=1000.0 * _answer_s(run.total("answer_s"), run.total("fetches")) / 2.0,
        mbps=_mbps(run),
    )


def _answer_s(seconds: float, fetches: float) -> float:
    """Return the mean seconds between the request and answer of a fetch, or 0 without fetches."""
    return seconds / fetches if fetches else 0.0


def _mbps(run: ObservedRun) -> float | None:
    if not run.total("streams") or not run.total("stream_s") or not run.total("received_bytes"):
        return None
    mbps = BITS_PER_MB * run.total("received_bytes") / 1e6 / run.total("stream_s")
    limit = run.settings.get("max_upload_mbps")
    return mbps if limit is None else max(mbps, FAR_ABOVE * float(limit))


MIN_SPREAD_S = 0.5  # smaller differences of start times are ignored
DIGITS = 4  # of the fitted values
FILE = "file"  # the topology with node names, and the key of its options
# These settings belong to the machine, or to the simulation.
_NOT_OF_SCENARIOS = {
    *(*OF_REAL_RUNS, "nodes", "seed", "transport", "log_level", "options", "links", FILE),
}

Settings = dict[str, Any]


def scenario_of(run: ObservedRun, fit: Fit) -> Settings:
    """Return the scenario of a fitted run as plain Python values, for `load_scenario`."""
    found: Settings = {"nodes": len(run.nodes), "seconds": _rounded(run.seconds), "detail": "nodes"}
    if fit.model_mb is not None:
        found["model_mb"] = _rounded(fit.model_mb)
    found["compute"] = {
        "steps_ms": [_rounded(step_ms) for step_ms in fit.steps_ms],
        "jitter": _rounded(fit.jitter, 2),
    }
    found["costs"] = {
        "publish_ms_per_mb": _rounded(fit.publish_ms_per_mb, 3),
        "merge_ms_per_mb": _rounded(fit.merge_ms_per_mb, 3),
    }
    network = _network(run, fit)
    if network:
        found["network"] = network
    if run.start_spread_s >= MIN_SPREAD_S:
        found["churn"] = {"start_spread_s": _rounded(run.start_spread_s, 2)}
    if run.is_open:
        found["membership"] = "open"
    return found | _changed_settings(run)


def _network(run: ObservedRun, fit: Fit) -> Settings:
    found: Settings = {}
    latency_ms = _rounded(fit.latency_ms, 3)
    if fit.mbps is not None:
        mbps = _rounded(fit.mbps)
        found = {"latency_ms": latency_ms, "upload_mbps": mbps, "download_mbps": mbps}
    groups = [(name, len(list(nodes))) for name, nodes in groupby(n.group for n in run.nodes)]
    if len(groups) > 1 and all(name for name, _ in groups):
        found["sites"] = [{"name": name, "share": float(count)} for name, count in groups]
        if fit.mbps is not None:
            found["between_sites_latency_ms"] = latency_ms
    return found


def _changed_settings(run: ObservedRun) -> Settings:
    """Return the settings of a run that differ from the defaults, with options of methods.

    Raises ConfigError if this dpwa does not know a setting, such as an option of a plugin.
    """
    told = {
        key: value
        for key, value in run.settings.items()
        if key not in _NOT_OF_SCENARIOS and (key, value) != ("topology", FILE)
    }
    nodes = [
        {"name": node_name(index), "host": "10.0.0.1", "port": 7000 + index}
        for index in range(len(run.nodes))
    ]
    config = load_config({"nodes": nodes, **told})
    found = {
        name: told[name]
        for name, field in Config.model_fields.items()
        if name in told and getattr(config, name) != field.get_default(call_default_factory=True)
    }
    options = {n: config.options_of(n).model_dump(mode="json") for n in dict(config.options)}
    return found | options


def _rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")


MAX_TRIES = 8
CLOSE = 0.03  # relative error that ends the fit
STEPS = 3000  # simulated steps of all nodes; with fewer, chance decides
MAX_NODES = 32  # simulations of more nodes take minutes
LARGEST_CHANGE = 4.0  # of a rate in one iteration
MAX_MBPS = 1e5
PATIENCE = 1.5  # not all trainers wait for longer fetches, so change more
TELLING_WAITS = 0.02  # minimum share of waiting from which latency can be fitted
_COUNTED = ("answer_s", "fetches", "stream_s", "streams", "wait_s")


@dataclass(frozen=True)
class Simulated:
    """The figures of a simulated run, for comparison with the same figures of the real run."""

    answer_s: float  # mean, from a request to its answer
    stream_s: float  # mean, of a stream
    steps_per_s: float  # of all nodes together
    sent_bytes_per_s: float  # mean of all nodes, with headers
    wait_s: float  # mean wait of the trainer for a stream
    waiting_share: float  # share of the time of all nodes


def simulated(run: ObservedRun, fit: Fit) -> Simulated:
    """Simulate `STEPS` steps of the run with a fit, and return figures to compare with the run."""
    from dpwa.sim.nodes.engine import NodesRun

    settings = scenario_of(run, fit)
    settings["seconds"] = STEPS / run.steps_per_s
    settings.pop("churn", None)  # late starts would take most of this short simulation
    spec = load_scenario(settings)
    engine = NodesRun(spec, lambda _: True)
    totals = dict.fromkeys(_COUNTED, 0.0)

    def add_up() -> None:
        reports = [n.connection.node.condition() for n in engine.nodes if n.connection is not None]
        for values in map(figures_of, reports):
            for name in _COUNTED:
                totals[name] += values[INDEX[name]]

    engine.network.call_later(settings["seconds"] * (1.0 - 1e-9), add_up)
    figures = figures_of_outcome(spec, engine.simulate())
    streams = max(1.0, totals["streams"])
    return Simulated(
        answer_s=_answer_s(totals["answer_s"], totals["fetches"]),
        stream_s=totals["stream_s"] / streams,
        steps_per_s=figures.steps_per_s,
        sent_bytes_per_s=figures.bytes_per_node / figures.seconds,
        wait_s=totals["wait_s"] / streams,
        waiting_share=figures.waiting_share,
    )


def refine(run: ObservedRun, fit: Fit) -> tuple[Fit, Simulated]:
    """Fit latency and bandwidth by repeated simulation. Return the best fit and its simulation."""
    round_s = (run.total("train_s") + run.total("wait_s")) / run.total("steps")
    tried: list[tuple[float, Fit, Simulated]] = []
    next_fit = fit
    while len(tried) < MAX_TRIES:
        found = simulated(run, next_fit)
        ratio, missing_s = _difference(run, found)
        error = max(abs(ratio - 1.0), abs(missing_s) / round_s)
        tried.append((error, next_fit, found))
        if error < CLOSE or found.stream_s == 0.0 or next_fit.mbps is None:
            break
        ratio = min(max(ratio, 1.0 / LARGEST_CHANGE), LARGEST_CHANGE)
        latency_ms = next_fit.latency_ms + PATIENCE * 1000.0 * missing_s / 2.0
        next_fit = replace(
            fit,
            latency_ms=max(fit.latency_ms, latency_ms),  # no answer is faster
            mbps=min(MAX_MBPS, next_fit.mbps * ratio),
        )
    _, fit, found = min(tried, key=lambda each: each[0])
    return fit, found


def _difference(run: ObservedRun, found: Simulated) -> tuple[float, float]:
    """Return simulated / real stream time, and real minus simulated seconds to wait for a fetch.

    The trainer also waits for other threads, which only its waiting time shows. If it hardly waits,
    the times of answers are compared instead.
    """
    streams = run.total("streams")
    if not streams:
        return 1.0, 0.0
    ratio = found.stream_s * streams / run.total("stream_s")
    if run.waiting_share >= TELLING_WAITS:
        return ratio, run.total("wait_s") / streams - found.wait_s
    answer_s = _answer_s(run.total("answer_s"), run.total("fetches"))
    return ratio, answer_s - found.answer_s if answer_s else 0.0


@dataclass(frozen=True)
class Calibration:
    """A scenario that was fitted to a real run."""

    run: ObservedRun
    fit: Fit
    simulated: Simulated | None  # result of the scenario; `None` if there are too many nodes

    @property
    def scenario(self) -> Settings:
        """The scenario as plain values, for `load_scenario`."""
        return scenario_of(self.run, self.fit)

    def remarks(self) -> Iterator[str]:
        """Yield remarks for users about the run, the simulated figures and unmeasured values."""
        run, found = self.run, self.simulated
        yield f"{duration(run.seconds)} of {len(run.nodes)} nodes on {plural(run.hosts, 'host')}"
        if found is None:
            yield f"links were not fitted by simulation, because there are over {MAX_NODES} nodes"
        else:
            steps, again = number(run.steps_per_s), number(found.steps_per_s)
            yield f"steps per second: {steps} measured, {again} simulated"
            sent, again = size(run.sent_bytes_per_s), size(found.sent_bytes_per_s)
            yield f"sent by a node in a second: {sent} measured, {again} simulated"
            waiting = share(run.waiting_share)
            yield f"waiting: {waiting} of the time, {share(found.waiting_share)} simulated"
        if self.fit.model_mb is None:
            yield "the size of the model is unknown, because nothing was merged"
        if self.fit.mbps is None:
            yield "links have default values, because nothing was fetched with `transport: tcp`"
        yield from run.remarks


def calibrate(run: Run) -> Calibration:
    """Fit a scenario to a real run."""
    observed = observe(run)
    found = fit(observed)
    if len(observed.nodes) > MAX_NODES:
        return Calibration(observed, found, None)
    return Calibration(observed, *refine(observed, found))


HEAD = """\
# A scenario for `dpwa sim`, fitted to a real run by `dpwa sim calibrate {folder}`.
# docs/simulator.md explains scenarios.
"""
TASK = """
# The simulation does not train your model, but a task of the simulator: consensus, quadratic or
# digits. If you set a target, such as {variance_ratio: 0.001} or {loss: 0.3}, the simulation ends
# when the run reaches it, and reports the time.
task: consensus
"""


def yaml_text(calibration: Calibration, folder: str) -> str:
    """Return the text of the scenario file. `folder` has the run logs."""
    names = ", ".join(node.name for node in calibration.run.nodes)
    parts = [HEAD.format(folder=folder), *map(yaml_comment, calibration.remarks()), "\n"]
    parts.append(yaml_comment(f"steps of {names}, in this order"))
    parts += [f"{key}: {yaml_flow(value)}\n" for key, value in calibration.scenario.items()]
    return "".join([*parts, TASK])
