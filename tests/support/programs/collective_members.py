"""Fork a node that calls collectives for each line of standard input: NAME CONFIG SOCKET.

A node connects to the socket, tells its process, and does what each line of JSON says: a command
and its arguments. What it answers is in `Member`.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time

import numpy as np

from dpwa import DpwaConnection
from dpwa.errors import DpwaError, LeftBehindError
from dpwa.policy import ballots
from dpwa.testing import Fault, FaultPlan

ballots.STALLED_S = 1.0  # so that whoever is stopped is left behind
ELEMENTS = {"small": 5, "large": 131_072}  # of float64: told at once; 1 MiB, in pieces


class Member:
    def __init__(self, name, config, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._connection = DpwaConnection(name, config)
        self._ranks = {
            node.name: rank for rank, node in enumerate(self._connection.node.config.nodes)
        }
        self._bit = 2.0 ** self._ranks[name]
        self._answer(pid=os.getpid())

    def obey(self):
        """Do what is told, until nobody tells any more."""
        for line in self._socket.makefile():
            command, *arguments = json.loads(line)
            getattr(self, command)(*arguments)
        self._connection.close()

    def stall(self, seconds):
        """Have this process take others for lost that are silent for so long."""
        ballots.STALLED_S = seconds
        self._answer(stalled_s=seconds)

    def arm(self, point, nth, name):
        """Send this process a signal when it reaches a fault point for the n-th time."""
        FaultPlan((Fault(point, nth, name),)).install()
        self._answer(armed=True)

    def call(self, timeout_s, *calls):
        """Call collectives in a row, until it is told that it was left behind; answer each."""
        for kind, step, root in calls:
            start = time.monotonic()
            try:
                answer = {"result": self._perform(kind, step, root, timeout_s)}
            except (DpwaError, KeyboardInterrupt) as error:
                names = list(getattr(error, "names", ()))
                answer = {"error": type(error).__name__, "names": names, "detail": str(error)}
            took_s = time.monotonic() - start
            members = list(self._connection.members)
            self._answer(**answer, took_s=took_s, members=members, step=step)
            if answer.get("error") == LeftBehindError.__name__:
                break
        self._answer(over=True)

    def hold(self, seconds):
        """Let no other thread of this process run for so long, as a sort of a large list does."""
        self._answer(holds=True)
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        self._answer(held=True)

    def close(self):
        self._connection.close()
        self._answer(closed=True)

    def _perform(self, kind, step, root, timeout_s):
        """Return what a test can compare: of values, the sum of the bits of who has contributed."""
        node = self._connection
        if kind == "barrier":
            return node.barrier(timeout_s)
        if kind == "gather":
            gathered = node.all_gather([step, bytes(9000)], timeout_s)
            assert all(rest == bytes(9000) for _, rest in gathered.values())
            return [[name, theirs] for name, (theirs, _) in gathered.items()]
        if kind == "join":
            return node.join(timeout_s)
        pattern = np.arange(ELEMENTS[kind.rpartition(" ")[2]]) % 97 + step + 1.0
        value = self._bit * pattern
        contributors = 1
        try:
            if kind.startswith("broadcast"):
                node.broadcast(value, root, timeout_s)
            else:
                _, contributors = node.all_reduce(value, "sum", timeout_s)
        except BaseException:
            assert np.array_equal(value, self._bit * pattern), "a value has changed"
            raise
        bits = value[0] / pattern[0]
        assert np.array_equal(value, bits * pattern), "a value is made of different parts"
        return [name for name, rank in self._ranks.items() if int(bits) >> rank & 1], contributors

    def _answer(self, **answer):
        self._socket.sendall(json.dumps(answer).encode() + b"\n")


def main():
    """Fork, and let whoever has ended go."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            status = 1
            try:
                Member(*line.split()).obey()
                status = 0
            except BrokenPipeError:
                status = 0  # the test is over
            except BaseException:  # noqa: BLE001
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(status)


main()
