"""Small node programs, and ways to see what became of their processes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpwa.launch import LaunchSpec


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Undo the ignoring of SIGINT that a background job of a script inherits."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def nodes_running() -> Callable[..., LaunchSpec]:
    """Return a maker of specs whose nodes run a piece of Python."""

    def make(code: str, *names: str, **options: object) -> LaunchSpec:
        command = [sys.executable, "-S", "-c", code]
        return LaunchSpec(command, Path("dpwa.yaml"), names or ("w1", "w2"), **options)

    return make


@pytest.fixture
def wait_until_gone() -> Callable[[int], None]:
    """Return a function that fails unless a process ends within 5 s; a zombie has ended."""

    def wait(pid: int) -> None:
        end = time.monotonic() + 5
        while is_running(pid):
            assert time.monotonic() < end, f"process {pid} is still there"
            time.sleep(0.01)

    return wait


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
