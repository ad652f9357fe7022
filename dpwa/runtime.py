"""Runtime is a node's interface to the time, threads, random bytes and sockets of the machine.

The simulator runs the same nodes in virtual time, with a different runtime. Its threads are
greenlets, and its network is modelled.
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
_RLock: Any = type(threading.RLock())  # in C, so that acquire and release are one step each


class CallLock(_RLock):  # type: ignore[misc]
    """A lock that a thread may hold while the thread waits for other nodes.

    No other lock may be held for so long, because in virtual time no thread waits for locks.
    """

    @property
    def is_own(self) -> bool:
        return bool(self._is_owned())


class Condition(_RLock):  # type: ignore[misc]
    """A `threading.Condition` that stays intact if Ctrl-C interrupts it at any moment.

    It is its own lock. `threading.Condition` handles its lock in Python. There, a signal may
    interrupt the thread just after it has taken the lock, which is then never released.
    """

    def __init__(self) -> None:
        self._waiters: list[Any] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification. Return whether there was one within the timeout (seconds)."""
        waiter, held = threading.Lock(), list[Any]()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            # In one call, because a signal between two calls would lose the state of the lock.
            held.extend(starmap(self._release_save, ((),)))
            is_notified = waiter.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        finally:
            if held:
                self._acquire_restore(held[0])
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        return is_notified

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until the predicate is true, or for the timeout (seconds). Return its last value."""
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
            any(wake)  # one call, which no signal can interrupt


class Waker:
    """Wakes a thread that polls `receiver`. Several pending wake-ups count as one.

    A wake-up is recorded only after it is done. So if Ctrl-C interrupts a wake-up, the next one
    wakes the thread again.
    """

    receiver: Any = -1

    def __init__(self) -> None:
        # So that no thread writes to the descriptor of a different file. Reentrant, because a
        # signal handler may close the node while its thread holds the lock.
        self._lock = threading.RLock()
        self.receiver = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._cleared = 0
        self._woken_at = -1  # value of `_cleared` when the thread was last woken

    def wake(self) -> None:
        """Wake the thread. Any thread may call this. After `close` it does nothing."""
        cleared = self._cleared
        if self._woken_at == cleared:
            return  # the thread has not yet begun to process the last wake-up
        with self._lock:
            if self.receiver >= 0:
                os.eventfd_write(self.receiver, 1)
        self._woken_at = cleared

    def clear(self) -> None:
        """Forget all wake-ups so far. The polling thread calls this before it processes them."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.receiver)
        self._cleared += 1  # last, because a wake-up before the read would count as still pending

    def close(self) -> None:
        """Close the descriptor. Call this after the polling thread has ended."""
        with self._lock:
            descriptor, self.receiver = self.receiver, -1
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()  # if its thread could not be created


SOCKET_NEEDS = 16  # a context's first socket needs 8; without them, libzmq ends the process
NODE_NEEDS = 40  # for its listening sockets, its board, and its first connections


class DescriptorsError(UserError, zmq.ZMQError):
    """This process has too few file descriptors left for sockets."""

    def __init__(self, message: str) -> None:
        zmq.ZMQError.__init__(self, errno.EMFILE, message)


def open_descriptors() -> int:
    """Return the number of file descriptors in use, or 0 if it is unknown."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        return sum(int(name) < limit for name in os.listdir("/dev/fd")) - 1  # noqa: PTH208
    except OSError as error:
        return limit if error.errno in (errno.EMFILE, errno.ENFILE) else 0


def require_descriptors(needed: int) -> None:
    """Raise a `DescriptorsError` if this many more files and sockets cannot be opened."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with suppress(OSError):
        # The number of open files, since Linux 6.2 (0 before). To list thousands takes ms.
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
    """The environment of a node, which is also the clock of all its parts.

    A simulated runtime returns its own objects in place of the types in these signatures.
    """

    @property
    def bytes_scale(self) -> float:
        """The number of simulated bytes that each byte of a state represents, or 1 in real runs."""
        ...

    def wall_time(self) -> float:
        """Seconds since the epoch."""
        ...

    def thread_time(self) -> float:
        """Seconds of processor time that the calling thread has used."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for some seconds."""
        ...

    def condition(self) -> Condition:
        """Return a `Condition`: a condition variable that includes its own lock."""
        ...

    def call_lock(self) -> CallLock:
        """Return a `CallLock`."""
        ...

    def waker(self) -> Waker:
        """Return a `Waker`."""
        ...

    def event(self) -> threading.Event:
        """Return a `threading.Event`."""
        ...

    def queue(self) -> SimpleQueue[Any]:
        """Return a `queue.SimpleQueue`."""
        ...

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """Return a daemon thread that is not started yet."""
        ...

    def current_thread(self) -> threading.Thread:
        """Return the calling thread."""
        ...

    def token_bytes(self, count: int) -> bytes:
        """Return random bytes that no other node or process has."""
        ...

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Return a context manager that delays Ctrl-C. See `dpwa.lifecycle.uninterrupted`."""
        ...

    def zmq_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Return the ZeroMQ context that creates all sockets."""
        ...

    def poller(self) -> zmq.Poller:
        """Return a poller for ZeroMQ sockets."""
        ...


class SystemRuntime(SystemClock):
    """The time, threads and sockets of the machine itself."""

    bytes_scale = 1.0

    def wall_time(self) -> float:
        return time.time()

    thread_time = staticmethod(time.thread_time)  # static, because every message calls it
    sleep = staticmethod(time.sleep)

    condition = staticmethod(Condition)
    call_lock = staticmethod(CallLock)
    waker = staticmethod(Waker)

    def event(self) -> threading.Event:
        """Return an event whose condition survives Ctrl-C."""
        event = threading.Event()
        event._cond = Condition()  # type: ignore[attr-defined]
        return event

    queue: Callable[[], SimpleQueue[Any]] = staticmethod(SimpleQueue)

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    def current_thread(self) -> threading.Thread:
        return threading.current_thread()

    def token_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def uninterrupted(self) -> AbstractContextManager[None]:
        return uninterrupted()

    def zmq_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Return a ZeroMQ context that raises `DescriptorsError` if descriptors are used up."""
        return _Context()

    def poller(self) -> zmq.Poller:
        return zmq.Poller()


SYSTEM: Runtime = SystemRuntime()


class Background:
    """Runs long work on separate threads, one at a time for each key. Not thread-safe."""

    def __init__(self, owner: str, runtime: Runtime) -> None:
        self._owner = owner
        self._runtime = runtime
        self._running: dict[str, threading.Thread] = {}

    def start(self, key: str, function: Callable[[], None]) -> bool:
        """Start a function, or return False if a function with this key still runs."""
        running = self._running.get(key)
        if running is not None and running.is_alive():
            return False
        thread = self._runtime.thread(function, f"dpwa-members-{self._owner}")
        self._running[key] = thread
        thread.start()
        return True

    def finish(self, key: str, timeout_s: float) -> None:
        """Wait for the function of this key, for at most `timeout_s` seconds."""
        running = self._running.get(key)
        if running is not None:
            running.join(timeout_s)
