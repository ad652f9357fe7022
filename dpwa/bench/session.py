"""A process's side: joins the others, and takes part in every measure, repetition by repetition."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from datetime import timedelta
from types import FrameType
from typing import Protocol

import torch
import torch.distributed as dist

from dpwa.bench.plan import PATIENCE_S, Rank
from dpwa.bench.records import Progress, Sample, SessionReport
from dpwa.lifecycle import Closeable

WARM_UPS = 2  # repetitions that nobody counts: fresh memory, new connections


class Measure(Protocol):
    """One thing to measure; all processes take part in it at the same time."""

    def prepare(self) -> None:
        """Do what must be done before, and is not timed."""
        ...

    def run(self) -> Sample:
        """Take part; return the seconds of each figure timed here, `None` when a round failed."""
        ...


class GlooGroup(Closeable):
    """The processes of a benchmark, as a process group of Gloo."""

    def __init__(self, rank: Rank) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        dist.init_process_group(
            "gloo",
            init_method=f"file://{rank.plan_path}.store",
            rank=rank.index,
            world_size=rank.count,
            timeout=timedelta(seconds=PATIENCE_S),
        )

    def barrier(self) -> None:
        """Wait until every process is here."""
        dist.barrier()

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def repeat(group: GlooGroup, measures: Mapping[str, Measure], repetitions: int) -> SessionReport:
    """Run every measure once in each repetition, in an order that rotates.

    What a process does between two barriers disturbs no other measure.
    """
    names = list(measures)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for repetition in range(-WARM_UPS, repetitions):
        start = repetition % len(names)
        for name in names[start:] + names[:start]:
            sample = _take(group, measures[name])
            if repetition >= 0:
                samples[name].append(sample)
        if group.rank.index == 0 and repetition >= 0:
            report(Progress(repetitions_done=repetition + 1))
    return SessionReport(samples=samples)


def _take(group: GlooGroup, measure: Measure) -> Sample:
    measure.prepare()
    group.barrier()
    sample = measure.run()
    group.barrier()
    return sample


def report(record: Progress | SessionReport) -> None:
    """Tell the parent."""
    sys.stdout.write(record.model_dump_json() + "\n")
    sys.stdout.flush()


def leave_when_asked() -> None:
    """End quietly, and close what is open, when the parent asks for it."""

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
