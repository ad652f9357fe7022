"""Runtime: where a node gets its time, its threads and their waiting, chance, and ZeroMQ from.

Nodes get them from the machine. The simulator runs the very same nodes in virtual time: it gives
them another runtime, whose threads are greenlets and whose network is modelled.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, Protocol

import zmq

from dpwa.clock import Clock, SystemClock
from dpwa.lifecycle import uninterrupted


class Runtime(Clock, Protocol):
    """What a node runs on; itself the clock of all its parts.

    A simulated one returns what can be used like the types named here.
    """

    @property
    def bytes_scale(self) -> float:
        """How many bytes each byte of a state stands for: 1, but for simulated ones."""
        ...

    def wall_time(self) -> float:
        """Seconds since the epoch."""
        ...

    def thread_time(self) -> float:
        """Seconds of a core that the current thread has used."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let the current thread wait."""
        ...

    def condition(self, lock: threading.RLock | None = None) -> threading.Condition:
        """Return what threads wait with until others have changed something.

        Args:
            lock: of what changes; `None`: one of its own.
        """
        ...

    def event(self) -> threading.Event:
        """Return what threads wait for."""
        ...

    def queue(self) -> SimpleQueue[Any]:
        """Return what threads leave things in for each other."""
        ...

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """Return a thread that calls `run` once it is started; the program does not wait for it."""
        ...

    def current_thread(self) -> threading.Thread:
        """Return the thread that asks."""
        ...

    def token_bytes(self, count: int) -> bytes:
        """Return so many random bytes, which no other node nor process has."""
        ...

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Put off Ctrl-C until short work is done that must not be left half done."""
        ...

    def zmq_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Return what makes sockets."""
        ...

    def poller(self) -> zmq.Poller:
        """Return what waits for sockets of such a context."""
        ...


class SystemRuntime(SystemClock):
    """The machine's own."""

    bytes_scale = 1.0

    def wall_time(self) -> float:
        """Return `time.time()`."""
        return time.time()

    thread_time = staticmethod(time.thread_time)  # for every message that comes
    sleep = staticmethod(time.sleep)

    def condition(self, lock: threading.RLock | None = None) -> threading.Condition:
        """Return a condition of `threading`."""
        return threading.Condition(lock)

    def event(self) -> threading.Event:
        """Return an event of `threading`."""
        return threading.Event()

    def queue(self) -> SimpleQueue[Any]:
        """Return a `queue.SimpleQueue`."""
        return SimpleQueue()

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """Return a thread of the operating system, a daemon."""
        return threading.Thread(target=run, name=name, daemon=True)

    def current_thread(self) -> threading.Thread:
        """Return `threading.current_thread()`."""
        return threading.current_thread()

    def token_bytes(self, count: int) -> bytes:
        """Return what the operating system draws."""
        return secrets.token_bytes(count)

    def uninterrupted(self) -> AbstractContextManager[None]:
        """See `dpwa.lifecycle.uninterrupted`."""
        return uninterrupted()

    def zmq_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Return a context of ZeroMQ."""
        return zmq.Context()

    def poller(self) -> zmq.Poller:
        """Return a poller of ZeroMQ."""
        return zmq.Poller()


SYSTEM: Runtime = SystemRuntime()


class Turn:
    """Belongs to one thread at a time, which may wait for others while it has it.

    A lock must not be held so long: in virtual time nobody waits for locks.

    Args:
        runtime: of the threads.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        self._holder: threading.Thread | None = None

    @property
    def is_own(self) -> bool:
        """Whether the thread that asks has it."""
        return self._holder is self._runtime.current_thread()

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._holder is None)
            self._holder = self._runtime.current_thread()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._holder = None
            self._changed.notify()
