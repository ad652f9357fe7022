"""Several runs of one scenario, with all combinations of values, and several seeds."""

from __future__ import annotations

import csv
import io
import itertools
import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from dpwa.config.validation import number
from dpwa.errors import DpwaError, UserError
from dpwa.files import written
from dpwa.sim.load import ScenarioSource, load_scenario
from dpwa.sim.samples import NodeFigures, RunOutcome, Sample
from dpwa.sim.scenario import RunSpec, Scenario
from dpwa.sim.simulate import require_engine, simulate
from dpwa.sim.summary import SimulationFigures, figures_of
from dpwa.types import JsonObject

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CHECK_EVERY_S = 0.2  # seconds between checks for the end of the sweep

Settings = Mapping[str, object]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    settings: Settings  # settings that differ between runs, by key, without the seed
    scenario: Scenario
    load: Callable[[], RunSpec]


@dataclass(frozen=True)
class SimulatedRun:
    """A finished run."""

    planned: PlannedRun
    figures: SimulationFigures | None = None  # `None` if the simulation failed
    outcome: RunOutcome | None = None
    error: str = ""  # reason of the failure


@dataclass
class StopRequest:
    """A request to end the runs, after Ctrl-C or a signal of a scheduler."""

    number: int = 0  # of the signal, or 0 before


Progress = Callable[[float], bool]
"""Gets from time to time the finished share of all runs, from 0 to 1. Returns whether to go on."""


def plan_runs(
    source: ScenarioSource,
    settings: Settings,
    sweep: Mapping[str, Sequence[object]],
    *,
    repeat: int = 1,
) -> list[PlannedRun]:
    """Return the runs of a sweep, in order.

    All runs have `settings`. There is one run for each combination of the values of `sweep`, and
    each of `repeat` seeds, which start at the seed of the scenario.
    """
    planned = []
    for values in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, values, strict=True))
        overrides = {**settings, **chosen}
        scenario = load_scenario(source, overrides).scenario
        told = {key: _plain(value) for key, value in chosen.items()}
        for seed in range(scenario.seed, scenario.seed + repeat):
            load = partial(load_scenario, source, {**overrides, "seed": seed})
            planned.append(PlannedRun(told, scenario.model_copy(update={"seed": seed}), load))
    return planned


def _plain(value: object) -> object:
    found = number(value) if isinstance(value, str) else None
    return value if found is None else found


def run_all(
    planned: Sequence[PlannedRun], *, processes: int, progress: Progress
) -> list[SimulatedRun]:
    """Simulate runs, and return the finished runs, in order.

    If there are several runs, a run that fails has an `error`. With more than one of `processes`,
    that many runs are simulated at once, in their own processes. If `progress` returns false, no
    other run starts, and a run in this process ends early with its results so far.
    """
    for run in planned:
        require_engine(run.scenario)
    if len(planned) == 1:
        return [_simulated(planned[0], progress)]
    if processes > 1:
        return _in_processes(planned, min(processes, len(planned)), progress)
    found: list[SimulatedRun] = []
    for run in planned:
        if not progress(len(found) / len(planned)):
            break
        found.append(_tried(run, lambda share: progress((len(found) + share) / len(planned))))
    return found


@contextmanager
def stopped_by_signals() -> Iterator[StopRequest]:
    """Note the first SIGINT or SIGTERM in a `StopRequest`. The second signal ends the process."""
    stop = StopRequest()

    def came(number: int, frame: FrameType | None) -> None:
        if stop.number:
            signal.default_int_handler(number, frame)
        stop.number = number

    before = {number: signal.signal(number, came) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _simulated(planned: PlannedRun, progress: Progress) -> SimulatedRun:
    spec, scenario = planned.load(), planned.scenario

    def watch(sample: Sample) -> bool:
        by_rounds = sample.round / scenario.rounds if scenario.rounds else 0.0
        by_time = sample.time_s / scenario.seconds if scenario.seconds else 0.0
        return progress(min(1.0, max(by_rounds, by_time)))

    outcome = simulate(spec, watch)
    return SimulatedRun(planned, figures_of(spec, outcome), outcome)


def _tried(planned: PlannedRun, progress: Progress = lambda _: True) -> SimulatedRun:
    try:
        return _simulated(planned, progress)
    except DpwaError as error:
        return SimulatedRun(planned, error=str(error))


def _in_processes(
    planned: Sequence[PlannedRun], processes: int, progress: Progress
) -> list[SimulatedRun]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of this process
    with ProcessPoolExecutor(processes, context) as pool:
        # The processes inherit the blocked signals, so only this process reacts to a signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            futures = [pool.submit(_tried, run) for run in planned]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        waiting, goes_on = set(futures), True
        while waiting and goes_on:
            waiting = wait(waiting, CHECK_EVERY_S).not_done
            goes_on = progress(1.0 - len(waiting) / len(futures))
        if not goes_on:
            for child in multiprocessing.active_children():
                child.kill()
    if goes_on and any(isinstance(f.exception(), BrokenProcessPool) for f in futures):
        raise UserError(
            "a process of the sweep was killed, perhaps because the machine has too little memory. "
            "Try --processes 1 [DPWA-E292]"
        )
    return [f.result() for f in futures if not isinstance(f.exception(), BrokenProcessPool)]


SAMPLES, NODES, EVENTS, SUMMARY = "samples.csv", "nodes.csv", "events.jsonl", "summary.json"


def write_results(runs: Sequence[SimulatedRun], document: JsonObject, folder: Path) -> list[Path]:
    """Write all results except pictures into a new folder, and return the files.

    In each file, `run` is the number of the run in the document, from 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ended = [(index, run.outcome) for index, run in enumerate(runs) if run.outcome]
    _write_table(folder / SAMPLES, Sample, [(i, each) for i, run in ended for each in run.samples])
    _write_table(folder / NODES, NodeFigures, [(i, each) for i, run in ended for each in run.nodes])
    with written(folder / EVENTS) as out:
        for index, outcome in ended:
            for time_s, text in outcome.events:
                line = json.dumps({"run": index, "time_s": time_s, "event": text})
                out.write(line.encode() + b"\n")
    with written(folder / SUMMARY) as out:
        out.write(json.dumps(document, indent=2).encode() + b"\n")
    return [folder / name for name in (SAMPLES, NODES, EVENTS, SUMMARY)]


def _write_table(path: Path, kind: type[Any], rows: Sequence[tuple[int, Any]]) -> None:
    with written(path) as out, io.TextIOWrapper(out, encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["run", *(field.name for field in fields(kind))])
        writer.writeheader()
        writer.writerows({"run": index, **asdict(row)} for index, row in rows)
