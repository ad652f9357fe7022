"""Stopping launched nodes as a user does, and seeing what became of their processes."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from support.nodes import config_of
from support.processes import PROGRAMS, Program, ended, start
from support.times import PROCESS_HANGS_AFTER_S

DPWA = [sys.executable, "-m", "dpwa"]
LAUNCH = [*DPWA, "launch"]
IMPORTS = "import os, signal, sys, time\n"


def python(code):
    """The command of nodes that run a piece of Python."""
    return ["--", sys.executable, "-S", "-c", code]


def dpwa(*arguments, timeout=60.0, **options):
    """Run a command of dpwa to its end, as a process of its own.

    It is forked from one that has imported dpwa; with options, which are those of `subprocess.run`,
    it is a new interpreter.
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
    return dpwa("launch", *arguments, **options)


def nodes_of(argv, names, config, **environment):
    """Start nodes with the variables that `dpwa launch` sets.

    They are forked from a process that has imported torch, if their program does it first.
    """
    return [
        Program(
            argv,
            DPWA_NAME=name,
            DPWA_CONFIG=str(config),
            DPWA_RANK=str(rank),
            DPWA_WORLD_SIZE=str(len(names)),
            **environment,
        )
        for rank, name in enumerate(names)
    ]


def said_by(nodes):
    """Wait until all nodes have ended; return what each has said, on either stream."""
    with ThreadPoolExecutor(len(nodes)) as pool, ended(*nodes):
        return [*pool.map(lambda node: node.communicate(timeout=PROCESS_HANGS_AFTER_S), nodes)]


def run_nodes(program, count, *arguments):
    """Run nodes of a program; return what each has printed."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "dpwa.yaml"
        file.write_text(yaml.safe_dump(config_of(count)))
        nodes = nodes_of(
            [str(program), *arguments], [f"w{rank + 1}" for rank in range(count)], file
        )
        said = said_by(nodes)
    assert [node.returncode for node in nodes] == [0] * count, said
    return [out for out, _ in said]


def forked(program):
    """What stands in for `run_nodes` of `dpwa.launch`: it forks a program with their options."""

    def run_them(spec, on_line, *, on_exit, **_):
        options = [part for part in spec.command if part.startswith("--")]
        argv = [str(PROGRAMS / program), *options]
        nodes = nodes_of(argv, spec.names, spec.config_path, **spec.environment)
        for name, node, said in zip(spec.names, nodes, said_by(nodes), strict=True):
            for stream, text in zip(("stdout", "stderr"), said, strict=True):
                for line in text.splitlines():
                    on_line(name, stream, line)
            on_exit(name, node.returncode)
        return {name: node.returncode for name, node in zip(spec.names, nodes, strict=True)}

    return run_them


@contextmanager
def interruptible():
    """Undo the ignoring of SIGINT that a background job of a script inherits."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def is_running(pid):
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
