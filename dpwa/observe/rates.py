"""Pure functions that compute the rates of a node from its last samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dpwa.observe.figures import COUNTERS, INDEX
from dpwa.observe.history import Floats, SampleHistory

ACTIVITIES = ("train", "publish", "wait", "merge")
ENOUGH_STEPS = 10  # a rate needs this many steps, because over fewer steps it varies by chance
MISSED_STEPS = 3.0  # after this many times the usual step time without a step, a node stands still
_SPENT = [1 + INDEX[f"{activity}_s"] for activity in ACTIVITIES]
_FALLS_WITH_RESTART = ("steps", "merges", "merged_bytes", "train_s")


@dataclass(frozen=True)
class Rates:
    """The mean rates of a node over a time window. Unknown rates are `None`.

    Attributes:
        seconds: seconds from the first to the last sample.
        steps_per_s: training steps per second.
        step_train_s: mean seconds of training in a step, without gossip.
        merges_per_s: merges per second.
        rounds_per_s: rounds of `together` per second.
        shares: share of the time that each activity takes (`ACTIVITIES`), from 0 to 1.
        received_per_s: bytes of payload received per second.
        sent_per_s: bytes of payload sent per second.
        mapped_per_s: bytes per second read from the memory of peers.
        staleness: mean number of updates by which merged snapshots were behind.
        idle_s: seconds from the last known step, or from the first sample, to the last sample.
    """

    seconds: float = 0.0
    steps_per_s: float | None = None
    step_train_s: float | None = None
    merges_per_s: float | None = None
    rounds_per_s: float | None = None
    shares: dict[str, float] | None = None
    received_per_s: float | None = None
    sent_per_s: float | None = None
    mapped_per_s: float | None = None
    staleness: float | None = None
    idle_s: float = 0.0

    @property
    def wait(self) -> float | None:
        """Share of the time that the node waits for peers."""
        return None if self.shares is None else self.shares["wait"]


UNKNOWN = Rates()


def rates_of(rows: Floats) -> Rates:
    """Return the rates over the samples of one node since its last restart.

    Args:
        rows: samples in order of time, shape `(samples, 1 + len(FIGURES))`, time first.
    """
    rows = since_restart(rows)
    if len(rows) < 2:
        return UNKNOWN
    first, last = rows[0].tolist(), rows[-1].tolist()
    seconds = last[0] - first[0]
    grown = {name: last[1 + INDEX[name]] - first[1 + INDEX[name]] for name in COUNTERS}
    steps, merges = grown["steps"], grown["merges"]
    spent = {activity: grown[f"{activity}_s"] for activity in ACTIVITIES}
    total = sum(spent.values())
    is_spent = math.isfinite(total) and total > 0.0 and min(spent.values()) >= 0.0
    return Rates(
        seconds=seconds,
        steps_per_s=_ratio(steps, seconds),
        step_train_s=_ratio(spent["train"], steps),
        merges_per_s=_ratio(merges, seconds),
        rounds_per_s=_ratio(grown["rounds"], seconds),
        shares={a: s / total for a, s in spent.items()} if is_spent else None,
        received_per_s=_ratio(grown["received_bytes"], seconds),
        sent_per_s=_ratio(grown["sent_bytes"], seconds),
        mapped_per_s=_ratio(grown["mapped_bytes"], seconds),
        staleness=_ratio(grown["staleness_sum"], merges),
        idle_s=_idle_s(rows),
    )


def rates_of_newest(history: SampleHistory, window_s: float, *, trains: bool = True) -> Rates:
    """Return the rates over the last seconds, or over a longer time if steps take long.

    If the counters have stopped, the rates cover the time since the last step.

    Args:
        history: the figures of one node.
        window_s: the time that the rates cover, if it has enough steps.
        trains: whether the node still takes steps, as far as is known.
    """
    rows = since_restart(history.newest(math.inf))
    if not len(rows):
        return UNKNOWN
    for seconds in (window_s, 6 * window_s, math.inf):
        window = rows[rows[:, 0] >= rows[-1, 0] - seconds]
        found = rates_of(window)
        if (found.steps_per_s or 0.0) * found.seconds >= ENOUGH_STEPS or len(window) == len(rows):
            break
    still = rows[_last_step(rows) :]
    patience_s = max(window_s, MISSED_STEPS / (found.steps_per_s or math.inf)) if trains else 0.0
    if still[-1, 0] - still[0, 0] >= patience_s:
        found = rates_of(still)
    if not trains:
        found = replace(found, shares=None)  # the node spends no time on steps
    return replace(found, idle_s=_idle_s(rows) if len(rows) > 1 else 0.0)


def _ratio(value: float, by: float) -> float | None:
    """Return `value / by`, or `None` if the quotient is undefined or a counter has decreased."""
    return value / by if by > 0.0 and 0.0 <= value < math.inf and by < math.inf else None


def _last_step(rows: Floats) -> int:
    """Return the index of the first sample after the last step."""
    steps = rows[:, 1 + INDEX["steps"]]
    moved = np.nonzero(steps[:-1] != steps[-1])[0]  # NaN (unknown) equals nothing
    return int(moved[-1]) + 1 if len(moved) else 0


def _idle_s(rows: Floats) -> float:
    began = _last_step(rows)
    seconds = float(rows[-1, 0] - rows[began, 0])
    # No activity takes time after the last step of a training, so such a node is not idle.
    spent = sum(rows[-1, _SPENT].tolist()) - sum(rows[began, _SPENT].tolist())
    return seconds if math.isnan(spent) else min(seconds, spent)


def since_restart(rows: Floats) -> Floats:
    """Return the samples of the newest process, because counters start at 0 in each process."""
    counters = rows[:, [1 + INDEX[name] for name in _FALLS_WITH_RESTART]]
    fell = np.nonzero(np.any(counters[1:] < counters[:-1], axis=1))[0]
    return rows[fell[-1] + 1 :] if len(fell) else rows


def latest(rows: Floats, name: str) -> float | None:
    """Return the newest value of a figure, or `None` if it is unknown. It may be infinite."""
    if not len(rows):
        return None
    value = float(rows[-1, 1 + INDEX[name]])
    return None if math.isnan(value) else value
