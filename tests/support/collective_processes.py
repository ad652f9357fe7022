"""Nodes with collectives or tables, each a process that can be killed, stopped and started."""

import contextlib
import json
import os
import signal
import socket
import subprocess

from support.nodes import config_of
from support.processes import ended, start

LONGEST_S = 30.0  # for any answer: a hang fails the test


class Process:
    def __init__(self, name, channel):
        self.name = name
        self._channel = channel
        self._channel.settimeout(LONGEST_S)
        self._lines = channel.makefile()
        self.pid = self.answer()["pid"]

    def tell(self, *command):
        self._channel.sendall(json.dumps(command).encode() + b"\n")

    def answer(self):
        """Return the next answer; `None` when the process is gone."""
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            return None
        except TimeoutError:
            raise AssertionError(f"{self.name} hangs") from None
        return json.loads(line) if line.endswith("\n") else None

    def answers(self):
        """Return all answers to a row of calls; of one that is killed meanwhile, those before."""
        found = []
        while (answer := self.answer()) is not None and "over" not in answer:
            found.append(answer)
        return found

    def arm(self, point, nth, name):
        """Have a signal sent at the n-th time that a fault point is reached."""
        self.tell("arm", point, nth, name)
        assert self.answer() == {"armed": True}

    def signal(self, number):
        os.kill(self.pid, number)

    def wait_until_gone(self):
        self.answers()

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self._lines.close()
        self._channel.close()


class Processes:
    def __init__(self, nursery, folder):
        self._nursery = nursery
        self._folder = folder
        self._number = 0

    @contextlib.contextmanager
    def group(self, count, *, there=None, **settings):
        """Nodes w1, w2, ... of one configuration; `there`: only so many of them are started."""
        self._number += 1
        config = self._folder / f"nodes-{self._number}.yaml"
        mapping = config_of(count, log_level="error", **settings)
        config.write_text(json.dumps(mapping))
        listener = socket.socket(socket.AF_UNIX)
        with listener:
            path = self._folder / f"s{self._number}"
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(LONGEST_S)
            group = Group(self, config, path, listener)
            try:
                for node in mapping["nodes"][:there]:
                    group.start(node["name"])
                yield group
            finally:
                group.close()

    def fork(self, name, config, path):
        self._nursery.stdin.write(f"{name} {config} {path}\n")
        self._nursery.stdin.flush()


class Group:
    def __init__(self, processes, config, path, listener):
        self._processes, self._config, self._path = processes, config, path
        self._listener = listener
        self._members = {}

    def start(self, name):
        self._processes.fork(name, self._config, self._path)
        former = self._members.pop(name, None)
        if former is not None:
            former.close()
        self._members[name] = Process(name, self._listener.accept()[0])

    def __getitem__(self, name):
        return self._members[name]

    @property
    def names(self):
        return tuple(sorted(self._members))

    def call(self, calls, names=None, timeout_s=10.0):
        """Let nodes call collectives in a row; return the answers of each, by name."""
        names = self.names if names is None else names
        self.begin(calls, names, timeout_s)
        return {name: self[name].answers() for name in names}

    def begin(self, calls, names, timeout_s):
        """Let nodes call collectives in a row; the answers are to be read."""
        for name in names:
            self[name].tell("call", timeout_s, *calls)

    def close(self):
        for member in self._members.values():
            member.close()


@contextlib.contextmanager
def collective_processes(folder, kind="collectives"):
    """Where processes of members.py are forked; none of them outlives the block."""
    nursery = start("members.py", kind, stdin=subprocess.PIPE)
    with ended(nursery):
        yield Processes(nursery, folder)
        _, errors = nursery.communicate(timeout=LONGEST_S)
        assert "Traceback" not in errors, errors
