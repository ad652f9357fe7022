"""Start the processes of a benchmark, and compute and print its figures.

A script starts itself again as several processes. Each repetition runs all measures in a rotating
order, so ratios hold even if the speed of the machine changes. A process sends its figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from importlib import metadata
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import dpwa
from dpwa.config import Config
from dpwa.data.shared_memory import sweep
from dpwa.errors import DpwaError, UserError
from dpwa.launch import LaunchSpec, run_nodes
from dpwa.launch.engine import available_cores
from dpwa.launch.ports import free_ports
from dpwa.launch.stopping import PASSED_ON
from dpwa.lifecycle import Closeable

ROOT = Path(__file__).resolve().parent.parent
TRANSPORTS = ("auto", "shm", "tcp")
LOCAL_HOST = "127.0.0.1"
BYTES_PER_VALUE = 4  # float32
PATIENCE_S = 120.0  # maximum wait for another process
MIN_TIMEOUT_MS = 5_000
SLOWEST_BYTES_PER_MS = 10_000  # a fetch over a link of 80 Mbit/s must not time out
WARM_UPS = 2  # repetitions that do not count, because of new memory and connections
FAILURES_ALLOWED = 0.1  # share of the rounds of a measure that may merge nothing

# The seconds of each figure that a process has timed in one repetition of a measure. The dict is
# empty if only other processes time figures. The sample is `None` if the round merged nothing.
Sample = dict[str, float] | None
Work = Callable[[], object]
Ratio = tuple[tuple[str, ...], tuple[str, ...]]  # the figures in the dividend, and in the divisor


def _nothing() -> None:
    """Do nothing."""


class BenchmarkError(DpwaError):
    """A process of the benchmark has failed, or too many rounds have merged nothing."""


# The parent


@dataclass(frozen=True)
class Plan:
    nbytes: int  # the size of the exchanged model or value
    hosts: tuple[str, ...]  # the address of each process, by rank
    ports: dict[str, tuple[int, ...]]  # for each name of a link, the ports by rank
    options: dict[str, Any] = field(default_factory=dict)  # other values for the processes

    def config(self, link: str, **settings: Any) -> Config:
        """Return the configuration of a link's nodes, without environment variables."""
        nodes = [
            {"name": node_name(rank), "host": host, "port": port}
            for rank, (host, port) in enumerate(zip(self.hosts, self.ports[link], strict=True))
        ]
        timeout_ms = MIN_TIMEOUT_MS + self.nbytes // SLOWEST_BYTES_PER_MS
        return Config.model_validate(
            {
                "nodes": nodes,
                "merge": "interpolate",
                "timeout_ms": timeout_ms,
                "repeat": "merge",  # so that each round merges, even the same snapshot again
                "collective_timeout_s": PATIENCE_S,
                "seed": 0,
                "log_level": "error",  # because nodes warn when their peers start and end
                "needs_finish": False,
                **settings,
            }
        )

    def addresses(self, name: str) -> list[tuple[str, int]]:
        return list(zip(self.hosts, self.ports[name], strict=True))


def plan_of(
    nbytes: int, links: Iterable[str], processes: int | Sequence[str] = 2, **options: Any
) -> Plan:
    """Return a plan for a number of processes on this machine, or for one process on each host."""
    hosts = (LOCAL_HOST,) * processes if isinstance(processes, int) else tuple(processes)
    names = list(links)
    ports = iter(free_ports(len(hosts) * len(names)))
    return Plan(nbytes, hosts, {name: tuple(islice(ports, len(hosts))) for name in names}, options)


def nbytes_of(size_mb: float) -> int:
    return round(size_mb * 1_000_000 / BYTES_PER_VALUE) * BYTES_PER_VALUE


def node_name(rank: int) -> str:
    return f"w{rank + 1}"


def is_node() -> bool:
    return "DPWA_RANK" in os.environ


def run(
    compare: Callable[[argparse.Namespace], None],
    take_part: Callable[[argparse.Namespace], None],
    options: argparse.Namespace,
) -> None:
    """Call `compare` in the parent process, and `take_part` in the processes of the benchmark."""
    try:
        (take_part if is_node() else compare)(options)
    except DpwaError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)


def fail(error: Exception) -> NoReturn:
    """Exit with status 2 for a mistake of the user, and with 1 for a benchmark that failed."""
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {error}\n")
    sys.exit(2 if isinstance(error, UserError) else 1)


def run_again(plan: Plan, command: Sequence[str] = ()) -> list[Any]:
    """Run this script, or `command`, once for each host of the plan. Return the figures by rank.

    Raises `BenchmarkError` if a process fails. Then all other processes are stopped. They are also
    stopped after an interrupt.
    """
    from rich.console import Console

    names = [node_name(rank) for rank in range(len(plan.hosts))]
    told: dict[str, Any] = {}
    is_stopping = False

    def on_line(name: str, stream: str, line: str) -> None:
        if stream == "stdout":
            record = json.loads(line)
            if isinstance(record, dict) and "repetitions_done" in record:
                status.update(f"Repetition {record['repetitions_done']} done")
            else:
                told[name] = record
        elif not is_stopping:
            sys.stderr.write(f"{name}: {line}{os.linesep}")

    def on_exit(name: str, code: int) -> None:
        if code != 0 and not is_stopping:
            raise BenchmarkError(f"process {name} failed (exit code {code})")

    def on_signal(number: signal.Signals, _names: Sequence[str]) -> None:
        nonlocal is_stopping
        is_stopping |= number not in PASSED_ON

    environment = {
        "OMP_NUM_THREADS": "1",  # because the processes share the cores
        # Without this, Gloo looks up the host name, which may be unknown in a container.
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform.startswith("linux") else "lo0",
    }
    status = Console(stderr=True).status("Starting the processes")
    try:
        with tempfile.TemporaryDirectory(prefix="dpwa-bench-") as folder, status:
            path = Path(folder, "plan.json")
            path.write_text(json.dumps(asdict(plan)), encoding="utf-8")
            launch = LaunchSpec(
                command or [sys.executable, *sys.argv], path, names, environment=environment
            )
            run_nodes(launch, on_line, on_exit=on_exit, on_signal=on_signal)
    finally:
        sweep()  # remove the shared memory of killed processes
    return [told.get(name) for name in names]


# One process


@dataclass
class Measure:
    """One measure. All processes take part in a measure at the same time."""

    # returns the seconds of each figure that this process times, or `None` if a round failed
    run: Callable[[], Sample]
    prepare: Work = _nothing  # called before `run`, and not timed


def timed(
    figure: str,
    work: Work,
    *,
    takes_part: bool = True,
    calls: int = 1,
    prepare: Work = _nothing,
    settle: Work = _nothing,
) -> Measure:
    """Return a measure that times `work`, but not `prepare` before it and `settle` after it.

    A process that does not take part waits. If a call is too short for a clock, set `calls`. Then
    a sample is the mean time of `calls` calls in a row.
    """

    def run() -> Sample:
        if not takes_part:
            settle()
            return {}
        before = time.perf_counter()
        for _ in range(calls):
            work()
        seconds = (time.perf_counter() - before) / calls
        settle()
        return {figure: seconds}

    return Measure(run, prepare)


class Session(Closeable):
    """The context of a benchmark's process, with the plan and the Gloo group of all processes.

    Some times are measured only by the process with `index` 0.
    """

    def __init__(self) -> None:
        self.plan, self.index, path = told()
        self.count = len(self.plan.hosts)
        self.name = node_name(self.index)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _leave)
        if namespaces := self.plan.options.get("namespaces"):
            from namespaces import enter

            enter(namespaces[self.plan.hosts[self.index]])
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._dist = dist
        dist.init_process_group(
            "gloo",
            init_method=f"file://{path}.store",
            rank=self.index,
            world_size=self.count,
            timeout=timedelta(seconds=PATIENCE_S),
        )

    def barrier(self) -> None:
        """Wait until all processes have called this method."""
        self._dist.barrier()

    def close(self) -> None:
        self._dist.destroy_process_group()

    def repeat(self, measures: Mapping[str, Measure], repetitions: int) -> None:
        """Run every measure once in each repetition, and send the samples to the parent process.

        Barriers separate the measures, so the work for one measure does not disturb another
        measure.
        """
        names = list(measures)
        samples: dict[str, list[Sample]] = {name: [] for name in names}
        for repetition in range(-WARM_UPS, repetitions):
            start = repetition % len(names)
            for name in names[start:] + names[:start]:
                measures[name].prepare()
                self.barrier()
                sample = measures[name].run()
                self.barrier()
                if repetition >= 0:
                    samples[name].append(sample)
            if self.index == 0 and repetition >= 0:
                tell({"repetitions_done": repetition + 1})
        tell(samples)
        self.barrier()


def told() -> tuple[Plan, int, Path]:
    """Return the plan of this process, its rank, and the path of the plan's file."""
    path = Path(os.environ["DPWA_CONFIG"])
    plan = json.loads(path.read_text(encoding="utf-8"))
    ports = {name: tuple(each) for name, each in plan["ports"].items()}
    hosts = tuple(plan["hosts"])
    return Plan(plan["nbytes"], hosts, ports, plan["options"]), int(os.environ["DPWA_RANK"]), path


def tell(record: object) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)  # without a message, and with all files closed


# Figures


def figures_of(reports: Sequence[Mapping[str, Sequence[Sample]]]) -> dict[str, dict[str, float]]:
    """Return the median, minimum and maximum of every figure in milliseconds, by name.

    If several processes time a figure, a repetition takes as long as its slowest process. A
    repetition counts only if no process failed in it. Raises `BenchmarkError` if more than a tenth
    of the rounds of a measure merged nothing.
    """
    figures: dict[str, dict[str, float]] = {}
    for measure in reports[0]:
        repetitions = list(zip(*(report[measure] for report in reports), strict=True))
        _require_few_failures(measure, repetitions)
        for name, seconds in _slowest(repetitions).items():
            figures[name] = {
                "median_ms": 1000 * median(seconds),
                "min_ms": 1000 * min(seconds),
                "max_ms": 1000 * max(seconds),
                "repetitions": len(seconds),
            }
    return figures


def failures_of(reports: Sequence[Mapping[str, Sequence[Sample]]]) -> dict[str, int]:
    """Return the number of rounds that merged nothing, for each measure with such rounds."""
    counts = {m: sum(list(report[m]).count(None) for report in reports) for m in reports[0]}
    return {measure: count for measure, count in counts.items() if count}


def ratios_of(figures: Mapping[str, Any], ratios: Iterable[Ratio]) -> dict[str, float]:
    """Return the ratios of the measured medians, by names such as `x / (copy + lerp)`."""

    def total(names: Sequence[str]) -> float:
        return sum(figures[name]["median_ms"] for name in names)

    def words(names: Sequence[str]) -> str:
        return names[0] if len(names) == 1 else f"({' + '.join(names)})"

    return {
        f"{words(above)} / {words(below)}": total(above) / total(below)
        for above, below in ratios
        if {*above, *below} <= figures.keys()
    }


def result_of(plan: Plan, ratios: Iterable[Ratio], command: Sequence[str] = ()) -> dict[str, Any]:
    reports = run_again(plan, command)
    figures = figures_of(reports)
    return {
        "processes": len(plan.hosts),
        "repetitions": plan.options["repetitions"],
        "machine": this_machine(),
        "figures": figures,
        "failed_rounds": failures_of(reports),
        "ratios": ratios_of(figures, ratios),
    }


def this_machine() -> dict[str, Any]:
    """Return this machine's description and the versions of packages, without importing torch."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": len(available_cores()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "dpwa": dpwa.__version__,
    }


def _require_few_failures(measure: str, repetitions: Sequence[tuple[Sample, ...]]) -> None:
    samples = [sample for repetition in repetitions for sample in repetition]
    rounds = sum(sample is None or bool(sample) for sample in samples)
    failed = samples.count(None)
    if failed > FAILURES_ALLOWED * rounds:
        raise BenchmarkError(f"{measure}: {failed} of {rounds} rounds merged nothing")


def _slowest(repetitions: Sequence[tuple[Sample, ...]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {}
    for repetition in repetitions:
        done = [sample for sample in repetition if sample is not None]
        if len(done) < len(repetition):
            continue
        for name in dict.fromkeys(name for sample in done for name in sample):
            slowest = max(sample[name] for sample in done if name in sample)
            seconds.setdefault(name, []).append(slowest)
    return seconds


# Options and output


def add_options(parser: argparse.ArgumentParser, measures: Sequence[str], processes: int) -> None:
    """Add the common options of `plane`, `collectives` and `tables`."""
    parser.add_argument("--processes", type=at_least(2), default=processes)
    parser.add_argument(
        "--repetitions", type=at_least(1), default=9, help="number of repetitions of each measure"
    )
    parser.add_argument(
        "--only",
        type=lambda text: tuple(one_of(name.strip(), measures) for name in text.split(",")),
        default=tuple(measures),
        metavar="NAMES",
        help="the measures to run, separated by commas (all)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, and tables to stderr")


def at_least(least: float) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = type(least)(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least} (got {text})")
        return value

    return number


def one_of(name: str, known: Sequence[str]) -> str:
    if name not in known:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)} (got {name})")
    return name


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))


def show(
    result: Mapping[str, Any],
    heading: str,
    titles: Mapping[str, str],
    *,
    as_json: bool,
    more: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Print the result of `result_of`, and the numbers in `more` next to the ratios.

    If `as_json`, print JSON on standard output and the tables on standard error.
    """
    out = sys.stderr if as_json else sys.stdout
    machine = result["machine"]
    out.write(
        f"{heading}, {result['processes']} processes of one thread on {machine['cores']} cores "
        f"({machine['cpu']}), {result['repetitions']} interleaved repetitions\n"
    )
    rows = [
        [name, titles[name], *(f"{figure[k]:.3g}" for k in ("median_ms", "min_ms", "max_ms"))]
        for name, figure in result["figures"].items()
    ]
    print_table(["figure", "meaning", "median ms", "min", "max"], rows, out, texts=2)
    for what, values in {"ratio of medians": result["ratios"], **(more or {})}.items():
        if values:
            print_table([what, ""], [[name, value] for name, value in values.items()], out)
    for measure, count in result["failed_rounds"].items():
        out.write(f"{measure}: {count} rounds merged nothing\n")
    if as_json:
        print(json.dumps(result, indent=2))


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], out: Any = None, texts: int = 1
) -> None:
    """Print a table on `out`, or on standard error. The first `texts` columns contain text."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for position, heading in enumerate(headings):
        justify = "left" if position < texts else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(file=out or sys.stderr, highlight=False, width=None if out is None else 120).print(
        table
    )
