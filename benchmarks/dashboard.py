"""Measure the frames and the memory of the dashboard's page with many real nodes.

The nodes run in a few processes and gossip small arrays. At the same time, a second browser shows
an empty page. The machine causes the delays of the empty page. The script needs Chromium and
`pip install -c constraints.txt '.[e2e]'`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from common import BenchmarkError, fail, print_table

from dpwa import DpwaConnection
from dpwa.errors import DpwaError
from dpwa.launch.ports import free_ports

PROCESSES = 4
STEP_S = 1.0
SETTLED_S = 15.0  # time before the measurement, in which the page draws all nodes
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# This JavaScript counts the frames and the long tasks of the page.
MEASURE = """
window.measured = {longest_frame_ms: 0, longest_task_ms: 0, tasks: 0, frames: 0, slow_frames: 0};
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    measured.tasks++;
    measured.longest_task_ms = Math.max(measured.longest_task_ms, entry.duration);
  }
}).observe({type: "longtask"});
let before = performance.now();
requestAnimationFrame(function frame(now) {
  const took = now - before;
  before = now;
  measured.frames++;
  if (took > 200) measured.slow_frames++;
  measured.longest_frame_ms = Math.max(measured.longest_frame_ms, took);
  requestAnimationFrame(frame);
});
"""


def main() -> None:
    options = _options()
    if options.names:
        _gossip(json.loads(sys.stdin.readline()), options.names)
        return
    try:
        _measure(options)
    except DpwaError as error:
        fail(error)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0, help="time that the page is open")
    parser.add_argument(
        "--before-minutes",
        type=float,
        default=0.0,
        help="time of the run before the page opens",
    )
    parser.add_argument("--names", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def _gossip(config: dict[str, Any], names: Sequence[str]) -> None:
    """Run these nodes in this process until standard input ends."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(DpwaConnection(name, config)) for name in names]
        ends = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
        for step in itertools.count(1):
            values = np.full(1000, 1.0 / step, np.float32)
            for node in nodes:
                node.update_send(values, 1.0 / step)
            if ends.wait(STEP_S):
                return
            for node in nodes:
                node.update_wait(1.0 / step)


def _measure(options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        place = stack.enter_context(_nodes(options.nodes))
        time.sleep(60 * options.before_minutes)
        url = stack.enter_context(_dashboard(place))
        launch = stack.enter_context(_browsers())
        page, empty = launch(url), launch("about:blank")
        page.wait_for_timeout(1000 * SETTLED_S)
        summary = page.inner_text("#summary")
        for each in (page, empty):
            each.evaluate(MEASURE)
        rounds = max(round(options.minutes), 1)
        memory = [_memory(page)]
        for _ in range(rounds):
            page.wait_for_timeout(60_000 * options.minutes / rounds)
            memory.append(_memory(page))
        found = {
            "summary": summary,
            **page.evaluate("measured"),
            "empty": empty.evaluate("measured"),
            "memory": memory,
        }
    rows = [[i, m["heap_mb"], m["elements"], m["listeners"]] for i, m in enumerate(memory)]
    print_table(["at", "heap, MB", "elements", "listeners"], rows)
    print(json.dumps(found, indent=2))


@contextmanager
def _nodes(count: int) -> Iterator[str]:
    names = [f"w{number}" for number in range(1, count + 1)]
    ports = free_ports(count)
    nodes = [
        {"name": name, "host": "127.0.0.1", "port": port}
        for name, port in zip(names, ports, strict=True)
    ]
    config = json.dumps({"nodes": nodes, "timeout_ms": 900})
    processes = []
    try:
        for first in range(PROCESSES):
            command = [sys.executable, __file__, "--names", *names[first::PROCESSES]]
            if len(command) > 3:
                processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
        for process in processes:
            process.stdin.write(config + "\n")
            process.stdin.flush()
        yield f"127.0.0.1:{ports[0]}"
    finally:
        for process in processes:
            process.stdin.close()
        for process in processes:
            process.wait(30)


@contextmanager
def _dashboard(place: str) -> Iterator[str]:
    command = [sys.executable, "-m", "dpwa", "dashboard", "--at", place, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise BenchmarkError("dpwa dashboard did not start")
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def _browsers() -> Iterator[Callable[[str], Any]]:
    """Yield a function that opens a page in a new browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise BenchmarkError(
            "install playwright: pip install -c constraints.txt '.[e2e]'"
        ) from None
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise BenchmarkError("Chromium was not found. Install Chromium")
    with sync_playwright() as playwright, ExitStack() as stack:

        def launch(url: str) -> Any:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            stack.callback(browser.close)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(url)
            return page

        yield launch


def _memory(page: Any) -> dict[str, float]:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    told = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return {
        "time": time.time(),
        "heap_mb": round(told["JSHeapUsedSize"] / 1e6, 2),
        "elements": told["Nodes"],
        "listeners": told["JSEventListeners"],
    }


if __name__ == "__main__":
    main()
