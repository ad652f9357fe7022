"""Running test programs as real processes."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def start(program, *arguments, **options):
    """Start a program of tests/support/programs; its output is text, to be read line by line."""
    command = [sys.executable, "-W", "error", str(PROGRAMS / program), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


@contextmanager
def ended(*processes):
    """Make sure that no process outlives the block."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()
