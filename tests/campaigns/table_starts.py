"""Workers that make tables though they start far apart, stand still, or die meanwhile.

Usage: table_starts.py starts|stops|holds [--runs N] [--seed SEED] [--at-once N] [-v]

Three processes use `dpwa.multiverso` as its documentation says. `starts`: each begins up to 5 s
late, and there is no fault: all three must take part, the first values of worker 0 count, and
every sum is exact. `stops`: one of them is stopped for 2.5 or 6 s at one step of the making of a
table: everything is right as well, or the worker that was left out gets an error. A run that ends
well with wrong values breaks the promise. `holds`: one is killed while another one holds the GIL
for up to 4 s, as a sort or a pickle does: that one and the third lose nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import dpwa.multiverso as mv
from dpwa.errors import DpwaError, TableLostError
from dpwa.launch.ports import free_ports
from dpwa.testing import Fault, FaultPlan

WORKERS = 3
ROUNDS = 4
SIZE = 12
BASE = 16  # in which the digits of a value say how often each worker has added to it
LATEST_S = 5.0
STOPS_S = (2.5, 6.0)
LONGEST_HOLD_S = 4.0
RUNS = {"starts": 50, "stops": 20, "holds": 200}
TIMEOUT_S = 20.0
LIMIT_S = 90.0  # a run that takes longer hangs
POINTS = (
    "table.holdings.told",
    "table.made",
    "table.add.sent",
    "table.add.applied",
    "table.add.forwarded",
    "table.add.replicated",
    "table.add.acknowledged",
    "table.ready",
    "table.get.asked",
    "table.get.answered",
)
STOPPED_TOO_LONG = 3  # exit status of a worker that was told that it was left out


@dataclass(frozen=True)
class Course:
    """What one worker does in a run.

    Attributes:
        late_s: how long it waits before `init`.
        pause_s: and between `init` and its first table.
        is_sync: whether it is in step with the others.
        stop: fault point and how often it is reached, where this worker stops; or nothing.
        hold: in which round and for how many seconds it holds the GIL; or nothing.
        death: in which round and after how many seconds of it this worker is killed; or nothing.
    """

    late_s: float = 0.0
    pause_s: float = 0.0
    is_sync: bool = False
    stop: tuple[str, int] | None = None
    hold: tuple[int, float] | None = None
    death: tuple[int, float] | None = None


@dataclass
class Run:
    """Three workers, and what is known of them.

    Attributes:
        courses: of the workers.
        stop_s: for how long the one that stops stands still.
        transport: of the configuration.
        statuses: exit status of each that has ended.
        stopped: when the one that stops did.
    """

    number: int
    seed: int
    courses: list[Course]
    stop_s: float = 0.0
    transport: str = "auto"
    folder: Path = Path()
    pids: dict[int, int] = field(default_factory=dict)  # worker by process
    statuses: dict[int, int] = field(default_factory=dict)
    stopped: float | None = None
    began: float = field(default_factory=time.monotonic)
    is_hanging: bool = False

    def __str__(self) -> str:
        what = "sync" if self.courses[0].is_sync else "async"
        when = ", ".join(f"{c.late_s:.2f}+{c.pause_s:.2f}" for c in self.courses)
        stops = [
            f"w{i + 1} at {c.stop[0]}:{c.stop[1]}" for i, c in enumerate(self.courses) if c.stop
        ]
        text = f"run {self.number} (seed {self.seed}, {what}, {self.transport}, starts {when})"
        text += "".join(f", {stop} for {self.stop_s} s" for stop in stops)
        for index, course in enumerate(self.courses, start=1):
            for what, fault in (("holds the GIL", course.hold), ("dies", course.death)):
                if fault is not None:
                    text += f", w{index} {what} in round {fault[0]}: {fault[1]:.2f} s"
        return text


# The workers


def work(course: Course) -> dict[str, object]:
    """Do what a program for Multiverso does; return what was seen."""
    time.sleep(course.late_s)
    mv.init(sync=course.is_sync)
    time.sleep(course.pause_s)
    me, read = mv.worker_id(), []
    table = mv.ArrayTableHandler(
        SIZE, init_value=[(me + 1) * BASE**WORKERS] * SIZE, dtype="float64"
    )
    matrix = mv.MatrixTableHandler(2, 3, dtype="float64")
    if not course.is_sync:
        mv.barrier()
    for round_ in range(ROUNDS):
        if course.death is not None and course.death[0] == round_:
            kill = os.kill, (os.getpid(), signal.SIGKILL)
            threading.Timer(course.death[1], *kill).start()
        if course.hold is not None and course.hold[0] == round_:
            ctypes.PyDLL(None).usleep(int(course.hold[1] * 1e6))
        table.add([BASE**me] * SIZE)
        matrix.add([[BASE**me] * 3], row_ids=[me % 2])
        if not course.is_sync:
            mv.barrier()
        read.append(table.get().tolist())
        if not course.is_sync:
            mv.barrier()
    mv.barrier()
    rows = matrix.get().tolist()
    mv.barrier()
    names = list(mv._session.tables.members)
    mv.shutdown()
    return {"read": read, "rows": rows, "members": names}


def be_worker(course: Course, index: int, folder: Path) -> int:
    """Work in a process of its own; return its exit status."""
    if course.stop is not None:
        FaultPlan((Fault(*course.stop, "SIGSTOP"),)).install()
    os.environ |= {"DPWA_NAME": f"w{index + 1}", "DPWA_CONFIG": str(folder / "dpwa.yaml")}
    try:
        found = work(course)
    except TableLostError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return STOPPED_TOO_LONG
    except DpwaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    (folder / f"w{index + 1}.json").write_text(json.dumps(found))
    return 0


def fork(run: Run, index: int) -> None:
    """Start a worker: it has imported everything already, so that many cost little."""
    pid = os.fork()
    if pid:
        run.pids[pid] = index
        return
    status = 2
    try:
        output = os.open(run.folder / f"w{index + 1}.log", os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = be_worker(run.courses[index], index, run.folder)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


# The runs


def drawn(kind: str, number: int, seed: int) -> Run:
    """Draw what happens in a run."""
    rng = random.Random(f"{kind} {seed} {number}")
    is_sync, transport = bool(number % 2), rng.choice(["auto", "auto", "tcp"])
    if kind == "starts":
        pauses = [rng.choice([0.0, 0.0, rng.uniform(0.0, 2.0)]) for _ in range(WORKERS)]
        starts = [rng.uniform(0.0, LATEST_S) for _ in range(WORKERS)]
        if rng.random() < 0.5:  # the others are there already when the last one comes
            starts = [rng.uniform(0.0, 1.0) for _ in range(WORKERS)]
            starts[rng.randrange(WORKERS)] = rng.uniform(3.0, LATEST_S)
        courses = [Course(*times, is_sync) for times in zip(starts, pauses, strict=True)]
        return Run(number, seed, courses, transport=transport)
    victim, late_s = rng.randrange(WORKERS), [rng.uniform(0.0, 0.3) for _ in range(WORKERS)]
    if kind == "holds":
        # The victim waits in a barrier for who holds the GIL, unless it dies before.
        round_, hold_s = rng.randrange(ROUNDS), rng.uniform(0.0, LONGEST_HOLD_S)
        dies_s = rng.uniform(0.0, rng.choice([0.1, hold_s]))
        courses = [Course(late, 0.0, is_sync) for late in late_s]
        courses[victim] = replace(courses[victim], death=(round_, dies_s))
        holder = (victim + rng.choice([1, 2])) % WORKERS
        courses[holder] = replace(courses[holder], hold=(round_, hold_s))
        return Run(number, seed, courses, transport=transport)
    stop = POINTS[number % len(POINTS)], rng.choice([1, 1, 1, 2, 3])
    courses = [
        Course(late, 0.0, is_sync, stop if index == victim else None)
        for index, late in enumerate(late_s)
    ]
    return Run(number, seed, courses, STOPS_S[number // len(POINTS) % len(STOPS_S)], transport)


def begin(run: Run, folder: Path) -> None:
    """Start the workers of a run."""
    run.folder = folder / str(run.number)
    run.folder.mkdir()
    nodes = [
        {"name": f"w{index}", "host": "127.0.0.1", "port": port}
        for index, port in enumerate(free_ports(WORKERS), start=1)
    ]
    settings = {"transport": run.transport, "collective_timeout_s": TIMEOUT_S}
    config = {"nodes": nodes, "log_level": "info", **settings}
    (run.folder / "dpwa.yaml").write_text(json.dumps(config))
    run.began = time.monotonic()
    for index in range(WORKERS):
        fork(run, index)


def look_after(run: Run) -> bool:
    """Reap and wake processes of a run; return whether it is over."""
    for pid, index in run.pids.items():
        if index in run.statuses:
            continue
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found and os.WIFSTOPPED(status):
            run.stopped = time.monotonic()
        elif found:
            run.statuses[index] = os.waitstatus_to_exitcode(status)
    now = time.monotonic()
    if run.stopped is not None and now - run.stopped >= run.stop_s:
        run.stopped = None
        signal_all(run, signal.SIGCONT)
    if now - run.began > LIMIT_S:
        run.is_hanging = True
        signal_all(run, signal.SIGKILL)
    return len(run.statuses) == WORKERS


def signal_all(run: Run, number: signal.Signals) -> None:
    """Send a signal to all processes of a run that live."""
    for pid, index in run.pids.items():
        if index not in run.statuses:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def verdict(run: Run) -> str:
    """Return `right`, `told` if a worker was left out and has said so, or what is wrong."""
    if run.is_hanging:
        return f"hangs after {LIMIT_S:g} s"
    victim = next((i for i, c in enumerate(run.courses) if c.stop or c.death), None)
    is_told = run.statuses.get(victim) in (STOPPED_TOO_LONG, -signal.SIGKILL)
    wrong = []
    for index in range(WORKERS):
        status = run.statuses[index]
        if status == 0:
            found = json.loads((run.folder / f"w{index + 1}.json").read_text())
            if problem := what_is_wrong(found, victim if is_told else None):
                wrong.append(f"w{index + 1}: {problem}")
        elif not (is_told and index == victim):
            log = (run.folder / f"w{index + 1}.log").read_text().strip().splitlines()
            wrong.append(f"w{index + 1}: exit status {status}: {log[-1] if log else ''}")
    if victim is None and any(len(members_of(run, i)) < WORKERS for i in range(WORKERS)):
        wrong.append(f"members at the end: {[members_of(run, i) for i in range(WORKERS)]}")
    was_told = run.statuses.get(victim) == STOPPED_TOO_LONG
    return "; ".join(wrong) or ("told" if was_told else "right")


def members_of(run: Run, index: int) -> list[str]:
    """Return who took part in the end, as one worker has seen it; all if it has not ended well."""
    path = run.folder / f"w{index + 1}.json"
    return json.loads(path.read_text())["members"] if path.exists() else ["?"] * WORKERS


def what_is_wrong(found: dict[str, list], left_out: int | None, workers: int = WORKERS) -> str:
    """Compare what one worker has seen with what there is to see.

    Args:
        found: by the worker.
        left_out: who was, and has said so: for the others it is as if it had died.
        workers: how many there are.
    """
    for round_, values in enumerate(found["read"], start=1):
        if left_out is None and len(set(values)) > 1:
            return f"read {round_} is in part {set(values)}"
        for value in set(values):
            first, *counts = digits(value, workers)
            expected = [first if left_out == 0 else 1, *[round_] * workers]
            if left_out is not None:
                expected[1 + left_out] = min(round_, counts[left_out])
            if [first, *counts] != expected or not 1 <= first <= workers:
                return f"read {round_} has {[first, *counts]}, expected {expected}"
    for row, values in enumerate(found["rows"]):
        for counts in (digits(value, workers)[1:] for value in set(values)):
            expected = [ROUNDS * (worker % 2 == row) for worker in range(workers)]
            if left_out is not None:
                expected[left_out] = min(expected[left_out], counts[left_out])
            if counts != expected:
                return f"row {row} has {counts}, expected {expected}"
    return ""


def digits(value: float, workers: int) -> list[int]:
    """Return whose first value it is, and how often each worker has added to it."""
    counts = [int(value) // BASE**worker % BASE for worker in range(workers)]
    return [int(value) // BASE**workers, *counts]


def run_all(options: argparse.Namespace, folder: Path) -> Counter[str]:
    """Let runs go on beside each other; return how often they ended how."""
    waiting = [drawn(options.kind, number, options.seed) for number in options.numbers]
    going: list[Run] = []
    ends: Counter[str] = Counter()
    while waiting or going:
        while waiting and len(going) < options.at_once:
            going.append(waiting.pop(0))
            begin(going[-1], folder)
        for run in [run for run in going if look_after(run)]:
            going.remove(run)
            ended = verdict(run)
            ends[ended if ended in ("right", "told") else "wrong"] += 1
            print(f"{run}: {ended}", flush=True)
            if options.verbose and ended not in ("right", "told"):
                show_logs(run)
        time.sleep(0.01)
    return ends


def show_logs(run: Run) -> None:
    """Print what the workers of a run have said."""
    for log in sorted(run.folder.glob("w*.log")):
        print(f"--- {log.name}\n{log.read_text()}", flush=True)


def main() -> int:
    """Run what is asked for; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=RUNS)
    parser.add_argument("--runs", type=int, help="default: 50 starts, 20 stops, or 200 holds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=3, help="runs beside each other")
    parser.add_argument("--only", type=int, help="one run, by its number")
    parser.add_argument("-v", "--verbose", action="store_true", help="show logs of what went wrong")
    options = parser.parse_args()
    runs = options.runs or RUNS[options.kind]
    options.numbers = range(runs) if options.only is None else [options.only]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dpwa-starts-") as folder:
        ends = run_all(options, Path(folder))
    took_s = time.monotonic() - began
    told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    print(f"{options.kind}, seed {options.seed}: {told}, in {took_s:.0f} s")
    return 1 if ends["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
