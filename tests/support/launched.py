"""Stopping launched nodes as a user does, and seeing what became of their processes."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from support.nodes import config_of
from support.processes import Program, ended, start
from support.times import PROCESS_HANGS_AFTER_S

DPWA = [sys.executable, "-m", "dpwa"]
LAUNCH = [*DPWA, "launch"]
IMPORTS = "import os, signal, sys, time\n"


def python(code):
    """The command of nodes that run a piece of Python."""
    return ["--", sys.executable, "-S", "-c", code]


def dpwa(*arguments, timeout=60.0, **options):
    """Run a command of dpwa to its end, as a process of its own.

    It is forked from one that has imported dpwa, as a new interpreter takes longer than most
    commands do; with options, which are those of `subprocess.run`, it is a new one.
    """
    if options:
        return subprocess.run(
            [*DPWA, *arguments], capture_output=True, text=True, timeout=timeout, **options
        )
    process = start("dpwa_command.py", *arguments)
    with ended(process):
        said = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, *said)


def launch(*arguments, **options):
    """Run `dpwa launch` to its end."""
    return dpwa("launch", *arguments, **options)


def run_nodes(program, count, *arguments):
    """Run nodes with the variables that `dpwa launch` sets; return what each has printed.

    They are forked from a process that has imported torch, if they do.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / "dpwa.yaml"
        file.write_text(yaml.safe_dump(config_of(count)))
        nodes = [
            Program(
                [str(program), *map(str, arguments)],
                DPWA_NAME=f"w{rank + 1}",
                DPWA_CONFIG=str(file),
                DPWA_RANK=str(rank),
                DPWA_WORLD_SIZE=str(count),
            )
            for rank in range(count)
        ]
        with ended(*nodes):
            said = [node.communicate(timeout=PROCESS_HANGS_AFTER_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0] * count, said
    return [out for out, _ in said]


@contextmanager
def interruptible():
    """Undo the ignoring of SIGINT that a background job of a script inherits."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def is_running(pid):
    """Whether a process is there; a zombie is not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def assert_gone(*pids):
    """Fail unless all these processes end within 5 s."""
    end = time.monotonic() + 5
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < end, f"processes {left} are still there"
        time.sleep(0.01)
