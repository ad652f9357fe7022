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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from dpwa.config import Config
from dpwa.config.schema import OF_REAL_RUNS, yaml_comment, yaml_flow
from dpwa.errors import UserError
from dpwa.observe.figures import COUNTERS, INDEX, NAMES, figures_of
from dpwa.observe.rates import ACTIVITIES, since_restart
from dpwa.observe.run_log_contents import NodeLog, Run
from dpwa.report.wording import duration, number, plural, share, size
from dpwa.sim.load import load_scenario

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
    ended: float  # end of its last step
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
    """The measurements of all nodes of a run. Nodes of a group follow each other."""

    nodes: tuple[ObservedNode, ...]
    settings: Mapping[str, Any]  # as `dpwa.observe.run_log.settings_told` has them
    is_open: bool  # nodes come and go
    hosts: int  # number of hosts
    remarks: tuple[str, ...] = ()  # notes about unexpected properties of the run

    def total(self, figure: str) -> float:
        return sum(node.grown[figure] for node in self.nodes)

    def mean(self, figure: str, count: str) -> float:
        """Return the total of `figure` divided by the total of `count`, or 0 without any."""
        total = self.total(count)
        return self.total(figure) / total if total else 0.0

    @property
    def seconds(self) -> float:
        """Seconds from the first step of any node to the last step."""
        return max(node.ended for node in self.nodes) - min(node.began for node in self.nodes)

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
        """Mean bytes per second that each node sends."""
        return fmean(node.grown["sent_bytes"] / node.seconds for node in self.nodes)

    @property
    def waiting_share(self) -> float:
        """Share of the total time of all nodes in which trainers wait for peers."""
        return self.total("wait_s") / sum(self.total(f"{name}_s") for name in ACTIVITIES)

    @property
    def model_mb(self) -> float:
        """Megabytes of a snapshot, or 0 if nothing was merged."""
        shards = math.ceil(1.0 / float(self.settings.get("fraction", 1.0)))  # a merge covers one
        return shards * self.mean("merged_bytes", "merges") / 1e6


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
    return ObservedRun(
        nodes=tuple(nodes),
        settings=settings,
        is_open=logs[0].told.get("membership") == "open",
        hosts=len({process.host for log in logs for process in log.processes}),
        remarks=tuple(_remarks(logs)),
    )


def _common_settings(run: Run, logs: Sequence[NodeLog]) -> Mapping[str, Any]:
    first: Any = logs[0].told.get("settings")
    for log in logs:
        settings, streams = log.told.get("settings"), log.figure("streams")
        if not isinstance(settings, dict) or (len(streams) and np.isnan(streams).all()):
            raise UserError(
                f"{run.folder}: expected logs that have the settings of the run (the log of "
                f"{log.name} is from an older dpwa) [DPWA-E298]"
            )
        differ = [k for k in settings if k != "log_level" and settings[k] != first.get(k)]
        if differ:
            raise UserError(
                f"{run.folder}: expected the logs of one run ({logs[0].name} and {log.name} differ "
                f"in {', '.join(differ[:MAX_NAMES])}) [DPWA-E299]"
            )
    return dict(first)


def _observed(run: Run, logs: Sequence[NodeLog]) -> list[ObservedNode]:
    """Return each node's measurements, if possible only those after all nodes had begun.

    Before that moment, fewer nodes shared the links.
    """
    nodes = _observed_since(0.0, logs)
    if len(nodes) < len(logs):
        measured = {node.name for node in nodes}
        too_short = [log.name for log in logs if log.name not in measured]
        named = ", ".join(too_short[:MAX_NAMES]) + (", ..." if too_short[MAX_NAMES:] else "")
        raise UserError(
            f"{run.folder}: expected at least {MIN_STEPS} steps of each node, not counting its "
            f"first and last second (too few steps of {named}) [DPWA-E300]"
        )
    together = _observed_since(max(node.began for node in nodes), logs)
    return together if len(together) == len(nodes) else nodes


def _observed_since(since: float, logs: Sequence[NodeLog]) -> list[ObservedNode]:
    """Return the measurements after the time `since`, without nodes that took too few steps."""
    found = []
    for log in logs:
        rows = since_restart(log.rows)
        steps = np.nan_to_num(rows[:, 1 + INDEX["steps"]])
        begun, rising = np.flatnonzero(steps > 0), 1 + np.flatnonzero(np.diff(steps) > 0)
        if len(begun) < 2 or len(rising) < 2:
            continue
        # The sample that counts the last step may be later than the end of this step.
        earliest = max(begun[1], round(WARMING_UP * len(rows)), np.searchsorted(rows[:, 0], since))
        first, last = rows[min(earliest, len(rows) - 1)], rows[rising[-2]]
        grown = {name: float(last[1 + INDEX[name]] - first[1 + INDEX[name]]) for name in COUNTERS}
        seconds, ended = float(last[0] - first[0]), float(rows[rising[-1], 0])
        if seconds > 0.0 and grown["steps"] >= MIN_STEPS:
            began = first[0] - sum(float(first[1 + INDEX[f"{name}_s"]]) for name in ACTIVITIES)
            group = str(log.told.get("group") or "")
            found.append(ObservedNode(log.name, group, began, ended, seconds, grown))
    return found


def _remarks(logs: Sequence[NodeLog]) -> Iterator[str]:
    listed = logs[0].told.get("listed")
    if isinstance(listed, int) and logs[0].told.get("membership") != "open" and listed > len(logs):
        yield f"{listed} nodes are listed, but only {len(logs)} have logs here"
    again = [log.name for log in logs if len(log.processes) > 1]
    if again:
        yield f"{', '.join(again)} restarted. Only the newest process of each node counts"
    if sum(log.event_counts.get("diverged", 0) for log in logs):
        yield "some nodes have diverged"


FAR_ABOVE = 10.0  # initial link rate, as a multiple of `max_upload_mbps`


class Link(NamedTuple):
    """The fitted link of every node."""

    latency_ms: float  # from one node to another, in one direction
    mbps: float | None  # `None` if nothing was streamed


def measured_link(run: ObservedRun) -> Link:
    """Estimate the links from the figures of a real run, without a simulation."""
    mbps = 8.0 * run.mean("received_bytes", "stream_s") / 1e6 if run.total("streams") else 0.0
    if mbps and run.settings.get("max_upload_mbps") is not None:
        mbps = max(mbps, FAR_ABOVE * float(run.settings["max_upload_mbps"]))
    return Link(1000.0 * run.mean("answer_s", "fetches") / 2.0, mbps or None)


MIN_SPREAD_S = 0.5  # smaller differences of start times are ignored
DIGITS = 4  # of the fitted values
FILE = "file"  # the topology with node names, and the key of its options
# These settings belong to the machine, or to the simulation.
_NOT_OF_SCENARIOS = {
    *(*OF_REAL_RUNS, "nodes", "seed", "transport", "log_level", "options", "links", FILE),
}

Settings = dict[str, Any]


def scenario_of(run: ObservedRun, link: Link) -> Settings:
    """Return the scenario of a run with fitted links as plain values, for `load_scenario`."""
    variance = sum(n.grown["steps"] * n.jitter_s2 / n.step_s**2 for n in run.nodes)
    jitter = math.sqrt(math.log1p(variance / run.total("steps")))
    median_of_mean = math.exp(-(jitter**2) / 2.0)
    found: Settings = {"nodes": len(run.nodes), "seconds": _rounded(run.seconds), "detail": "nodes"}
    if run.model_mb:
        found["model_mb"] = _rounded(run.model_mb)
    found["compute"] = {
        "steps_ms": [_rounded(1000.0 * node.step_s * median_of_mean) for node in run.nodes],
        "jitter": _rounded(jitter, 2),
    }
    found["costs"] = {
        f"{work}_ms_per_mb": _rounded(
            1000.0 * run.mean(f"{work}_s", count) / run.model_mb if run.model_mb else 0.0, 3
        )
        for work, count in (("publish", "steps"), ("merge", "merges"))
    }
    network = _network(run, link)
    if network:
        found["network"] = network
    if run.start_spread_s >= MIN_SPREAD_S:
        found["churn"] = {"start_spread_s": _rounded(run.start_spread_s, 2)}
    if run.is_open:
        found["membership"] = "open"
    return found | _changed_settings(run)


def _network(run: ObservedRun, link: Link) -> Settings:
    found: Settings = {}
    latency_ms = _rounded(link.latency_ms, 3)
    if link.mbps is not None:
        mbps = _rounded(link.mbps)
        found = {"latency_ms": latency_ms, "upload_mbps": mbps, "download_mbps": mbps}
    groups = Counter(node.group for node in run.nodes)
    if len(groups) > 1 and all(groups):
        found["sites"] = [{"name": name, "share": float(n)} for name, n in groups.items()]
        if link.mbps is not None:
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
    config = load_scenario({"nodes": len(run.nodes), "rounds": 1, **told}).config
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


def simulated(run: ObservedRun, link: Link) -> ObservedRun:
    """Simulate `STEPS` steps of a run with these links, and return the simulated measurements."""
    from dpwa.sim.nodes.engine import NodesRun

    seconds = STEPS / run.steps_per_s
    settings = scenario_of(run, link) | {"seconds": seconds}
    settings.pop("churn", None)  # late starts would take most of this short simulation
    engine = NodesRun(load_scenario(settings), lambda _: True)
    counted: dict[str, dict[str, float]] = {}

    def count() -> None:
        for node in engine.nodes:
            if node.connection is not None:
                real = node.connection.node
                figures = dict(zip(NAMES, figures_of(real.condition()), strict=True))
                figures["sent_bytes"] *= real.runtime.bytes_scale
                counted[node.name] = figures

    engine.network.call_later(seconds * (1.0 - 1e-9), count)
    nodes = []
    for node in engine.simulate().nodes:
        if node.name in counted:
            # A node counts a step when the step begins.
            grown = counted[node.name] | {"steps": node.updates}
            nodes.append(ObservedNode(node.name, "", 0.0, seconds, seconds, grown))
    return replace(run, nodes=tuple(nodes))


def refine(run: ObservedRun) -> tuple[Link, ObservedRun]:
    """Fit latency and bandwidth by repeated simulation. Return the best fit and its simulation."""
    round_s = (run.total("train_s") + run.total("wait_s")) / run.total("steps")
    tried: list[tuple[float, Link, ObservedRun]] = []
    link = first = measured_link(run)
    while len(tried) < MAX_TRIES:
        found = simulated(run, link)
        ratio, missing_s = _difference(run, found)
        error = max(abs(ratio - 1.0), abs(missing_s) / round_s)
        tried.append((error, link, found))
        if error < CLOSE or not found.total("stream_s") or link.mbps is None:
            break
        ratio = min(max(ratio, 1.0 / LARGEST_CHANGE), LARGEST_CHANGE)
        latency_ms = link.latency_ms + PATIENCE * 1000.0 * missing_s / 2.0
        link = Link(
            latency_ms=max(first.latency_ms, latency_ms),  # no answer is faster
            mbps=min(MAX_MBPS, link.mbps * ratio),
        )
    _, link, found = min(tried, key=lambda each: each[0])
    return link, found


def _difference(run: ObservedRun, found: ObservedRun) -> tuple[float, float]:
    """Return simulated / real stream time, and real minus simulated seconds to wait for a fetch.

    The trainer also waits for other threads, which only its waiting time shows. If it hardly waits,
    the times of answers are compared instead.
    """
    streams = run.total("streams")
    if not streams:
        return 1.0, 0.0
    ratio = found.mean("stream_s", "streams") / run.mean("stream_s", "streams")
    if run.waiting_share >= TELLING_WAITS:
        return ratio, run.mean("wait_s", "streams") - found.mean("wait_s", "streams")
    answer_s = run.mean("answer_s", "fetches")
    return ratio, answer_s - found.mean("answer_s", "fetches") if answer_s else 0.0


@dataclass(frozen=True)
class Calibration:
    """A scenario that was fitted to a real run."""

    run: ObservedRun
    link: Link
    simulated: ObservedRun | None  # result of the scenario; `None` if there are too many nodes

    @property
    def scenario(self) -> Settings:
        """The scenario as plain values, for `load_scenario`."""
        return scenario_of(self.run, self.link)

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
        if not run.model_mb:
            yield "the size of the model is unknown, because nothing was merged"
        if self.link.mbps is None:
            yield "links have default values, because nothing was fetched with `transport: tcp`"
        yield from run.remarks


def calibrate(run: Run) -> Calibration:
    """Fit a scenario to a real run."""
    observed = observe(run)
    if len(observed.nodes) > MAX_NODES:
        return Calibration(observed, measured_link(observed), None)
    return Calibration(observed, *refine(observed))


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
