"""The parent process, which starts a process per node, and reports the results."""

from __future__ import annotations

import importlib.util
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dpwa.config import load_config
from dpwa.demo.progress import ProgressView, progress_of
from dpwa.demo.records import History, parse_record
from dpwa.demo.report import DemoResult, draw_chart, summarise
from dpwa.errors import from_extra
from dpwa.files import writing, written
from dpwa.launch import LaunchSpec, local_config, run_nodes
from dpwa.launch.stopping import PASSED_ON

CHART_NAME, RESULT_NAME = "demo.png", "result.json"
# Unlike `-m`, this does not import from the user's folder, whose files may shadow modules.
# dpwa's own folder comes last, in case dpwa is not installed.
_WORKER_CODE = (
    "import sys; sys.path = [*filter(None, sys.path), sys.argv.pop(1)]; "
    "from dpwa.demo.worker import main; main()"
)
_PACKAGE_ROOT = Path(__file__).parents[2]


def run_demo(
    nodes: int, steps: int, seed: int, out_dir: Path
) -> tuple[DemoResult | None, dict[str, int]]:
    """Run the whole demo. Return its result, and the exit codes of failed nodes.

    Each of at least 2 nodes takes `steps`, once alone and once with gossip. The seed decides the
    shards, the first weights and the batches. The result covers the nodes that ended well, and is
    `None` if all failed. Raises `UserError` if a library is missing, a file cannot be written, or a
    DPWA_* variable is wrong, and KeyboardInterrupt after all nodes have been stopped.
    """
    _require_libraries()
    chart, figures = out_dir / CHART_NAME, out_dir / RESULT_NAME
    with writing(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        for path in (chart, figures):  # old files would look like results of a failed run
            path.unlink(missing_ok=True)
    config_path = local_config(nodes, out_dir)
    load_config(config_path)  # find mistakes in environment variables before the start
    began = time.monotonic()
    history = History([f"w{number}" for number in range(1, nodes + 1)])
    codes = _train(history, steps, seed, config_path)
    failed = {name: code for name in history.names if (code := codes.get(name, 1))}
    ended = [name for name in history.names if name not in failed]
    if not ended:
        return None, failed
    result = summarise(history, ended, time.monotonic() - began)
    with writing(out_dir), written(figures) as out:
        draw_chart(history, ended, chart)
        out.write(result.model_dump_json(indent=2).encode() + b"\n")
    return result, failed


def _require_libraries() -> None:
    with from_extra("demo", "the demo needs scikit-learn and matplotlib [DPWA-E081]"):
        if None in map(importlib.util.find_spec, ("sklearn", "matplotlib")):
            raise ImportError


def _train(history: History, steps: int, seed: int, config_path: Path) -> dict[str, int]:
    """Run the nodes, collect and show their records, and return their exit codes."""
    environment = {
        # There are more nodes than cores, so more threads inside torch would only slow them down.
        "OMP_NUM_THREADS": "1",
        # Nodes start and end at different times, and would warn. Failures are shown anyway.
        "DPWA_LOG_LEVEL": "error",
        "DPWA_RUN_LOG": str(config_path.parent.resolve()),
    }
    worker = (sys.executable, "-c", _WORKER_CODE, str(_PACKAGE_ROOT))
    command = (*worker, f"--steps={steps}", f"--seed={seed}")
    launch = LaunchSpec(command, config_path, history.names, environment=environment)
    with progress_of(history.names, steps) as view:
        follower = _Follower(history, view)
        return run_nodes(
            launch, follower.on_line, on_exit=follower.on_exit, on_signal=follower.on_signal
        )


class _Follower:
    """Collects and shows the launcher's reports about the nodes."""

    def __init__(self, history: History, view: ProgressView) -> None:
        self._history = history
        self._view = view
        self._stopping = False

    def on_line(self, name: str, stream: str, line: str) -> None:
        record = parse_record(line) if stream == "stdout" else None
        if record is None:
            self._view.note(f"{name}: {line}")
        else:
            self._history.add_record(name, record)
            self._view.show(name, record)

    def on_exit(self, name: str, code: int) -> None:
        if code != 0 and not self._stopping:
            self._view.failed(name, code)

    def on_signal(self, number: signal.Signals, names: Sequence[str]) -> None:  # noqa: ARG002
        if not self._stopping and number not in PASSED_ON:
            self._stopping = True
            self._view.note("Interrupted: stopping all nodes.")
