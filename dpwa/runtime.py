"""A node's interface to the machine: time, threads and their waiting, randomness, ZeroMQ.

The simulator runs the same nodes in virtual time with a different runtime, whose threads are
greenlets and whose network is modelled.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import starmap
from operator import methodcaller
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import zmq

from dpwa.clock import Clock, SystemClock
from dpwa.errors import UserError
from dpwa.lifecycle import uninterrupted

T = TypeVar("T")

_RELEASE = methodcaller("release")
_RLock: Any = type(threading.RLock())  # in C: to enter and to leave are one step each


class CallLock(_RLock):  # type: ignore[misc]
    """A lock whose holder may wait for others meanwhile.

    No other lock may be held for so long, because in virtual time no thread waits for locks.
    """

    @property
    def is_own(self) -> bool:
        return bool(self._is_owned())


class Condition(_RLock):  # type: ignore[misc]
    """`threading.Condition`, but left intact by Ctrl-C at any moment.

    It is its own lock. `threading.Condition` handles its lock in Python, where a signal may
    interrupt just after the lock was taken, which is then never released.
    """

    def __init__(self) -> None:
        self._waiters: list[Any] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether there was a notification within the timeout (seconds)."""
        waiter, held = threading.Lock(), list[Any]()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            # In one call: a signal that is handled between two would lose what was held.
            held.extend(starmap(self._release_save, ((),)))
            is_notified = waiter.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        finally:
            if held:
                self._acquire_restore(held[0])
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        return is_notified

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until the predicate is true, or the timeout (seconds). Return its last value."""
        end = None if timeout is None else time.monotonic() + timeout
        while not (result := predicate()):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0.0:
                break
            self.wait(left)
        return result

    def notify_all(self) -> None:
        if self._waiters:
            wake = map(_RELEASE, self._waiters)
            self._waiters = []
            any(wake)  # one call, which no signal cuts short


class Waker:
    """Wakes a thread that polls `receiver`. Pending wake-ups count as one.

    A wake-up is recorded after it is done, so that if Ctrl-C interrupts one, the next wakes the
    thread again.
    """

    receiver: Any = -1

    def __init__(self) -> None:
        # So that nobody writes to the descriptor of another file. Reentrant: a signal handler may
        # close the node while its thread is in here.
        self._lock = threading.RLock()
        self.receiver = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._cleared = 0
        self._woken_at = -1  # what that was when the thread was woken

    def wake(self) -> None:
        """Wake the thread. Any thread may call this. After `close` it does nothing."""
        cleared = self._cleared
        if self._woken_at == cleared:
            return  # it has not begun to act on the last one
        with self._lock:
            if self.receiver >= 0:
                os.eventfd_write(self.receiver, 1)
        self._woken_at = cleared

    def clear(self) -> None:
        """Called by the polling thread before it acts on the wake-ups so far."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.receiver)
        self._cleared += 1  # last: what was written before it was read would count as still there

    def close(self) -> None:
        """Called when the polling thread has ended."""
        with self._lock:
            descriptor, self.receiver = self.receiver, -1
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()  # of a thread that could not be made


SOCKET_NEEDS = 16  # a context's first socket takes 8: without, libzmq ends the process by SIGABRT
NODE_NEEDS = 40  # with its listening sockets, its board, and the first connections


class DescriptorsError(UserError, zmq.ZMQError):
    """Too few file descriptors are left to this process for sockets."""

    def __init__(self, message: str) -> None:
        zmq.ZMQError.__init__(self, errno.EMFILE, message)


def open_descriptors() -> int:
    """Count the descriptors in use, or return 0 if that is unknown."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        return sum(int(name) < limit for name in os.listdir("/dev/fd")) - 1  # noqa: PTH208
    except OSError as error:
        return limit if error.errno in (errno.EMFILE, errno.ENFILE) else 0


def require_descriptors(needed: int) -> None:
    """Raise a `DescriptorsError` unless this many more files and sockets can be opened."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with suppress(OSError):
        # How many are open, since Linux 6.2 (0 before): to list thousands takes milliseconds.
        if 0 < os.stat("/proc/self/fd").st_size <= limit - needed:  # noqa: PTH116
            return
    left = limit - open_descriptors()
    if limit != resource.RLIM_INFINITY and left < needed:
        raise DescriptorsError(
            f"too few file descriptors are left in this process: {left} of {limit} "
            "(see `ulimit -n`) [DPWA-E303]"
        )


def can_open() -> bool:
    try:
        os.close(os.eventfd(0, os.EFD_CLOEXEC))
    except OSError:
        return False
    return True


class _Context(zmq.Context[zmq.Socket[bytes]]):
    def socket(self, *args: Any, **options: Any) -> zmq.Socket[bytes]:
        require_descriptors(SOCKET_NEEDS)
        return super().socket(*args, **options)


class Runtime(Clock, Protocol):
    """The environment of a node, and the clock of all its parts.

    A simulated one returns its own objects in place of the types named here.
    """

    @property
    def bytes_scale(self) -> float:
        """Number of bytes that each byte of a state stands for: 1, except in simulations."""
        ...

    def wall_time(self) -> float:
        """Seconds since the epoch."""
        ...

    def thread_time(self) -> float:
        """Seconds of a core that the current thread has used."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait."""
        ...

    def condition(self) -> Condition:
        """A condition that is its own lock."""
        ...

    def call_lock(self) -> CallLock:
        """See `CallLock`."""
        ...

    def waker(self) -> Waker:
        """See `Waker`."""
        ...

    def event(self) -> threading.Event:
        """A `threading.Event`."""
        ...

    def queue(self) -> SimpleQueue[Any]:
        """A `queue.SimpleQueue`."""
        ...

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """Return a daemon thread, not started yet."""
        ...

    def current_thread(self) -> threading.Thread:
        """The calling thread."""
        ...

    def token_bytes(self, count: int) -> bytes:
        """Random bytes that no other node or process has."""
        ...

    def uninterrupted(self) -> AbstractContextManager[None]:
        """See `dpwa.lifecycle.uninterrupted`."""
        ...

    def zmq_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """The context that makes all sockets."""
        ...

    def poller(self) -> zmq.Poller:
        """Polls sockets of that context."""
        ...


class SystemRuntime(SystemClock):
    """Time, threads and sockets of the machine itself."""

    bytes_scale = 1.0

    def wall_time(self) -> float:
        return time.time()

    thread_time = staticmethod(time.thread_time)  # for every message that comes
    sleep = staticmethod(time.sleep)

    condition = staticmethod(Condition)
    call_lock = staticmethod(CallLock)
    waker = staticmethod(Waker)

    def event(self) -> threading.Event:
        """An event whose condition survives Ctrl-C."""
        event = threading.Event()
        event._cond = Condition()  # type: ignore[attr-defined]
        return event

    def queue(self) -> SimpleQueue[Any]:
        return SimpleQueue()

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    def current_thread(self) -> threading.Thread:
        return threading.current_thread()

    def token_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def uninterrupted(self) -> AbstractContextManager[None]:
        return uninterrupted()

    def zmq_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Its sockets raise `DescriptorsError` when too few descriptors are left."""
        return _Context()

    def poller(self) -> zmq.Poller:
        return zmq.Poller()


SYSTEM: Runtime = SystemRuntime()


class Background:
    """Runs long work on its own threads, one at a time for each key. Not thread-safe."""

    def __init__(self, owner: str, runtime: Runtime) -> None:
        self._owner = owner
        self._runtime = runtime
        self._running: dict[str, threading.Thread] = {}

    def start(self, key: str, function: Callable[[], None]) -> bool:
        """Run a function unless one with this key still runs. Return whether it was started."""
        running = self._running.get(key)
        if running is not None and running.is_alive():
            return False
        thread = self._runtime.thread(function, f"dpwa-members-{self._owner}")
        self._running[key] = thread
        thread.start()
        return True

    def finish(self, key: str, timeout_s: float) -> None:
        """Wait at most this long for the function of this key."""
        running = self._running.get(key)
        if running is not None:
            running.join(timeout_s)
