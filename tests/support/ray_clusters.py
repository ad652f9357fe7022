"""A Ray cluster for tests, in processes of its own."""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from support.processes import PROGRAMS
from support.times import PROCESS_HANGS_AFTER_S

SETTINGS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def ray_cluster():
    """Run a cluster of two machines with a CPU each; RAY_ADDRESS names it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        command = [sys.executable, str(PROGRAMS / "ray_cluster.py")]
        with subprocess.Popen(command, text=True, **pipes) as process:
            patch.setenv("RAY_ADDRESS", process.stdout.readline().strip())
            yield
            process.communicate(timeout=PROCESS_HANGS_AFTER_S)
