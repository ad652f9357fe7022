"""Small node programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launched import interruptible

from dpwa.launch import LaunchSpec


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    with interruptible():
        yield


@pytest.fixture
def nodes_running(tmp_path: Path) -> Callable[..., LaunchSpec]:
    """Return a maker of specs whose nodes run a piece of Python.

    The variable MEETING_PLACE names an empty folder that they share.
    """
    folder = tmp_path / "meeting"
    folder.mkdir()

    def make(code: str, *names: str, **options: object) -> LaunchSpec:
        return LaunchSpec(
            [sys.executable, "-S", "-c", code],
            Path("dpwa.yaml"),
            names or ("w1", "w2"),
            environment={"MEETING_PLACE": str(folder)},
            **options,
        )

    return make
