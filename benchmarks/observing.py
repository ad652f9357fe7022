"""Measure the cost of watching two nodes with run logs, metrics and an open dashboard.

Blocks of training steps with watching and without watching alternate. Both nodes are always in the
same mode, and make new connections for each block. In watched blocks, `dpwa dashboard` serves the
run, and a process reads the stream of the dashboard. Metrics are read every five seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, closing
from statistics import median

from common import Session, plan_of, print_table, run, run_again, tell
from training_step import Step

MODES = ("watched", "alone")
SCRAPED_EVERY_S = 5.0
READER = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as stream:
    for line in stream:
        sys.stdout.buffer.write(line)
"""
BEGUN_S = 3.0  # time before each measurement, in which the dashboard finds all nodes


def main() -> None:
    run(_compare, _train, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("cnn", "resnet18"), default="cnn")
    parser.add_argument("--blocks", type=int, default=8, help="blocks that are watched")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a block")
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    nodes = run_again(plan_of(50_000_000, MODES))
    ratios = [w / a for node in nodes for w, a in zip(node["watched"], node["alone"], strict=True)]
    watched_ms, alone_ms = (
        1000 * median(seconds for node in nodes for seconds in node[mode]) for mode in MODES
    )
    rows = [[options.model, watched_ms, alone_ms, f"{median(ratios):.4f}"]]
    print_table(["model", "watched, ms", "alone, ms", "ratio of blocks, median"], rows)
    print(
        json.dumps(
            {
                "watched_ms": watched_ms,
                "alone_ms": alone_ms,
                "ratio": median(ratios),
                "least_ratio": min(ratios),
                "most_ratio": max(ratios),
                "read_bytes": sum(node["read_bytes"] for node in nodes),
            }
        )
    )


def _train(options: argparse.Namespace) -> None:
    with Session() as session:
        tell(_alternate(session, options))


def _alternate(session: Session, options: argparse.Namespace) -> dict:
    step = Step(options.model)
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    read_bytes = 0
    for block in range(-1, options.blocks):  # the first block does not count
        for mode in MODES if block % 2 else MODES[::-1]:
            seconds, nbytes = _block(session, step, mode, options.seconds)
            if block >= 0:
                found[mode].append(seconds)
                read_bytes += nbytes
    return {**found, "read_bytes": read_bytes}


def _block(session, step, mode: str, seconds: float) -> tuple[float, int]:
    """Train in one mode. Return the median seconds of a step, and the bytes that were read."""
    from measures import DpwaPyTorchAdapter, meet

    config = session.plan.config(mode, transport="auto")
    with ExitStack() as stack:
        if mode == "watched":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            changed = {"run_log": folder, "metrics": {"port": 0}}
            config = config.model_validate({**config.model_dump(), **changed})
        adapter = stack.enter_context(DpwaPyTorchAdapter(step.model, session.name, config))
        meet(adapter)
        session.barrier()
        watching = mode == "watched" and session.index == 0
        reader = stack.enter_context(closing(_Reader(adapter))) if watching else None
        _steps(step, adapter, BEGUN_S)
        session.barrier()
        taken = _steps(step, adapter, seconds)
        session.barrier()
        return median(taken), 0 if reader is None else reader.nbytes


def _steps(step, adapter, seconds: float) -> list[float]:
    taken, end = [], time.perf_counter() + seconds
    while (before := time.perf_counter()) < end:
        step(adapter)
        taken.append(time.perf_counter() - before)
    return taken


class _Reader:
    """A process with a dashboard, a process that reads its stream, and a reader of the metrics."""

    def __init__(self, adapter) -> None:
        place = adapter.connection.node.endpoint.removeprefix("tcp://")
        command = [sys.executable, "-m", "dpwa", "dashboard", "--at", place, "--port", "0"]
        # Without the variables of this node, because the dashboard is not a node.
        env = {name: text for name, text in os.environ.items() if not name.startswith("DPWA_")}
        self._dashboard = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        url = re.search(r"http://\S+", self._dashboard.stdout.readline())[0]
        reader = [sys.executable, "-c", READER, f"{url}api/stream"]
        self._client = subprocess.Popen(reader, stdout=subprocess.PIPE)
        self.nbytes = 0
        threading.Thread(target=self._count, daemon=True).start()
        report = adapter.connection.node.report()
        self._metrics = report["metrics"]["url"]
        self._stop = threading.Event()
        self._scraper = threading.Thread(target=self._scrape)
        self._scraper.start()

    def close(self) -> None:
        self._stop.set()
        self._scraper.join()
        for process in (self._client, self._dashboard):
            process.terminate()
            process.wait()

    def _count(self) -> None:
        while data := self._client.stdout.read1(1 << 16):
            self.nbytes += len(data)

    def _scrape(self) -> None:
        while not self._stop.wait(SCRAPED_EVERY_S):
            with urllib.request.urlopen(self._metrics) as answer:
                answer.read()


if __name__ == "__main__":
    main()
