"""The parent: clears the folder, starts one process per node, follows them, and reports."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dpwa.config import load_config
from dpwa.demo.progress import BarsView, PlainView, progress_view
from dpwa.demo.records import History, parse_record
from dpwa.demo.report import DemoResult, draw_chart, print_json, show_report, summarise
from dpwa.errors import UserError
from dpwa.files import written
from dpwa.launch import LaunchSpec, local_config, run_nodes
from dpwa.launch.stopping import PASSED_ON

CHART_NAME, RESULT_NAME = "demo.png", "result.json"
_WRITTEN = re.compile(r"demo\.png|result\.json|dpwa\.yaml|w[1-9][0-9]*\.(jsonl|npz)")
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


def run_demo(nodes: int, steps: int, seed: int, out_dir: Path, *, as_json: bool) -> int:
    """Run the whole demo and return its exit code: 0, or 1 when a node failed or gossip lost.

    Each of at least 2 nodes takes `steps`, once alone and once with gossip. The seed decides the
    shards, the first weights and the batches. Raises `UserError` if a library is missing, a file
    cannot be written, or a DPWA_* variable is wrong; KeyboardInterrupt after all nodes have been
    stopped.
    """
    _require_libraries()
    prepare_folder(out_dir)
    config_path = local_config(nodes, out_dir)
    load_config(config_path)  # the environment may override it: wrong here is wrong in every node
    began = time.monotonic()
    names = tuple(f"w{number}" for number in range(1, nodes + 1))
    history = History(names)
    worker = (sys.executable, "-c", _WORKER_CODE, str(_PACKAGE_ROOT))
    options = {"--out-dir": out_dir, "--steps": steps, "--seed": seed}
    launch = LaunchSpec(
        command=(*worker, *(f"{option}={value}" for option, value in options.items())),
        config_path=config_path,
        names=names,
        environment=_ENVIRONMENT,
    )
    with progress_view(names, steps) as view:
        follower = _Follower(history, view)
        codes = run_nodes(
            launch, follower.on_line, on_exit=follower.on_exit, on_signal=follower.on_signal
        )
    finished = tuple(name for name in names if codes.get(name) == 0)
    failed = [f"{name} (exit code {codes.get(name)})" for name in names if name not in finished]
    won = bool(finished) and _report(history, finished, out_dir, began, as_json).gossip_won()
    if failed:
        sys.stderr.write(f"These nodes failed: {', '.join(failed)}.\n")
    return 0 if won and not failed else 1


def _require_libraries() -> None:
    for module in ("sklearn", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            raise UserError(
                "the demo needs scikit-learn and matplotlib; install them with: "
                'pip install -c constraints.txt ".[demo]" in a checkout, or start ./scripts/demo'
                " [DPWA-E081]"
            )


class _Follower:
    """Keeps and shows what the launcher reports about the nodes."""

    def __init__(self, history: History, view: PlainView | BarsView) -> None:
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
        if not self._stopping and number not in PASSED_ON:
            self._stopping = True
            self._view.note("Interrupted: stopping all nodes.")


def _report(
    history: History, finished: tuple[str, ...], out_dir: Path, began: float, as_json: bool
) -> DemoResult:
    chart, figures = out_dir / CHART_NAME, out_dir / RESULT_NAME
    with writing(chart):
        draw_chart(history, finished, chart)
    result = summarise(history, finished, out_dir, time.monotonic() - began)
    with writing(figures), written(figures) as out:
        out.write(result.model_dump_json(indent=2).encode() + b"\n")
    show_report(
        result,
        [
            ("Curves", str(chart)),
            ("Figures", str(figures)),
            ("Logs and weights", f"{out_dir}/w*.jsonl, {out_dir}/w*.npz"),
        ],
        is_result=not as_json,
    )
    if as_json:
        print_json(result)
    return result


def prepare_folder(folder: Path) -> None:
    """Create the folder, make sure that it can be written, and remove what an earlier run left.

    Old files would look like results of a run that fails or has fewer nodes.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        leftovers = [path for path in folder.iterdir() if _WRITTEN.fullmatch(path.name)]
    except OSError as error:
        raise UserError(
            f"--out-dir {folder}: expected a folder that can be written ({error.strerror})"
            " [DPWA-E080]"
        ) from None
    for path in leftovers:
        _require_replaceable(path)
    for path in leftovers:
        _remove(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block, such as a full disk, into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror} [DPWA-E077]") from None


def _require_replaceable(path: Path) -> None:
    if path.is_symlink():
        return  # only the link itself is replaced
    if not path.is_file() or not os.access(path, os.W_OK):
        raise UserError(f"{path}: expected a file that can be replaced, or nothing [DPWA-E079]")


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot replace {path}: {error.strerror} [DPWA-E078]") from None
