"""The parent: starts one process per node, follows them, and reports."""

from __future__ import annotations

import importlib.util
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpwa.demo.chart import draw_chart
from dpwa.demo.history import History, parse_record
from dpwa.demo.progress import ProgressView, progress_view
from dpwa.demo.report import DemoResult, print_json, show_report, summarise
from dpwa.errors import UserError
from dpwa.launch import LaunchSpec, local_config, run_nodes

_ENVIRONMENT = {
    # There are more nodes than cores: threads inside torch would only fight for them.
    "OMP_NUM_THREADS": "1",
    # Nodes come and go within seconds of each other, and warn about it; failures show in `on_exit`.
    "DPWA_LOG_LEVEL": "error",
}
CHART_NAME, RESULT_NAME = "demo.png", "result.json"


@dataclass(frozen=True)
class DemoSpec:
    """What the user asked for.

    Attributes:
        nodes: number of nodes, at least 2.
        steps: training steps of each node, once alone and once with gossip.
        seed: decides the shards, the first weights and the batches.
        out_dir: folder for everything that is written; created when missing.
        as_json: whether to print the result on standard output.
    """

    nodes: int
    steps: int
    seed: int
    out_dir: Path
    as_json: bool


def run_demo(spec: DemoSpec) -> int:
    """Run the whole demo and return its exit code: 0, or 1 when a node failed or gossip lost.

    Raises:
        UserError: a library is missing or the folder cannot be written; nothing was started.
        KeyboardInterrupt: the user interrupted; all nodes have been stopped.
    """
    _require_libraries()
    _prepare(spec.out_dir)
    began = time.monotonic()
    names = tuple(f"w{number}" for number in range(1, spec.nodes + 1))
    history = History(names)
    with progress_view(names, spec.steps) as view:
        codes = _run_nodes(spec, history, view)
    finished = tuple(name for name in names if codes.get(name) == 0)
    failed = [f"{name} (exit code {codes.get(name)})" for name in names if name not in finished]
    won = bool(finished) and _report(spec, history, finished, began).gossip_won()
    if failed:
        sys.stderr.write(f"These nodes failed: {', '.join(failed)}.\n")
    return 0 if won and not failed else 1


def _require_libraries() -> None:
    for module in ("sklearn", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            raise UserError(
                "the demo needs scikit-learn and matplotlib; install them with: "
                'pip install "dpwa[demo]"'
            )


def _prepare(out_dir: Path) -> None:
    """Create the folder and make sure that files can be written into it."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out_dir):
            pass
    except OSError as error:
        raise UserError(
            f"--out-dir {out_dir}: expected a folder that can be written ({error.strerror})"
        ) from None


class _Follower:
    """Hears what the launcher tells about the nodes, and keeps and shows it."""

    def __init__(self, history: History, view: ProgressView) -> None:
        self._history = history
        self._view = view
        self._stopping = False

    def on_line(self, name: str, stream: str, line: str) -> None:
        record = parse_record(line) if stream == "stdout" else None
        if record is None:
            self._view.note(f"{name}: {line}")
        else:
            self._history.add(name, record)
            self._view.show(name, record)

    def on_exit(self, name: str, code: int) -> None:
        if code != 0 and not self._stopping:
            self._view.failed(name, code)

    def on_signal(self, number: signal.Signals, names: Sequence[str]) -> None:  # noqa: ARG002
        if not self._stopping:
            self._stopping = True
            self._view.note("Interrupted: stopping all nodes.")


def _run_nodes(spec: DemoSpec, history: History, view: ProgressView) -> dict[str, int]:
    worker = (sys.executable, "-m", "dpwa.demo.worker", "--out-dir", str(spec.out_dir))
    launch = LaunchSpec(
        command=(*worker, "--steps", str(spec.steps), "--seed", str(spec.seed)),
        config_path=local_config(spec.nodes, spec.out_dir),
        names=history.names,
        environment=_ENVIRONMENT,
    )
    follower = _Follower(history, view)
    return run_nodes(
        launch, follower.on_line, on_exit=follower.on_exit, on_signal=follower.on_signal
    )


def _report(
    spec: DemoSpec, history: History, finished: tuple[str, ...], began: float
) -> DemoResult:
    chart, figures = spec.out_dir / CHART_NAME, spec.out_dir / RESULT_NAME
    draw_chart(history, finished, chart)
    result = summarise(history, finished, spec.out_dir, time.monotonic() - began)
    figures.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    show_report(
        result,
        [
            ("Curves", str(chart)),
            ("Figures", str(figures)),
            ("Logs and weights", f"{spec.out_dir}/w*.jsonl, {spec.out_dir}/w*.npz"),
        ],
    )
    if spec.as_json:
        print_json(result)
    return result
