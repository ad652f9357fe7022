"""Runtime: where a node gets its time, its threads and their waiting, chance, and ZeroMQ from.

Nodes get them from the machine. The simulator runs the very same nodes in virtual time: it gives
them another runtime, whose threads are greenlets and whose network is modelled.
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


class Turn(_RLock):  # type: ignore[misc]
    """Belongs to one thread at a time, which may wait for others while it has it.

    Nothing else may be held so long: in virtual time nobody waits for locks.
    """

    @property
    def is_own(self) -> bool:
        """Whether the thread that asks has it."""
        return bool(self._is_owned())


class Condition(_RLock):  # type: ignore[misc]
    """What `threading.Condition` is, and left as it should be by Ctrl-C at any moment.

    It is its own lock. That of `threading` takes and gives back another in Python, where a signal
    may be handled with the lock just taken, which is never given back then.
    """

    def __init__(self) -> None:
        self._waiters: list[Any] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until somebody notifies, at most so many seconds; return whether somebody has."""
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
        """Wait until something is so, at most so many seconds; return what it is."""
        end = None if timeout is None else time.monotonic() + timeout
        while not (result := predicate()):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0.0:
                break
            self.wait(left)
        return result

    def notify_all(self) -> None:
        """Wake all who wait."""
        if self._waiters:
            wake = map(_RELEASE, self._waiters)
            self._waiters = []
            any(wake)  # one call, which no signal cuts short


class Waker:
    """Wakes a thread that polls `receiver`; wake-ups that it has not acted on yet are one.

    A wake-up is remembered when it is done, not before: whoever is interrupted in here leaves
    nothing undone, and the next one wakes the thread once more.

    Attributes:
        receiver: to be polled; readable once somebody has woken the thread.
    """

    def __init__(self) -> None:
        self.receiver: Any = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # So that nobody writes to the descriptor of another file. Reentrant: a signal handler may
        # close the node while its thread is in here.
        self._lock = threading.RLock()
        self._cleared = 0
        self._woken_at = -1  # what that was when the thread was woken

    def wake(self) -> None:
        """Wake the thread; from any thread. After `close` nothing happens."""
        cleared = self._cleared
        if self._woken_at == cleared:
            return  # it has not begun to act on the last one
        with self._lock:
            if self.receiver >= 0:
                os.eventfd_write(self.receiver, 1)
        self._woken_at = cleared

    def clear(self) -> None:
        """Take note of the wake-ups so far; the thread that polls acts on them afterwards."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.receiver)
        self._cleared += 1  # last: what was written before it was read would count as still there

    def close(self) -> None:
        """Give the descriptor back, when the thread has ended."""
        with self._lock:
            descriptor, self.receiver = self.receiver, -1
            if descriptor >= 0:
                os.close(descriptor)


SOCKET_NEEDS = 16  # a context's first socket takes 8: without, libzmq ends the process by SIGABRT
NODE_NEEDS = 40  # with its listening sockets, its board, and the first connections


class DescriptorsError(UserError, zmq.ZMQError):
    """Too few file descriptors are left to this process for sockets."""

    def __init__(self, message: str) -> None:
        zmq.ZMQError.__init__(self, errno.EMFILE, message)


def open_descriptors() -> int:
    """Return how many there are of the file descriptors that this process may have; 0: unknown."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        return sum(int(name) < limit for name in os.listdir("/dev/fd")) - 1  # noqa: PTH208
    except OSError as error:
        return limit if error.errno in (errno.EMFILE, errno.ENFILE) else 0


def require_descriptors(needed: int) -> None:
    """Raise a `DescriptorsError` unless this process can open so many files and sockets."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    left = limit - open_descriptors()
    if limit != resource.RLIM_INFINITY and left < needed:
        raise DescriptorsError(
            f"too few file descriptors are left in this process: {left} of {limit} "
            "(see `ulimit -n`) [DPWA-E303]"
        )


def can_open() -> bool:
    """Tell whether this process can open one more file or socket."""
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

    def condition(self) -> Condition:
        """Return what threads wait with until others have changed something; itself the lock."""
        ...

    def turn(self) -> Turn:
        """Return what belongs to one thread at a time."""
        ...

    def waker(self) -> Waker:
        """Return what wakes a thread that polls."""
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

    condition = staticmethod(Condition)
    turn = staticmethod(Turn)
    waker = staticmethod(Waker)

    def event(self) -> threading.Event:
        """Return an event of `threading`, with a condition that Ctrl-C does no harm."""
        event = threading.Event()
        event._cond = Condition()  # type: ignore[attr-defined]
        return event

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
        """Return a context of ZeroMQ whose sockets raise `DescriptorsError` if too few are left."""
        return _Context()

    def poller(self) -> zmq.Poller:
        """Return a poller of ZeroMQ."""
        return zmq.Poller()


SYSTEM: Runtime = SystemRuntime()


class Background:
    """Runs what may take long on threads of its own, one at a time for each key.

    For one thread to use. `owner` names the threads.
    """

    def __init__(self, owner: str, runtime: Runtime) -> None:
        self._owner = owner
        self._runtime = runtime
        self._running: dict[str, threading.Thread] = {}

    def start(self, key: str, function: Callable[[], None]) -> bool:
        """Run a function, unless one with this key still runs; return whether it was started."""
        running = self._running.get(key)
        if running is not None and running.is_alive():
            return False
        thread = self._runtime.thread(function, f"dpwa-members-{self._owner}")
        self._running[key] = thread
        thread.start()
        return True

    def finish(self, key: str, timeout_s: float) -> None:
        """Wait for the function with this key to end, at most for so long."""
        running = self._running.get(key)
        if running is not None:
            running.join(timeout_s)
