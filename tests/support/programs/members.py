"""members.py collectives|tables: fork a node for each line of standard input: NAME CONFIG SOCKET.

A node connects to the socket, tells its process, and does what each line of JSON says: a command,
which is a method of its class, and its arguments.
"""

import ctypes
import json
import os
import random
import signal
import socket
import sys
import time
from contextlib import suppress

import numpy as np

from dpwa import DpwaConnection
from dpwa.errors import DpwaError, LeftBehindError, TableLostError
from dpwa.policy import ballots
from dpwa.tables.node_tables import Tables
from dpwa.tables.rows import cut
from dpwa.testing import Fault, FaultPlan

ballots.STALLED_S = 1.0  # so that whoever is stopped is left behind
# Elements of float64: told at once, and in several pieces.
REDUCED = {"small": 5, "large": 131_072}
SIZES = {"small": 10, "large": 150_000}
BASE = 1000


class Member:
    def __init__(self, name, config, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._connection = DpwaConnection(name, config)
        self._names = [node.name for node in self._connection.node.config.nodes]
        self._rank = self._names.index(name)
        self._answer(pid=os.getpid())

    def obey(self):
        """Do what is told, until nobody tells any more."""
        for line in self._socket.makefile():
            command, *arguments = json.loads(line)
            try:
                getattr(self, command)(*arguments)
            except DpwaError as error:
                self._answer(error=type(error).__name__, detail=str(error))
        self._connection.close()

    def stall(self, seconds):
        """Have this process take others for lost that are silent for so long."""
        ballots.STALLED_S = seconds
        self._answer(stalled_s=seconds)

    def arm(self, point, nth, name):
        """Send this process a signal when it reaches a fault point for the n-th time."""
        FaultPlan((Fault(point, nth, name),)).install()
        self._answer(armed=True)

    def hold(self, seconds):
        """Let no other thread of this process run for so long, as a sort of a large list does."""
        self._answer(holds=True)
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        self._answer(held=True)

    def close(self):
        self._connection.close()
        self._answer(closed=True)

    def _answer(self, **answer):
        self._socket.sendall(json.dumps(answer).encode() + b"\n")


class CollectiveMember(Member):
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
        pattern = np.arange(REDUCED[kind.rpartition(" ")[2]]) % 97 + step + 1.0
        bit = 2.0**self._rank
        value = bit * pattern
        contributors = 1
        try:
            if kind.startswith("broadcast"):
                node.broadcast(value, root, timeout_s)
            else:
                _, contributors = node.all_reduce(value, "sum", timeout_s)
        except BaseException:
            assert np.array_equal(value, bit * pattern), "a value has changed"
            raise
        bits = value[0] / pattern[0]
        assert np.array_equal(value, bits * pattern), "a value is made of different parts"
        return [
            name for rank, name in enumerate(self._names) if int(bits) >> rank & 1
        ], contributors


class TableMember(Member):
    """Every addition of the k-th node adds BASE^k to all values of a table.

    So their digits tell how many additions of which node are in it.
    """

    def open(self, replicas):
        self._tables = Tables(self._connection)
        self._made = {
            name: self._tables.array(size, dtype="float64", replicas=replicas)
            for name, size in SIZES.items()
        }
        self._answer(opened=True, members=list(self._tables.members))

    def work(self, rounds, seed):
        rng, added = random.Random(seed), dict.fromkeys(SIZES, 0)
        for _ in range(rounds):
            name = rng.choices(["small", "large"], [4, 1])[0]
            table, is_sync = self._made[name], rng.random() < 0.5
            self._answer(adding=name)
            table.add(np.full(SIZES[name], float(BASE**self._rank)), sync=is_sync)
            added[name] += 1
            if is_sync:
                self._answer(acknowledged={name: added[name]})
            if rng.random() < 0.3:
                self._check(table.get(), added[name])
        self._tables.flush()
        self._answer(acknowledged=added)
        self._answer(over=True)

    def _check(self, values, added):
        counts = self._counts(values)
        for shard in cut(len(values), len(self._names)):
            rows = counts[:, shard.start : shard.stop]
            assert (rows == rows[:, :1]).all(), f"part of an addition: {np.unique(rows, axis=1)}"
        assert (counts[self._rank] >= added).all(), f"own additions are missing: {added} {counts}"

    def add(self):
        for name, table in self._made.items():
            table.add(np.full(SIZES[name], float(BASE**self._rank)), sync=True)
        self._answer(added=True)

    def meet(self, *names):
        end = time.monotonic() + 20.0
        while time.monotonic() < end:
            with suppress(TableLostError):
                self._made["large"].get()
                if self._tables.members == names:
                    break
            time.sleep(0.05)
        self._answer(members=self._tables.members)

    def barrier(self):
        self._tables.barrier()
        self._answer(passed=True)

    def values(self):
        """Answer what is in the tables: the counts of each node, the lowest and the highest."""
        counts = {name: self._counts(table.get()) for name, table in self._made.items()}
        self._answer(
            **{n: [c.min(axis=1).tolist(), c.max(axis=1).tolist()] for n, c in counts.items()},
        )

    def close(self):
        self._tables.close()
        super().close()

    def _counts(self, values):
        """Return how often each node has added to each value, of shape (nodes, n)."""
        whole = values.astype(np.int64)
        return np.stack([whole // BASE**rank % BASE for rank in range(len(self._names))])


def main(kind):
    """Fork, and let whoever has ended go."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    member = {"collectives": CollectiveMember, "tables": TableMember}[kind]
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            status = 1
            try:
                member(*line.split()).obey()
                status = 0
            except (BrokenPipeError, ConnectionResetError):
                status = 0  # the test is over
            except BaseException:  # noqa: BLE001
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(status)


main(*sys.argv[1:])
