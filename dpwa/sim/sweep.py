"""Several runs of one scenario: every combination of some values, and several seeds."""

from __future__ import annotations

import csv
import io
import itertools
import json
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

from dpwa.config.reading import number
from dpwa.errors import DpwaError, UserError
from dpwa.files import written
from dpwa.sim.load import ScenarioSource, load_scenario
from dpwa.sim.samples import NodeFigures, RunOutcome, Sample, Watch
from dpwa.sim.scenario import Scenario
from dpwa.sim.simulate import require_engine, simulate
from dpwa.sim.summary import SimulationFigures, figures_of
from dpwa.types import JsonObject

MOST_RUNS = 10_000
LOOK_EVERY_S = 0.2  # at how far other processes are

Settings = Mapping[str, object]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    settings: Settings  # by which it differs from the others, by key; without the seed
    overrides: Settings  # these, the seed, and what is set for all
    scenario: Scenario


@dataclass(frozen=True)
class SimulatedRun:
    """A run that has ended."""

    planned: PlannedRun
    figures: SimulationFigures | None = None  # `None` if it could not be simulated
    outcome: RunOutcome | None = None
    error: str = ""  # why it could not be simulated


class StopRequest:
    """Whether the runs are to end: Ctrl-C was pressed, or a scheduler takes the machine."""

    def __init__(self) -> None:
        self.number = 0  # of the signal that has said so; 0 before

    @property
    def is_set(self) -> bool:
        return self.number != 0


Progress = Callable[[Sequence[float]], None]
"""Is told now and then how much of each run is done, from 0 to 1."""


def plan_runs(
    source: ScenarioSource,
    settings: Settings,
    sweep: Mapping[str, Sequence[object]],
    *,
    repeat: int = 1,
) -> list[PlannedRun]:
    """Return the runs of a sweep, in order: the last key changes first, then the seed.

    `settings` are set for all; the runs are all combinations of the values of `sweep`; `repeat`
    seeds are that of the scenario and the next ones.
    """
    combinations = [
        dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())
    ]
    if len(combinations) * repeat > MOST_RUNS:
        count = len(combinations) * repeat
        raise UserError(f"a sweep has at most {MOST_RUNS} runs (got {count}) [DPWA-E291]")
    planned = []
    for chosen in combinations:
        overrides = {**settings, **chosen}
        scenario = load_scenario(source, overrides).scenario
        for seed in range(scenario.seed, scenario.seed + repeat):
            ours = scenario.model_copy(update={"seed": seed})
            told = {key: plain(value) for key, value in chosen.items()}
            planned.append(PlannedRun(told, {**overrides, "seed": seed}, ours))
    return planned


def plain(value: object) -> object:
    found = number(value) if isinstance(value, str) else None
    return value if found is None else found


def run_all(
    source: ScenarioSource,
    planned: Sequence[PlannedRun],
    *,
    processes: int,
    progress: Progress,
    stop: StopRequest,
) -> list[SimulatedRun]:
    """Simulate runs; return those that have begun, in order.

    One that cannot be simulated says why, if there are others. After `stop` the runs that are under
    way end with what they have, and no others begin. With more than one of `processes`, that many
    run at once, in processes of their own. `progress` is told how far each run is.
    """
    for run in planned:
        require_engine(run.scenario)
    if len(planned) == 1:
        return [_simulated(source, planned[0], _here([0.0], 0, progress, stop))]
    if processes == 1:
        done: list[float] = [0.0] * len(planned)
        found = []
        for index, run in enumerate(planned):
            if stop.is_set:
                break
            found.append(_tried(source, run, _here(done, index, progress, stop)))
        return found
    return _in_processes(source, planned, min(processes, len(planned)), progress, stop)


@contextmanager
def stopped_by_signals(stop: StopRequest) -> Iterator[None]:
    """Have the first SIGINT or SIGTERM set `stop`; the second one ends what is under way."""

    def came(number: int, frame: FrameType | None) -> None:
        if stop.is_set:
            sys.stderr.write("stopped at once; nothing was written\n")
            for child in multiprocessing.active_children():
                child.kill()
            signal.default_int_handler(number, frame)
        stop.number = number

    before = {number: signal.signal(number, came) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _here(
    done: list[float], index: int, progress: Progress, stop: StopRequest
) -> Callable[[float], bool]:
    def tell(share: float) -> bool:
        done[index] = share
        progress(done)
        return not stop.is_set

    return tell


def _simulated(
    source: ScenarioSource, planned: PlannedRun, tell: Callable[[float], bool]
) -> SimulatedRun:
    spec = load_scenario(source, planned.overrides)
    outcome = simulate(spec, _watch(planned.scenario, tell))
    tell(1.0)
    return SimulatedRun(planned, figures_of(spec, outcome), outcome)


def _tried(
    source: ScenarioSource, planned: PlannedRun, tell: Callable[[float], bool]
) -> SimulatedRun:
    try:
        return _simulated(source, planned, tell)
    except DpwaError as error:
        return SimulatedRun(planned, error=str(error))


def _watch(scenario: Scenario, tell: Callable[[float], bool]) -> Watch:
    def watch(sample: Sample) -> bool:
        by_rounds = sample.round / scenario.rounds if scenario.rounds else 0.0
        by_time = sample.time_s / scenario.seconds if scenario.seconds else 0.0
        return tell(min(1.0, max(by_rounds, by_time)))

    return watch


_shared: tuple[Any, Any] | None = None  # of a process of a sweep: shares done, and when to end


def _begin_process(done: Any, stop: Any) -> None:
    global _shared  # a pool hands over shared memory at the start of a process only
    _shared = done, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells all; the first one decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@contextmanager
def _undisturbed_start() -> Iterator[None]:
    """Have the processes that begin meanwhile never see Ctrl-C, and SIGTERM once they have begun.

    A pool in which one ends while others are made fails in a thread of its own.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_process(source: ScenarioSource, planned: PlannedRun, index: int) -> SimulatedRun | None:
    assert _shared is not None  # noqa: S101 - `_begin_process` comes first
    done, stop = _shared
    if stop.is_set():
        return None  # the pool had taken it already

    def tell(share: float) -> bool:
        done[index] = share
        return not stop.is_set()

    return _tried(source, planned, tell)


def _in_processes(
    source: ScenarioSource,
    planned: Sequence[PlannedRun],
    processes: int,
    progress: Progress,
    stop: StopRequest,
) -> list[SimulatedRun]:
    context = multiprocessing.get_context("spawn")  # no thread of this process is forked
    done = context.Array("d", len(planned), lock=False)
    ended = context.Event()
    futures: list[Future[SimulatedRun | None]] = []
    with ProcessPoolExecutor(processes, context, _begin_process, (done, ended)) as pool:
        try:
            with _undisturbed_start():
                for index, run in enumerate(planned):
                    futures.append(pool.submit(_in_process, source, run, index))
            _wait_for(futures, lambda: progress(list(done)), stop, ended)
            ran = [future.result() for future in futures if not future.cancelled()]
            return [run for run in ran if run is not None]
        except BrokenProcessPool:
            if stop.number == signal.SIGTERM:  # which schedulers send to every process
                return [run for run in map(_result_if_any, futures) if run is not None]
            raise UserError(
                "a process of the sweep was killed; is there memory enough for so many at once? "
                "Try --processes 1 [DPWA-E292]"
            ) from None


def _result_if_any(future: Future[SimulatedRun | None]) -> SimulatedRun | None:
    if future.cancelled() or future.exception() is not None:
        return None
    return future.result()


def _wait_for(
    futures: Sequence[Future[SimulatedRun | None]],
    show: Callable[[], None],
    stop: StopRequest,
    ended: Any,
) -> None:
    """Wait until all have ended, after `stop` those that have begun."""
    waiting = set(futures)
    while waiting:
        waiting = wait(waiting, LOOK_EVERY_S).not_done
        show()
        if stop.is_set and not ended.is_set():
            ended.set()
            for future in futures:
                future.cancel()


SAMPLES, NODES, EVENTS, SUMMARY = "samples.csv", "nodes.csv", "events.jsonl", "summary.json"


def run_as_object(run: SimulatedRun) -> JsonObject:
    """Return the figures of a run, and the settings by which it differs from others."""
    figures = run.figures.to_json() if run.figures else {"error": run.error}
    return {"settings": dict(run.planned.settings), **figures}


def write_results(runs: Sequence[SimulatedRun], document: JsonObject, folder: Path) -> list[Path]:
    """Write all but the pictures into a folder, which is made; return the files.

    In each of them `run` is the number of the run in the document, from 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ended = [(index, run.outcome) for index, run in enumerate(runs) if run.outcome]
    samples = ((index, sample) for index, outcome in ended for sample in outcome.samples)
    nodes = ((index, node) for index, outcome in ended for node in outcome.nodes)
    _write_table(folder / SAMPLES, [field.name for field in fields(Sample)], samples)
    _write_table(folder / NODES, [field.name for field in fields(NodeFigures)], nodes)
    with written(folder / EVENTS) as out:
        for index, outcome in ended:
            for time_s, text in outcome.events:
                line = json.dumps({"run": index, "time_s": time_s, "event": text})
                out.write(line.encode() + b"\n")
    with written(folder / SUMMARY) as out:
        out.write(json.dumps(document, indent=2).encode() + b"\n")
    return [folder / name for name in (SAMPLES, NODES, EVENTS, SUMMARY)]


def _write_table(
    path: Path, columns: Sequence[str], rows: Iterable[tuple[int, Sample | NodeFigures]]
) -> None:
    with written(path) as out, io.TextIOWrapper(out, encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *columns])
        for index, row in rows:
            values = asdict(row)
            writer.writerow([index, *(values[column] for column in columns)])
