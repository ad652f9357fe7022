"""The parent: starts one process per node, follows them, and reports."""

from __future__ import annotations

import importlib.util
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpwa.config import load_config
from dpwa.demo.chart import draw_chart
from dpwa.demo.files import CHART_NAME, RESULT_NAME, prepare_folder, writing
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
# Unlike `-m`, this keeps the user's folder, whose files may be named like anybody's modules, out of
# the way of imports. dpwa's own folder comes last, in case it is not installed.
_WORKER_CODE = (
    "import sys; sys.path = [*filter(None, sys.path), sys.argv.pop(1)]; "
    "from dpwa.demo.worker import main; main()"
)
_PACKAGE_ROOT = Path(__file__).parents[2]


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
        UserError: a library is missing, the folder or a file in it cannot be written, or a DPWA_*
            variable of the environment is wrong.
        KeyboardInterrupt: the user interrupted; all nodes have been stopped.
    """
    _require_libraries()
    prepare_folder(spec.out_dir)
    config_path = local_config(spec.nodes, spec.out_dir)
    load_config(config_path)  # the environment may override it: wrong here is wrong in every node
    began = time.monotonic()
    names = tuple(f"w{number}" for number in range(1, spec.nodes + 1))
    history = History(names)
    with progress_view(names, spec.steps) as view:
        codes = _run_nodes(spec, config_path, history.names, _Follower(history, view))
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
                'pip install -c constraints.txt ".[demo]" in a checkout, or start ./scripts/demo'
            )


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


def _run_nodes(
    spec: DemoSpec, config_path: Path, names: Sequence[str], follower: _Follower
) -> dict[str, int]:
    worker = (sys.executable, "-c", _WORKER_CODE, str(_PACKAGE_ROOT))
    options = {"--out-dir": spec.out_dir, "--steps": spec.steps, "--seed": spec.seed}
    launch = LaunchSpec(
        command=(*worker, *(f"{option}={value}" for option, value in options.items())),
        config_path=config_path,
        names=names,
        environment=_ENVIRONMENT,
    )
    return run_nodes(
        launch, follower.on_line, on_exit=follower.on_exit, on_signal=follower.on_signal
    )


def _report(
    spec: DemoSpec, history: History, finished: tuple[str, ...], began: float
) -> DemoResult:
    chart, figures = spec.out_dir / CHART_NAME, spec.out_dir / RESULT_NAME
    with writing(chart):
        draw_chart(history, finished, chart)
    result = summarise(history, finished, spec.out_dir, time.monotonic() - began)
    with writing(figures):
        figures.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    show_report(
        result,
        [
            ("Curves", str(chart)),
            ("Figures", str(figures)),
            ("Logs and weights", f"{spec.out_dir}/w*.jsonl, {spec.out_dir}/w*.npz"),
        ],
        is_result=not spec.as_json,
    )
    if spec.as_json:
        print_json(result)
    return result
