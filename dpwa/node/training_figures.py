"""TrainingFigures: counts of the training thread of a node, which other threads can read."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from dpwa.clock import Clock
from dpwa.node.report import HistogramReport
from dpwa.types import JsonObject, TrainingProgress

WAIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STALENESS_BOUNDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Activity(IntEnum):
    """The current activity of a training thread."""

    TRAIN = 0  # everything outside of gossip
    PUBLISH = 1
    WAIT = 2
    MERGE = 3
    IDLE = 4  # before the first update, and after the last


class Histogram:
    """Counts values by inclusive upper bounds, as in Prometheus. The last bin has no limit."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def report(self) -> HistogramReport:
        """Return the counts."""
        return HistogramReport(tuple(self._bounds), tuple(self._counts), self._sum)


@dataclass(frozen=True)
class MergedPeer:
    """The merges of one peer so far."""

    merges: int
    nbytes: int  # bytes of its snapshots, mapped or received
    at: float  # time of the last merge
    staleness: float  # updates that the peer was behind at that time; negative: ahead
    progress: TrainingProgress  # clock and loss of the peer at that time
    version: int  # version of its snapshot at that time


class TrainingFigures:
    """Counts steps, seconds and merges. The training thread writes, and any thread may read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.steps = 0  # updates that began in this process
        # distance to the last merged peer, before that merge; `None`: not measured
        self.consensus_distance: float | None = None
        self._step_changes_s2 = 0.0
        self._trained_s = 0.0  # seconds of training when the current step began
        self._last_step_s: float | None = None
        # Current activity, its start, and the seconds before. One value, so that reads are atomic.
        self._spent = Activity.IDLE, clock.now(), (0.0, 0.0, 0.0, 0.0, 0.0)
        self.waits = Histogram(WAIT_BOUNDS_S)
        self._staleness = Histogram(STALENESS_BOUNDS)
        self._merged: dict[str, MergedPeer] = {}
        self._merged_bytes = 0  # also of peers that were forgotten

    def begin_update(self) -> None:
        self.steps += 1
        activity = self._spent[0]
        self.turn_to(Activity.TRAIN if activity is Activity.IDLE else activity)
        if self.steps == 1:
            return
        trained_s = self._spent[2][Activity.TRAIN]
        step_s = trained_s - self._trained_s
        if self._last_step_s is not None:
            self._step_changes_s2 += (step_s - self._last_step_s) ** 2
        self._trained_s, self._last_step_s = trained_s, step_s

    def turn_to(self, activity: Activity) -> Activity:
        """Begin a different activity, and return the previous activity."""
        before, since, seconds = self._spent
        now = self._clock.now()
        spent = list(seconds)
        spent[before] += now - since
        self._spent = activity, now, (spent[0], spent[1], spent[2], spent[3], spent[4])
        return before

    @contextmanager
    def doing(self, activity: Activity) -> Iterator[None]:
        before = self.turn_to(activity)
        try:
            yield
        finally:
            self.turn_to(before)

    def _spent_until_now(self) -> list[float]:
        while True:
            seen = activity, since, seconds = self._spent
            now = self._clock.now()
            if seen is self._spent:  # otherwise, the training thread began a different activity
                spent = list(seconds)
                spent[activity] += now - since
                return spent

    def merged(
        self, peer: str, nbytes: int, staleness: float, progress: TrainingProgress, version: int
    ) -> None:
        """Count one merge of a peer's snapshot. The staleness of a snapshot that is ahead is 0."""
        self._staleness.observe(max(staleness, 0.0))
        self._merged_bytes += nbytes
        last = self._merged.get(peer)
        merges, before = (0, 0) if last is None else (last.merges, last.nbytes)
        self._merged[peer] = MergedPeer(
            merges + 1, before + nbytes, self._clock.now(), staleness, progress, version
        )

    def forget_peer(self, peer: str) -> None:
        self._merged.pop(peer, None)

    def report_of(self, peer: str) -> JsonObject:
        """Return the statistics of a peer's merges, as fields of a `PeerReport`."""
        merged = self._merged.get(peer)
        if merged is None:
            return {}
        loss = merged.progress.loss
        return {
            "merges": merged.merges,
            "merged_bytes": merged.nbytes,
            "merged_s": round(self._clock.now() - merged.at, 3),
            "staleness": merged.staleness,
            "clock": merged.progress.clock,
            "loss": loss if loss is not None and math.isfinite(loss) else None,
            "version": merged.version,
        }

    def report(self) -> JsonObject:
        """Return the fields of a `GossipReport`."""
        spent = self._spent_until_now()
        return {
            "steps": self.steps,
            "train_s": spent[Activity.TRAIN],
            "publish_s": spent[Activity.PUBLISH],
            "wait_s": spent[Activity.WAIT],
            "merge_s": spent[Activity.MERGE],
            "step_changes_s2": self._step_changes_s2,
            "merged_bytes": self._merged_bytes,
            "consensus_distance": self.consensus_distance,
            "waits": self.waits.report(),
            "staleness": self._staleness.report(),
        }
