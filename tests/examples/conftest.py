from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from examples_support import (
    CLASS_NAMES,
    EXAMPLES,
    TEST_IMAGES,
    TRAIN_IMAGES_PER_FILE,
    Runner,
    batch,
    dump,
    load_example,
)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiny work is quicker on one thread, here and in the processes that a test starts."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cifar() -> ModuleType:
    return load_example("cifar10/cifar.py")


@pytest.fixture(scope="session")
def models() -> ModuleType:
    return load_example("cifar10/models.py")


@pytest.fixture(scope="session")
def evaluate() -> ModuleType:
    return load_example("cifar10/evaluate.py")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A folder in the format of cifar-10-batches-py with 80 training and 20 test images."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number in range(1, 6):
        dump(folder / f"data_batch_{number}", batch(TRAIN_IMAGES_PER_FILE, number))
    dump(folder / "test_batch", batch(TEST_IMAGES, 0))
    dump(
        folder / "batches.meta",
        {b"num_cases_per_batch": 10000, b"label_names": CLASS_NAMES, b"num_vis": 3072},
    )
    return folder


@pytest.fixture
def run() -> Runner:
    """Run a command to its end, as a user would."""

    def run_command(*command: object, timeout_s: float = 100.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            cwd=EXAMPLES.parent,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run_command
