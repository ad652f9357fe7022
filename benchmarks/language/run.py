"""Compare systems that train a small language model in several processes.

Conditions: calm, kill, slow or both. With kill, a worker gets SIGKILL every 12 s and is restarted
at once. torchrun, `dpwa launch --restart on-failure --spare` or this program restarts the worker.
With slow, the last worker sleeps before each step, for about the time of four steps.

  run --seconds 30                                     a short comparison (5 minutes)
  run --conditions calm,kill,slow,both --seeds 3       the whole comparison (2 hours)
  run --systems gossip,ddp,symmetric                   some systems, or any algorithm of dpwa
  run --torchft-python ~/torchft/bin/python --own-text
  run --optimizer muon --workers 8                     instead of AdamW and four workers
  run --only-show                                      tables and pictures of the runs in --out
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from figures import draw, figures_of, table

from dpwa.config import load_config
from dpwa.data.shared_memory import sweep
from dpwa.errors import UserError
from dpwa.launch.ports import free_ports

HERE = Path(__file__).resolve().parent
OPTIMIZERS = ("adamw", "sgd", "muon")
WORKERS = 4
CONDITIONS = ("calm", "kill", "slow", "both")
FIRST_KILL_S, KILL_EVERY_S = 15, 12
EVALUATE_S = 5.0
START_S, LAST_EVALUATION_S = 120.0, 10.0  # time limits for the start and for the last evaluation
MAX_RESTARTS = 40
POLL_S = 0.02
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True)
class System:
    """A compared training program, with its settings and the package that it needs."""

    script: str
    settings: dict[str, Any] = field(default_factory=dict)  # for the configuration of dpwa
    package: str = "torch"


SYSTEMS = {
    "together": System("gossip.py", {"algorithm": "together"}, "dpwa"),
    "gossip": System("gossip.py", {"merge": "delta"}, "dpwa"),
    "gossip-tcp": System("gossip.py", {"merge": "delta", "transport": "tcp"}, "dpwa"),
    "all_reduce": System(
        "all_reduce.py",
        {"merge": "delta", "fetch_probability": 0.2, "collective_timeout_s": 5},
        "dpwa",
    ),
    "ddp": System("ddp.py"),
    "torchft": System("torchft_steps.py", package="torchft"),
    "torchft-diloco": System("torchft_diloco.py", package="torchft"),
    "hivemind": System("hivemind_averaging.py", package="hivemind"),
    "alone": System("alone.py"),
}


class RunError(Exception):
    """The workers of a system did not start, or failed too often."""


def main() -> int:
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.only_show:
        # Children of a killed worker become children of this process, so that it can end them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            run_all(options)
        except KeyboardInterrupt:
            return 130
        finally:
            end_all()
    show(options)
    return 0


def parse_arguments() -> argparse.Namespace:
    lines = (__doc__ or "").split("\n\n", 1)
    parser = argparse.ArgumentParser(
        prog="run", description=lines[0], epilog=lines[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--conditions", type=_conditions, default=["calm"], help=f"{','.join(CONDITIONS)} (calm)")
    add(
        "--systems", type=lambda text: text.split(","), default=[*SYSTEMS],
        help=f"some of {','.join(SYSTEMS)}, or names of dpwa's algorithms (all)",
    )  # fmt: skip
    add("--seeds", type=int, default=1, help="number of seeds, from 1 up (%(default)s)")
    add("--seconds", type=float, default=90.0, help="duration of each run (%(default)g)")
    add("--workers", type=int, default=WORKERS, help="number of workers (%(default)s)")
    add("--slow-ms", type=float, default=160.0, help="sleep before each slow step (%(default)g)")
    add("--optimizer", choices=OPTIMIZERS, default=OPTIMIZERS[0], help="(%(default)s)")
    add("--own-text", action="store_true", help="each worker trains on its own part of the text")
    add("--torchft-python", default=sys.executable, help="Python that can import torchft 0.2.0")
    add("--hivemind-python", default=sys.executable, help="Python that can import hivemind 1.1.12")
    add("--cold", action="store_true", help="restart dpwa's workers without a spare")
    add("--out", type=Path, default=Path("language-output"), help="output folder (%(default)s)")
    add("--only-show", action="store_true", help="show the results in the folder, without a run")
    options = parser.parse_args()
    if min(options.seeds, options.workers, options.seconds) < 1:
        parser.error("--seeds, --workers and --seconds must be at least 1")
    kills = not options.only_show and {"kill", "both"} & set(options.conditions)
    if kills and int(options.seconds) <= FIRST_KILL_S:
        parser.error(f"--seconds: expected more than {FIRST_KILL_S}, the time of the first kill")
    return options


def _conditions(text: str) -> list[str]:
    if unknown := set(text.split(",")).difference(CONDITIONS):
        expected = f"expected some of {','.join(CONDITIONS)} (got {', '.join(unknown)})"
        raise argparse.ArgumentTypeError(expected)
    return text.split(",")


def run_all(options: argparse.Namespace) -> None:
    """Run all systems one after the other, with each seed and under each condition."""
    names = [name for name in options.systems if _is_here(name, options)]
    if not names:
        sys.exit("run: none of the systems can run here")
    for seed in range(1, options.seeds + 1):
        for condition in options.conditions:
            turn = seed % len(names)
            for name in names[turn:] + names[:turn]:
                if name == "alone" and condition != "calm":
                    continue  # because there is no other worker to kill or to slow down
                print(f"{time.strftime('%H:%M:%S')} {condition} {name}, seed {seed}", flush=True)
                try:
                    Run(name, condition, seed, options).run()
                except RunError as error:
                    print(f"{name} did not run: {error}", file=sys.stderr)
                finally:
                    end_all()


def system_of(name: str) -> System:
    return SYSTEMS.get(name) or System("gossip.py", {"algorithm": name}, "dpwa")


def python_of(system: System, options: argparse.Namespace) -> str:
    return str(getattr(options, f"{system.package}_python", sys.executable))


def _is_here(name: str, options: argparse.Namespace) -> bool:
    """Return whether a system can run on this machine. Print the problem if it cannot."""
    system, problem = system_of(name), ""
    if system.package in ("torchft", "hivemind"):
        command = [python_of(system, options), "-c", f"import {system.package}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            problem = done.stderr.strip().splitlines()[-1] if done.returncode else ""
        except OSError as error:
            problem = f"{command[0]}: {error.strerror}"
    elif system.package == "dpwa":
        try:
            load_config(config_of(system, 1, options.workers))
        except UserError as error:
            problem = str(error)
    if problem:
        print(f"{name} is skipped: {problem}", file=sys.stderr)
    return not problem


def config_of(system: System, seed: int, workers: int) -> dict[str, Any]:
    nodes = [
        {"name": f"w{index}", "host": "127.0.0.1", "port": port}
        for index, port in enumerate(free_ports(workers))
    ]
    return {"nodes": nodes, "seed": seed, **system.settings}


def setting_of(condition: str, options: argparse.Namespace) -> str:
    """Return the name of a table: the condition, and options that differ from their defaults."""
    optimizer = options.optimizer if options.optimizer != OPTIMIZERS[0] else ""
    workers = f"{options.workers}-workers" if options.workers != WORKERS else ""
    text = "own-text" if options.own_text else ""
    start = "cold" if options.cold else ""
    return "-".join(filter(None, (condition, optimizer, workers, text, start)))


class Run:
    """A run of one system under one condition, with one seed."""

    def __init__(self, name: str, condition: str, seed: int, options: argparse.Namespace) -> None:
        self.name, self.condition, self.options = name, condition, options
        self.system, self.python = system_of(name), python_of(system_of(name), options)
        self.count = 1 if name == "alone" else options.workers
        self.setting = setting_of(condition, options)
        self.title = f"{self.setting}-{name}-{seed}"
        self.folder = (options.out / "raw" / self.title).absolute()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.plan = {
            "seconds": options.seconds,
            "evaluate_s": min(EVALUATE_S, options.seconds),
            "seed": seed,
            "workers": self.count,
            "optimizer": options.optimizer,
            "own_text": options.own_text,
            "slow_worker": self.count - 1 if condition in ("slow", "both") else None,
            "slow_ms": options.slow_ms,
        }
        (self.folder / "plan.json").write_text(json.dumps(self.plan))
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("DPWA_")} | {
            "LANGUAGE_RUN": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONUNBUFFERED": "1",
            "RUST_LOG": "warn",  # otherwise torchft logs each step
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: list[dict[str, Any]] = []
        self.restarts = 0

    def run(self) -> None:
        """Start the workers, kill some of them, end all, and write the figures of the run."""
        began, busy, own = time.monotonic(), busy_s(), own_s()
        self.start_helpers()
        for index in range(self.count):
            self.start(index)
        self.watch(self.let_begin())
        end_all()
        records = {index: self.rows(index) for index in range(self.count)}
        others = (busy_s() - busy) - (own_s() - own)
        result = {
            "system": self.name,
            "condition": self.condition,
            "setting": self.setting,
            **self.plan,
            "settings": self.system.settings,
            "restarts": sum(len(self.rows(i, "ready")) - 1 for i in range(self.count)),
            "machine": {
                "platform": platform.platform(),
                "cores": len(os.sched_getaffinity(0)),
                "python": platform.python_version(),
            },
            "others_cores": max(0.0, others) / (time.monotonic() - began),
            **figures_of(records, self.plan, self.kills),
        }
        (self.options.out / f"{self.title}.json").write_text(json.dumps(result, indent=1))

    def start_helpers(self) -> None:
        """Start the other processes of the system, or write the configuration of the nodes."""
        if self.system.package == "dpwa":
            path = self.folder / "nodes.json"  # JSON is valid YAML
            path.write_text(json.dumps(config_of(self.system, self.plan["seed"], self.count)))
            self.environment["DPWA_CONFIG"] = str(path)
        elif self.system.package == "torchft":
            (port,) = free_ports(1)
            self.environment["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
            lighthouse = str(Path(self.python).with_name("torchft_lighthouse"))
            options = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms"]
            options += ["10000", "--heartbeat_timeout_ms", "500", "--bind", f"0.0.0.0:{port}"]
            self.spawn("lighthouse", [lighthouse, *options])
        elif self.system.package == "hivemind":
            self.spawn("dht", [self.python, self.system.script, "dht"])

    def start(self, index: int) -> None:
        """Start a worker. For the first worker, torchrun or `dpwa launch` starts all workers."""
        script = self.system.script
        launchers = {
            "ddp": [
                *("-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1"),
                *("--nproc-per-node", str(self.count), "--max-restarts", str(MAX_RESTARTS)),
                script,
            ],
            "dpwa": [
                *("-m", "dpwa", "launch", "-c", self.environment.get("DPWA_CONFIG", "")),
                *("--restart", f"on-failure:{MAX_RESTARTS}"),
                *([] if self.options.cold else ["--spare"]),
                *("--", self.python, script),
            ],
        }
        launcher = launchers.get(self.name) or launchers.get(self.system.package)
        if launcher is None:
            worker = {"LANGUAGE_WORKER": str(index)}
            self.spawn(f"w{index}", [self.python, script], worker)
        elif index == 0:
            self.spawn("w0", [self.python, *launcher])

    def spawn(self, name: str, command: list[str], more: dict[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=HERE, env={**self.environment, **(more or {})},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def let_begin(self) -> float:
        """Wait until all workers have imported their modules. Return the time of second 0."""
        deadline = time.monotonic() + START_S
        while not all(self.rows(index, "ready") for index in range(self.count)):
            ended = [name for name, each in self.processes.items() if each.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RunError(f"not all workers have started. See {self.folder}")
            time.sleep(POLL_S)
        begin = time.monotonic() + 0.2
        (self.folder / "go.new").write_text(str(begin))
        (self.folder / "go.new").rename(self.folder / "go")
        return begin

    def watch(self, begin: float) -> None:
        """Kill and restart workers, until all workers have done the last evaluation."""
        seconds, rng = self.plan["seconds"], random.Random(self.plan["seed"])
        times = range(FIRST_KILL_S, int(seconds), KILL_EVERY_S)
        due = [(s, rng.randrange(self.count)) for s in times if self.condition in ("kill", "both")]
        while (now := time.monotonic() - begin) < seconds + LAST_EVALUATION_S:
            if now >= seconds:
                if all(self.has_evaluated_last(index) for index in range(self.count)):
                    break
                time.sleep(0.2)
            elif due and now >= due[0][0]:
                self.kill(due.pop(0)[1], begin)
            for index in range(self.count):
                process = self.processes.get(f"w{index}")
                if process and process.poll() is not None and now < seconds:
                    self.restarts += 1
                    if self.restarts > MAX_RESTARTS:
                        raise RunError(f"w{index} fails too often. See {self.folder}")
                    end(set(children(os.getpid())) - {p.pid for p in self.processes.values()})
                    self.start(index)
            time.sleep(POLL_S)

    def kill(self, index: int, begin: float) -> None:
        pid = self.rows(index, "ready")[-1]["pid"]
        if pid in descendants(os.getpid()):  # false while the worker is restarted
            os.kill(pid, signal.SIGKILL)
            self.kills.append({"s": time.monotonic() - begin, "worker": index})

    def has_evaluated_last(self, index: int) -> bool:
        found = self.rows(index, "loss")
        return bool(found) and found[-1]["mark"] > self.plan["seconds"] - self.plan["evaluate_s"]

    def rows(self, index: int, event: str = "") -> list[dict[str, Any]]:
        """Return the events of one kind in a worker's file. A kill can leave an incomplete line."""
        found = []
        with suppress(FileNotFoundError):
            for line in (self.folder / f"w{index}.jsonl").read_text().splitlines():
                with suppress(ValueError):
                    found.append(json.loads(line))
        return [row for row in found if event in ("", row["event"])]


# Processes


def children(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            yield from map(int, path.read_text().split())


def descendants(pid: int) -> list[int]:
    found = list(children(pid))
    return found + [each for child in found for each in descendants(child)]


def end(pids: Sequence[int] | set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_all() -> None:
    """End all descendants of this process."""
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    while found := descendants(os.getpid()):
        end(found)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(POLL_S)
    sweep()  # remove the shared memory of dpwa's workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def busy_s() -> float:
    """Return the seconds for which the cores of this machine were busy, as a sum."""
    fields = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


# Output


def show(options: argparse.Namespace) -> None:
    """Print a table and draw a picture for each condition with runs in the folder."""
    runs = [json.loads(path.read_text()) for path in options.out.glob("*.json")]
    if not runs:
        print(f"run: there are no runs in {options.out}", file=sys.stderr)
    order = list(dict.fromkeys([*SYSTEMS, *sorted(run["system"] for run in runs)]))
    runs.sort(key=lambda run: (CONDITIONS.index(run["condition"]), order.index(run["system"])))
    for setting in dict.fromkeys(run["setting"] for run in runs):
        found = [run for run in runs if run["setting"] == setting]
        print(f"\n{setting}\n\n{table(found)}")
        if find_spec("matplotlib") is None:
            print("No picture: matplotlib is not installed.", file=sys.stderr)
        else:
            path = options.out / f"{setting}.png"
            draw(found, order, path)
            print(f"\n{path}")


if __name__ == "__main__":
    sys.exit(main())
