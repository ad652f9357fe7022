"""Shared memory as the tests see it: whose folder is whose, and programs that do as told."""

import json
import subprocess
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from support.processes import ended, start
from support.times import HANGS_AFTER_S


class Obedient:
    """A program of tests/support/programs that does as it is told (see obeying.py)."""

    def __init__(self, process):
        self.process = process

    def tell(self, *command):
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def end(self):
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextmanager
def told(program, *arguments):
    """Start a program that does as it is told; it does not outlive the block."""
    process = start(program, *arguments, stdin=subprocess.PIPE)
    with ended(process):
        yield Obedient(process)


@pytest.fixture
def own_shm():
    """How to start a program with a /dev/shm of its own; skips where that is not permitted."""

    def command(options, program, *arguments):
        return ("with_own.py", "shm", options, program, *arguments)

    if not _has_mount_namespaces():
        pytest.skip("no mount namespaces here")
    return command


@cache
def _has_mount_namespaces():
    probe = start("with_own.py", "shm", "size=1m", "obeying.py")
    with ended(probe):
        probe.communicate(timeout=HANGS_AFTER_S)
    return probe.returncode == 0


def folders_of(pid):
    """The folders in /dev/shm whose board a process has mapped as its own or as a peer's."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    boards = {line.split()[5] for line in maps if line.endswith("/board")}
    return {Path(board).parent for board in boards if board.startswith("/dev/shm/dpwa-")}
