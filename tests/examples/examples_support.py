"""What the tests of the examples share: importing by path, and tiny batches of CIFAR-10."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import random
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from dpwa.errors import DpwaError

EXAMPLES = Path(__file__).parents[2] / "examples"
DPWA = (sys.executable, "-c", "from dpwa.cli.main import main; main()")
TRAIN_IMAGES_PER_FILE = 16
TEST_IMAGES = 20
CLASS_NAMES = b"airplane automobile bird cat deer dog frog horse ship truck".split()

Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def load_example(path: str) -> ModuleType:
    """Import a module of the examples by its path, leaving sys.path and sys.modules alone."""
    file = EXAMPLES / path
    spec = importlib.util.spec_from_file_location(f"example_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _importing_neighbours(file):
        sys.modules[spec.name] = module  # dataclasses look their own module up while they are made
        spec.loader.exec_module(module)
    return module


def run_here(file: Path, *arguments: object) -> tuple[object, str]:
    """Run a script in this process: it has imported torch, which takes seconds.

    Returns:
        Its exit code, and what it has written to standard error.
    """
    code: object = 0
    with (
        _importing_neighbours(file),
        patch.object(sys, "argv", [str(part) for part in (file, *arguments)]),
        redirect_stderr(io.StringIO()) as errors,
    ):
        try:
            runpy.run_path(str(file), run_name="__main__")
        except SystemExit as end:
            code = end.code
            if isinstance(code, str):
                print(code, file=errors)
                code = 1
        except DpwaError:  # as of any exception that nobody catches
            traceback.print_exc()
            code = 1
    return code, errors.getvalue()


def interrupted(stream: str, text: str, *script: object) -> tuple[int, str]:
    """Run a script until a line of its output has a text, and then press Ctrl-C.

    Returns:
        Its exit code, and what it has written to standard error afterwards.
    """
    process = subprocess.Popen(
        [sys.executable, *map(str, script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        while text not in getattr(process, stream).readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, errors


@contextmanager
def _importing_neighbours(file: Path) -> Iterator[None]:
    known = set(sys.modules)
    sys.path.insert(0, str(file.parent))  # as `python FILE` does
    try:
        yield
    finally:
        sys.path.remove(str(file.parent))
        for name in set(sys.modules) - known:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(EXAMPLES):
                del sys.modules[name]


def dump(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def batch(count: int, seed: int) -> dict[bytes, Any]:
    """A batch of noise that is brighter the higher its label."""
    rng = np.random.default_rng(seed)
    labels = [index % 10 for index in range(count)]
    random.Random(seed).shuffle(labels)
    noise = rng.integers(0, 30, size=(count, 3072))
    return {
        b"batch_label": b"a tiny batch",
        b"labels": labels,
        b"data": (noise + 22 * np.array(labels)[:, None]).astype(np.uint8),
        b"filenames": [b"image_%d.png" % index for index in range(count)],
    }
