"""The scripts of benchmarks/ can be imported, as they import each other."""

from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def scripts_of_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
