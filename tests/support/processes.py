"""Running test programs as real processes."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from support import fork_server

PROGRAMS = Path(__file__).parent / "programs"
FORKED_PYTHON = shlex.join([sys.executable, str(Path(__file__).with_name("forked_python.py"))])


def start(program, *arguments, stdin=None):
    """Start a program of tests/support/programs; its output is text, to be read line by line.

    Its standard input is empty unless `stdin` is `subprocess.PIPE`.
    """
    return Program([str(PROGRAMS / program), *map(str, arguments)], has_input=stdin is not None)


@contextmanager
def ended(*processes):
    """Make sure that no process outlives the block."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if isinstance(process, subprocess.Popen):
                process.communicate()
            else:
                process.close()


def told_by(program, *arguments):
    """What each rank of a program has found, by scenario and then by node and rank."""
    process = start(program, *arguments)
    with ended(process):
        out, errors = process.communicate(timeout=110)
    assert process.returncode == 0, errors
    found = {}
    for scenario, name, rank, result in map(json.loads, out.splitlines()):
        found.setdefault(scenario, {})[name, rank] = result
    return found


def descriptors(pid="self"):
    """How many a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_mb(pid="self"):
    """Return how much of the memory of a process is in use."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if "VmRSS" in line).split()[1]) / 1000


class Program:
    """A program that runs; it is handled like a `subprocess.Popen` with text in its pipes."""

    def __init__(self, argv, *, has_input=False, **environment):
        self.args = argv
        (own_input, write), (read_out, own_out), (read_errors, own_errors) = (
            os.pipe() for _ in range(3)
        )
        own = (own_input, own_out, own_errors)
        self._forks = _forks(_kind_of(Path(argv[0])))
        self.pid = self._forks.begin(argv, own, environment)
        for descriptor in own:
            os.close(descriptor)
        self.stdin = os.fdopen(write, "w")
        self.stdout, self.stderr = os.fdopen(read_out), os.fdopen(read_errors)
        self._rests = ()
        if not has_input:
            self.stdin.close()

    @property
    def returncode(self):
        return self._forks.code_of(self.pid)

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        code = self._forks.code_of(self.pid, threading.TIMEOUT_MAX if timeout is None else timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def communicate(self, said=None, timeout=None):
        with suppress(BrokenPipeError):
            if said is not None:
                self.stdin.write(said)
            self.stdin.close()
        self._rests = self._rests or (_Rest(self.stdout), _Rest(self.stderr))
        self.wait(timeout)
        out, errors = (rest.whole() for rest in self._rests)
        return out, errors

    def send_signal(self, number):
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it has ended, and that is on its way
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def close(self):
        """Close its pipes; those that are being read are closed when that has ended."""
        self.stdin.close()
        if not self._rests:
            self.stdout.close()
            self.stderr.close()

    def kill(self):
        self.send_signal(signal.SIGKILL)


@contextmanager
def fork_servers_running():
    """Start what forks the programs, which takes seconds, or find what is shared; then end it."""
    forks = [_forks(kind) for kind in (_shared() or (PLAIN,))]
    yield
    for each in forks:
        each.close()


@contextmanager
def shared_fork_servers():
    """Start fork servers that several test processes use."""
    forks = {kind: _Forks(kind) for kind in _MODULES}
    os.environ[_SHARED] = json.dumps({kind: each.address for kind, each in forks.items()})
    yield
    for each in forks.values():
        each.close()


def _shared():
    """The addresses of fork servers that other test processes use, too, by kind."""
    return json.loads(os.environ.get(_SHARED, "{}"))


@cache
def _kind_of(program):
    heavy = r"^(from|import) (torch|dpwa.adapters|dpwa.demo)"
    needs = re.search(heavy, program.read_text(), re.MULTILINE)
    return TORCH if needs and TORCH in _shared() else PLAIN


class _Rest:
    """Reads all that comes out of a pipe, which its children may hold for longer than a program."""

    def __init__(self, stream):
        self._text = ""
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream):
        with stream:
            self._text = stream.read()

    def whole(self):
        self._thread.join()
        return self._text


class _Forks:
    """What a server has forked for this process; see `fork_server`."""

    def __init__(self, kind):
        self._process, self.address = None, _shared().get(kind)
        if self.address is None:
            self._start(_MODULES[kind])
        self._channel = fork_server.connected(self.address)
        self._lock = threading.Lock()
        self._begun = []
        self._codes = {}

    def _start(self, modules):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("")  # to a name that is free
            listener.listen()
            self.address = listener.getsockname().decode().removeprefix("\0")
            number = listener.fileno()
            command = [sys.executable, fork_server.__file__, str(number), *modules]
            environment = {**os.environ, **_ENVIRONMENT}
            self._process = subprocess.Popen(command, pass_fds=[number], env=environment)

    def close(self):
        self._channel.close()
        if self._process is not None:
            self._process.wait()

    def begin(self, argv, streams, environment):
        environment = {**os.environ, **_ENVIRONMENT, **environment}
        request = {"argv": argv, "env": environment, "cwd": str(Path.cwd())}
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], streams)
            while not self._begun:
                self._hear(None)
            return self._begun.pop()

    def code_of(self, pid, timeout_s=0.0):
        """Wait at most so long for the end of a program; return its exit code, or `None`."""
        end = time.monotonic() + timeout_s
        while True:
            with self._lock:
                while pid not in self._codes and self._hear(0.0):
                    pass
                if pid in self._codes:
                    return self._codes[pid]
            if time.monotonic() >= end:
                return None
            time.sleep(0.005)

    def _hear(self, timeout_s):
        self._channel.settimeout(timeout_s)
        try:
            kind, pid, *code = json.loads(self._channel.recv(fork_server.MAX_PACKET_BYTES))
        except BlockingIOError:
            return False
        if kind == "begun":
            self._begun.append(pid)
        else:
            self._codes[pid] = code[0]
        return True


# torch, which few programs need, has a server of its own: all would pay for it when they end. This
# server has also imported what loads the digits.
PLAIN, TORCH = "plain", "torch"
_OF_NODES = (  # packages that a node loads at their first use
    *("dpwa.algorithms.", "dpwa.collectives.", "dpwa.discovery.", "dpwa.membership.", "dpwa.node."),
    *("dpwa.observe.", "dpwa.policy.", "dpwa.state.", "dpwa.tables.", "dpwa.transport."),
)
_DIGITS = ("sklearn.datasets", "sklearn.model_selection") if find_spec("sklearn") else ()
_MODULES = {
    PLAIN: ("dpwa.connection", *_OF_NODES, "dpwa.cli.main", "dpwa.launch"),
    TORCH: ("torch._dynamo", *_OF_NODES, "dpwa.adapters.", *_DIGITS),
}
_SHARED = "TESTS_FORK_SERVERS"
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
_forks = cache(_Forks)
