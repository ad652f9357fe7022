"""What the logs of a real run say of its nodes while they trained, without their first steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from dpwa.errors import UserError
from dpwa.observe.figures import COUNTERS, INDEX
from dpwa.observe.history import Floats
from dpwa.observe.rates import ACTIVITIES, since_restart
from dpwa.observe.run_data import NodeLog, Run

LEAST_NODES = 2
LEAST_STEPS = 5  # of each node, to tell what a step of it takes
WARMING_UP = 0.1  # share of the samples at the beginning that are left out; at least one is
MOST_TOLD = 3  # names in an error


@dataclass(frozen=True)
class ObservedNode:
    """One node, over the samples between its first steps and its last ones."""

    name: str
    group: str  # empty for none
    began: float  # when its first step began, in seconds since the epoch
    seconds: float  # from the first of these samples to the last
    grown: Mapping[str, float]  # by how much each counter of `FIGURES` has grown meanwhile

    @property
    def step_s(self) -> float:
        """Mean seconds of a training step."""
        return self.grown["train_s"] / self.grown["steps"]

    @property
    def jitter_s2(self) -> float:
        """Variance of its steps, in square seconds: half the mean square of their changes.

        J. von Neumann, Distribution of the Ratio of the Mean Square Successive Difference to the
        Variance (1941). Steps that become slower and slower do not count as jitter.
        """
        return self.grown["step_changes_s2"] / self.grown["steps"] / 2.0


@dataclass(frozen=True)
class ObservedRun:
    """All nodes of a run, in the order in which they are simulated: those of a group in a row."""

    nodes: tuple[ObservedNode, ...]
    settings: Mapping[str, Any]  # as `dpwa.observe.run_log.settings_told` has them
    is_open: bool  # nodes come and go
    seconds: float  # from the first step of any node to the last
    hosts: int  # how many there were
    remarks: tuple[str, ...] = ()  # what is not as it might be expected, in words

    def total(self, figure: str) -> float:
        return sum(node.grown[figure] for node in self.nodes)

    @property
    def start_spread_s(self) -> float:
        """Seconds from the first step of the first node to that of the last."""
        began = [node.began for node in self.nodes]
        return max(began) - min(began)

    @property
    def steps_per_s(self) -> float:
        """Training steps of all nodes together."""
        return sum(node.grown["steps"] / node.seconds for node in self.nodes)

    @property
    def sent_bytes_per_s(self) -> float:
        """Mean payload that a node sends in a second."""
        rates = [node.grown["sent_bytes"] / node.seconds for node in self.nodes]
        return sum(rates) / len(rates)

    @property
    def waiting_share(self) -> float:
        """Share of the time of all nodes that they waited for peers."""
        return self.total("wait_s") / sum(self.total(f"{name}_s") for name in ACTIVITIES)


def observe(run: Run) -> ObservedRun:
    """Return what the logs of a run say.

    Raises UserError if there is one node only, an older dpwa has written the logs, they are of
    different runs, or the run was too short.
    """
    logs = list(run.nodes.values())
    if len(logs) < LEAST_NODES:
        found = ", ".join(run.nodes)
        raise UserError(
            f"{run.folder}: expected the run logs of {LEAST_NODES} nodes or more (got {found})"
            " [DPWA-E297]"
        )
    settings = _common_settings(run, logs)
    observed = {log.name: _observed(log) for log in logs}
    _require_length(run, [name for name, node in observed.items() if node is None])
    nodes = [node for node in observed.values() if node is not None]
    nodes = _together(logs, nodes) or nodes
    groups = list(dict.fromkeys(node.group for node in nodes))
    nodes.sort(key=lambda node: groups.index(node.group))
    return ObservedRun(
        nodes=tuple(nodes),
        settings=settings,
        is_open=logs[0].told.get("membership") == "open",
        seconds=_seconds(logs, nodes),
        hosts=len({process.host for log in logs for process in log.processes}),
        remarks=tuple(_remarks(logs)),
    )


def _common_settings(run: Run, logs: Sequence[NodeLog]) -> Mapping[str, Any]:
    first = logs[0]
    for log in logs:
        settings, wanted = log.told.get("settings"), first.told.get("settings")
        known = _known(log)
        if not isinstance(settings, dict) or (known and "step_changes_s2" not in known):
            raise UserError(
                f"{run.folder}: expected logs that have the settings of the run (got {log.name}, "
                "of an older dpwa) [DPWA-E298]"
            )
        wanted = wanted or {}
        differ = [k for k in settings if k != "log_level" and settings[k] != wanted.get(k)]
        if differ:
            raise UserError(
                f"{run.folder}: expected the logs of one run ({first.name} and {log.name} differ "
                f"in {', '.join(differ[:MOST_TOLD])}) [DPWA-E299]"
            )
    found: Mapping[str, Any] = first.told["settings"]
    return found


def _known(log: NodeLog) -> list[str]:
    return [name for name in COUNTERS if np.isfinite(log.figure(name)).any()]


def _require_length(run: Run, too_short: Sequence[str]) -> None:
    if too_short:
        named = ", ".join(too_short[:MOST_TOLD]) + (", ..." if too_short[MOST_TOLD:] else "")
        raise UserError(
            f"{run.folder}: too short to tell: expected {LEAST_STEPS} steps of each node or more, "
            f"between its second second and its last one (too few of {named}) [DPWA-E300]"
        )


def _together(logs: Sequence[NodeLog], nodes: Sequence[ObservedNode]) -> list[ObservedNode]:
    """Return the nodes since the last of them began: before, fewer shared the links.

    None, if that is too short a time.
    """
    all_began = max(node.began for node in nodes)
    found = [_observed(log, all_began) for log in logs]
    together = [node for node in found if node is not None]
    return together if len(together) == len(found) else []


def _observed(log: NodeLog, since: float = 0.0) -> ObservedNode | None:
    """Return what a log says of a node since a moment; `None` if it has hardly trained."""
    rows = since_restart(log.rows)
    steps = _column(rows, "steps")
    begun = np.flatnonzero(steps > 0)
    rising = 1 + np.flatnonzero(steps[1:] > steps[:-1])
    if len(begun) < 2 or len(rising) < 2:
        return None
    # The last sample that has more steps than the one before may have been taken after the end.
    earliest = max(begun[1], round(WARMING_UP * len(rows)), np.searchsorted(rows[:, 0], since))
    first, last = rows[min(earliest, len(rows) - 1)], rows[rising[-2]]
    grown = {name: float(last[1 + INDEX[name]] - first[1 + INDEX[name]]) for name in COUNTERS}
    if math.isnan(grown["streams"]):  # logs of before it was there counted fetches alone
        grown["streams"] = grown["fetches"]
    if last[0] <= first[0] or grown["steps"] < LEAST_STEPS:
        return None
    spent_s = sum(float(first[1 + INDEX[f"{name}_s"]]) for name in ACTIVITIES)
    group = str(log.told.get("group") or "")
    return ObservedNode(log.name, group, first[0] - spent_s, float(last[0] - first[0]), grown)


def _seconds(logs: Sequence[NodeLog], nodes: Sequence[ObservedNode]) -> float:
    """Return how long it was from the first step of any node to the last sample with a new one."""
    ends = []
    for log in logs:
        rows = since_restart(log.rows)
        steps = _column(rows, "steps")
        ends.append(float(rows[1 + np.flatnonzero(steps[1:] > steps[:-1])[-1], 0]))
    return max(ends) - min(node.began for node in nodes)


def _column(rows: Floats, name: str) -> Floats:
    return np.nan_to_num(rows[:, 1 + INDEX[name]])


def _remarks(logs: Sequence[NodeLog]) -> list[str]:
    remarks = []
    listed = logs[0].told.get("listed")
    if isinstance(listed, int) and logs[0].told.get("membership") != "open" and listed > len(logs):
        remarks.append(f"{listed} nodes are listed, and {len(logs)} of them have logs here")
    again = [log.name for log in logs if len(log.processes) > 1]
    if again:
        remarks.append(f"started again: {', '.join(again)}; of each, the newest process counts")
    if sum(log.event_counts.get("diverged", 0) for log in logs):
        remarks.append("nodes have diverged")
    return remarks


def usual_step_s(run: ObservedRun) -> float:
    """Return the median over nodes of the seconds of a step."""
    return median(node.step_s for node in run.nodes)
