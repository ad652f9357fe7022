"""Rates of a node over its last samples: pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpwa.observe.figures import COUNTERS, INDEX
from dpwa.observe.history import Floats

ACTIVITIES = ("train", "publish", "wait", "merge")


@dataclass(frozen=True)
class Rates:
    """How fast a node is, over some seconds; `None` where that is not known.

    Attributes:
        seconds: from the first to the last sample.
        steps_per_s: training steps.
        step_train_s: seconds of training in a step, without what is gossip.
        merges_per_s: merges.
        shares: of the time, by activity (`ACTIVITIES`), from 0 to 1.
        received_per_s: bytes of payload.
        sent_per_s: bytes of payload.
        staleness: mean updates that merged snapshots were behind.
        idle_s: how long ago the last step was seen, if there was none in all that time; else 0.
    """

    seconds: float = 0.0
    steps_per_s: float | None = None
    step_train_s: float | None = None
    merges_per_s: float | None = None
    shares: dict[str, float] | None = None
    received_per_s: float | None = None
    sent_per_s: float | None = None
    staleness: float | None = None
    idle_s: float = 0.0


UNKNOWN = Rates()


def rates_of(rows: Floats) -> Rates:
    """Return the rates over samples of one node, those after its last restart.

    Args:
        rows: shape `(samples, 1 + len(FIGURES))`, time first, in order of time.
    """
    rows = since_restart(rows)
    if len(rows) < 2:
        return UNKNOWN
    first, last = rows[0], rows[-1]
    seconds = float(last[0] - first[0])
    grown = {n: float(last[1 + INDEX[n]] - first[1 + INDEX[n]]) for n in COUNTERS}
    merges = grown["merges"]
    spent = {activity: grown[f"{activity}_s"] for activity in ACTIVITIES}
    total = sum(spent.values())
    steps = rows[:, 1 + INDEX["steps"]]
    moved = np.nonzero(steps != steps[-1])[0]
    idle_s = seconds if not len(moved) else float(last[0] - rows[moved[-1] + 1, 0])
    return Rates(
        seconds=seconds,
        steps_per_s=grown["steps"] / seconds,
        step_train_s=spent["train"] / grown["steps"] if grown["steps"] > 0 else None,
        merges_per_s=merges / seconds,
        shares={a: s / total for a, s in spent.items()} if total > 0.0 else None,
        received_per_s=grown["received_bytes"] / seconds,
        sent_per_s=grown["sent_bytes"] / seconds,
        staleness=grown["staleness_sum"] / merges if merges > 0 else None,
        idle_s=idle_s,
    )


def since_restart(rows: Floats) -> Floats:
    """Return the samples of the newest process: counters begin at 0 with each."""
    steps = rows[:, 1 + INDEX["steps"]]
    fell = np.nonzero(np.diff(steps) < 0)[0]
    return rows[fell[-1] + 1 :] if len(fell) else rows


def latest(rows: Floats, name: str) -> float | None:
    """Return the newest value of a figure; `None` if it is not known, infinity as it is."""
    if not len(rows):
        return None
    value = float(rows[-1, 1 + INDEX[name]])
    return None if math.isnan(value) else value
