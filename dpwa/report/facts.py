"""The remarkable facts of a run, such as slow and lost nodes. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

import numpy as np

from dpwa.observe.figures import INDEX
from dpwa.observe.history import Floats
from dpwa.observe.rates import Rates, rates_of
from dpwa.observe.run_log_contents import NodeLog, Run
from dpwa.observe.verdicts import Condition, NodeVerdict, verdicts
from dpwa.report.curves import Band, band_of, curves_of
from dpwa.report.wording import clock, duration, names
from dpwa.types import JsonObject

RUNS_STILL_S = 15.0  # seconds after its newest line in which a node counts as running
MISSED_S = 4.0  # the same, for a node whose loss other nodes have noticed
TOGETHER_S = 5.0  # nodes that end within this time count as ended together
BEFORE_S = 2.0  # tolerance for different clocks of machines

End = Literal["ended", "lost", "running"]

_SAID = {
    "unreachable": "lost the connection to this node",
    "silent": "got no answer from this node in time",
    "suspect": "suspected that this node was dead",
    "dead": "considered this node dead",
}


@dataclass(frozen=True)
class NodeFacts:
    log: NodeLog
    rates: Rates  # while it trained
    end: End  # how its log ends
    verdicts: tuple[NodeVerdict, ...]  # the problems of the node, the worst first
    loss: float  # last known loss, infinite after divergence, NaN if unknown

    @property
    def name(self) -> str:
        return self.log.name

    def is_(self, kind: str) -> bool:
        """Return whether the node has a verdict of this kind."""
        return any(verdict.kind == kind for verdict in self.verdicts)


@dataclass(frozen=True)
class Facts:
    run: Run
    nodes: Mapping[str, NodeFacts]  # by name
    general: tuple[NodeVerdict, ...]  # verdicts about the whole run

    @property
    def steps(self) -> float:
        return sum(node.log.total("steps") for node in self.nodes.values())

    @property
    def best(self) -> NodeFacts | None:
        """The node with the lowest loss, or `None` if no loss is known."""
        known = [node for node in self.nodes.values() if node.log.best is not None]
        return min(known, key=lambda node: node.log.best.loss, default=None)  # type: ignore[union-attr]

    @property
    def losses(self) -> list[float]:
        """The last finite losses of the nodes that stayed until the end."""
        known = [node for node in self.nodes.values() if math.isfinite(node.loss)]
        there = [node.loss for node in known if node.end != "lost"]
        return there or [node.loss for node in known]

    @property
    def is_running(self) -> bool:
        return any(node.end == "running" for node in self.nodes.values())

    @cached_property
    def mean_loss(self) -> Band:
        """The loss of the nodes, as a band over the seconds since the start."""
        return band_of(curves_of(self.run, "loss"))

    @property
    def lowest_mean_loss(self) -> float:
        """The lowest mean loss, or infinity if no loss is known."""
        return float(np.min(self.mean_loss.mean, initial=math.inf))

    def reached(self, loss: float | None) -> tuple[float | None, float | None]:
        """Return the seconds and mean steps until the mean loss fell to `loss`. `None` if never."""
        found = np.nonzero(self.mean_loss.mean <= (-math.inf if loss is None else loss))[0]
        if not len(found):
            return None, None
        seconds = float(self.mean_loss.at[found[0]])
        steps = [curve for curve in curves_of(self.run, "steps").values() if len(curve[0])]
        return seconds, mean([float(np.interp(seconds, *curve)) for curve in steps])

    def figures(self, loss: float | None) -> JsonObject:
        """Return the results of the run in numbers. `loss` is the loss to reach."""
        nodes = self.nodes.values()
        speeds = [s for node in nodes if (s := node.rates.steps_per_s) is not None]
        best, (seconds, steps) = self.best, self.reached(loss)
        totals = ("merges", "rounds", "sent_bytes", "received_bytes", "mapped_bytes")
        return {
            "folder": str(self.run.folder),
            "nodes": len(nodes),
            "lost": sorted(node.name for node in nodes if node.is_("gone")),
            "slow": sorted(node.name for node in nodes if node.is_("slow")),
            "seconds": self.run.seconds,
            "steps": self.steps,
            "steps_per_s": median(speeds) if speeds else None,
            "best_loss": best.log.best.loss if best and best.log.best else None,
            "last_loss": mean(self.losses),
            "seconds_to_loss": seconds,
            "steps_to_loss": steps,
            **{name: sum(node.log.total(name) for node in nodes) for name in totals},
            "wait_share": mean([n.rates.shares["wait"] for n in nodes if n.rates.shares]),
        }


def facts_of(run: Run, now: float) -> Facts:
    """Return the facts of a run. `now`, in seconds since the epoch, shows which nodes still run."""
    ends = {name: _end(node, run, now) for name, node in run.nodes.items()}
    rates = {name: rates_of(_training(node, ends[name])) for name, node in run.nodes.items()}
    conditions = {
        name: Condition(
            rates=rates[name],
            loss=None if math.isnan(loss := last_known(node, "loss")) else loss,
            said=_said_of(name, run),
            quarantined_by=_quarantined_by(name, run),
        )
        for name, node in run.nodes.items()
    }
    judged = verdicts(conditions)
    all_lost = len(run.nodes) > 1 and _all_lost_together(run, ends)
    nodes = {}
    for name, node in run.nodes.items():
        found = [v for v in judged[name] if v.kind != "waiting" or ends[name] != "lost"]
        if ends[name] == "lost" and not all_lost:
            found.insert(0, _lost(node, run))
        found += [*_restarts(node), *_out_of_sync(node)]
        found.sort(key=lambda verdict: verdict.severity != "bad")
        nodes[name] = NodeFacts(
            node, rates[name], ends[name], tuple(found), last_known(node, "loss")
        )
    return Facts(run, nodes, (_lost_together(run),) if all_lost else ())


def last_known(node: NodeLog, figure: str) -> float:
    """Return the last known value, which may be infinite, or NaN if no value is known."""
    values = node.figure(figure)
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else math.nan


def mean(values: list[float]) -> float | None:
    """Return the mean, or `None` if there are no values."""
    return fmean(values) if values else None


def _end(node: NodeLog, run: Run, now: float) -> End:
    if node.ended:
        return "ended"
    # A node writes one sample per second.
    patience_s = MISSED_S if _noticed(node, run)[0] else RUNS_STILL_S
    return "running" if now - node.last < patience_s and now >= run.began else "lost"


def _training(node: NodeLog, end: End) -> Floats:
    """Return the samples from the first step to the last step, or to the end of a failed node.

    A node that has ended well may have waited for others after its last step.
    """
    steps = node.rows[:, 1 + INDEX["steps"]]
    moved = np.nonzero(np.diff(steps) > 0)[0]
    if not len(moved):
        return node.rows if end != "ended" else node.rows[:0]
    return node.rows[moved[0] : moved[-1] + 2] if end == "ended" else node.rows[moved[0] :]


def _said_of(name: str, run: Run) -> dict[str, str]:
    told = {other: node.exchanged.get(name) for other, node in run.nodes.items() if other != name}
    return {other: exchanged.health for other, exchanged in told.items() if exchanged}


def _quarantined_by(name: str, run: Run) -> list[str]:
    found = []
    for other, node in run.nodes.items():
        kinds = [event.kind for event in node.events if event.about == name]
        turns = [kind for kind in kinds if kind in ("quarantined", "released")]
        if turns and turns[-1] == "quarantined":
            found.append(other)
    return found


def _lost(node: NodeLog, run: Run) -> NodeVerdict:
    """Return the verdict about a lost node, with the time of the failure and the evidence."""
    said, goodbye = _noticed(node, run)
    if goodbye:
        text = (
            f"announced its end to {names(goodbye)}, but its log ends at {clock(node.last)} "
            "without an end line. It may have been killed while it closed"
        )
        return NodeVerdict("left", text, "odd")
    noticed = [f"{names(who)} {_SAID[kind]}" for kind, who in said.items()]
    reasons = ". ".join([*noticed, "The node announced no end", "Its log has no end line"])
    return NodeVerdict(
        "gone", f"was killed, or its machine failed, at {clock(node.last)}. {reasons}", "bad"
    )


def _noticed(node: NodeLog, run: Run) -> tuple[dict[str, list[str]], list[str]]:
    """Return the nodes that logged a node's failure, by event, and nodes that logged its end."""
    said: dict[str, list[str]] = {}
    goodbye = []
    for other, log in run.nodes.items():
        about = [e for e in log.events if e.about == node.name and e.time >= node.last - BEFORE_S]
        kinds = {event.kind for event in about}
        if kinds & {"finished", "left"}:
            goodbye.append(other)
        for kind in _SAID:
            if kind in kinds:
                said.setdefault(kind, []).append(other)
    return said, goodbye


def _all_lost_together(run: Run, ends: Mapping[str, End]) -> bool:
    return set(ends.values()) == {"lost"} and all(
        run.last - node.last <= TOGETHER_S for node in run.nodes.values()
    )


def _lost_together(run: Run) -> NodeVerdict:
    text = (
        f"All {len(run.nodes)} nodes were killed, or their machine failed, at {clock(run.last)}. "
        "No log has an end line"
    )
    return NodeVerdict("gone", text, "bad")


def _out_of_sync(node: NodeLog) -> list[NodeVerdict]:
    is_out = node.figure("in_sync") == 0
    seconds = float(np.diff(node.times, prepend=node.times[:1])[is_out].sum())
    times = int(is_out[:1].sum() + (is_out[1:] & ~is_out[:-1]).sum())
    if not times:
        return []
    often = "once" if times == 1 else f"{times} times"
    text = f"was out of sync {often}, for {duration(seconds)} in total (measured every second)"
    return [NodeVerdict("out of sync", text, "odd")]


def _restarts(node: NodeLog) -> list[NodeVerdict]:
    pairs = list(pairwise(node.processes))
    if not pairs:
        return []
    lost = [before for before, _ in pairs if not before.ended]
    text = f"was restarted {len(pairs)} times" if len(pairs) > 1 else "was restarted"
    before, after = pairs[-1]
    text += f", at {clock(after.began)}" if len(pairs) == 1 else f", last at {clock(after.began)}"
    text += f", {duration(max(0.0, after.began - before.last))} after its log ended"
    if lost:
        text += " without an end line" if len(pairs) == 1 else f" ({len(lost)} without an end line)"
    return [NodeVerdict("restarted", text, "odd")]
