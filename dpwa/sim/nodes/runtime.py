"""The `dpwa.runtime.Runtime` of a simulated process, whose threads are greenlets.

A greenlet that waits switches to the scheduler, the greenlet that runs the events of a
`VirtualNetwork`. The scheduler switches back after the wait, or when another greenlet wakes this
greenlet. No greenlet holds a lock while it waits, so locks do nothing here.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

import zmq

from dpwa.errors import from_extra
from dpwa.runtime import CallLock, Condition, Waker
from dpwa.sim.nodes.zeromq import VirtualContext, VirtualPoller, VirtualSocket
from dpwa.virtual_network import VirtualNetwork

with from_extra("sim", "simulated nodes need greenlet [DPWA-E293]"):
    from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    from dpwa.sim.nodes.tcp import VirtualTcp

EPOCH_S = 1_700_000_000.0  # the wall clock at the start; incarnations depend on it

T = TypeVar("T")


class VirtualRuntime:
    """The runtime of one simulated process, with a virtual clock, threads and sockets."""

    def __init__(self, tcp: VirtualTcp, host: str, rng: random.Random) -> None:
        self.bytes_scale = tcp.scale
        self.is_dead = False  # the process was killed, so no greenlet waits for it
        # when its threads continue; its connections stay, as one of it holds the GIL
        self.stalled_until = 0.0
        self.host = host
        self.tcp = tcp
        self.network: VirtualNetwork = tcp.network
        self.now = tcp.network.clock.now
        self._passed_by_s = 0.0
        self._rng = rng
        self._scheduler = getcurrent()
        self._contexts: list[VirtualContext] = []
        self._threads: list[GreenletThread] = []

    def wall_time(self) -> float:
        """Return seconds since the epoch. A run starts at `EPOCH_S`."""
        return EPOCH_S + self.now()

    def thread_time(self) -> float:
        """Return 0, because threads of a simulated node use no processor time."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        Sleeper(self).sleep(seconds)

    def condition(self) -> Condition:
        return VirtualCondition(self)

    def call_lock(self) -> CallLock:
        return VirtualCallLock(self)

    def waker(self) -> Waker:
        return VirtualWaker(self)

    def event(self) -> threading.Event:
        return VirtualEvent(self)

    def queue(self) -> SimpleQueue[Any]:
        return cast("SimpleQueue[Any]", VirtualQueue(self))

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        thread = GreenletThread(self, self._scheduler, run, name)
        self._threads.append(thread)
        return thread

    def current_thread(self) -> threading.Thread:
        return _current_thread() or threading.current_thread()

    def token_bytes(self, count: int) -> bytes:
        return self._rng.randbytes(count)

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Do nothing: Ctrl-C ends the whole simulation."""
        return nullcontext()

    def zmq_context(self) -> zmq.Context[zmq.Socket[bytes]]:
        context = VirtualContext(self.tcp, self.host)
        self._contexts.append(context)
        return cast("zmq.Context[zmq.Socket[bytes]]", context)

    def poller(self) -> zmq.Poller:
        return cast("zmq.Poller", VirtualPoller(lambda: Sleeper(self)))

    def is_own(self) -> bool:
        """Return whether the current greenlet belongs to this process."""
        current = _current_thread()
        return current is not None and current.runtime is self

    def kill(self) -> None:
        """Kill the process. Its threads stop, and its connections close."""
        self.is_dead = True
        self.now = self._now_of_dead
        for context in self._contexts:
            context.kill()
        for thread in self._threads:
            thread.kill()
        self._threads.clear()

    def pass_by(self, seconds: float) -> None:
        """Advance only the clock of this killed process, so that its cleanup need not wait."""
        self._passed_by_s += seconds

    def _now_of_dead(self) -> float:
        return self.network.clock.now() + self._passed_by_s


class Sleeper:
    """One wait of a greenlet, which ends at `wake` or after a timeout."""

    __slots__ = ("_greenlet", "_is_over", "_is_woken", "_runtime")

    def __init__(self, runtime: VirtualRuntime) -> None:
        self._runtime = runtime
        self._greenlet: greenlet | None = None
        self._is_over = False
        self._is_woken = False

    def sleep(self, timeout_s: float | None) -> bool:
        """Wait at most `timeout_s` seconds for `wake`. Return whether `wake` was called.

        Raises GreenletExit if the process of this greenlet is dead.
        """
        runtime = self._runtime
        if runtime.is_dead:
            if runtime.is_own():
                raise GreenletExit
            runtime.pass_by(timeout_s or 0.0)  # a cleanup after a killed process need not wait
            return True
        timer = None if timeout_s is None else runtime.network.call_later(timeout_s, self._resume)
        self._greenlet = getcurrent()
        runtime._scheduler.switch()
        self._is_over = True
        if timer is not None:
            timer.cancel()
        return self._is_woken

    def wake(self) -> None:
        """Resume the greenlet after all other events of the current moment."""
        if not self._is_woken and not self._is_over:
            self._is_woken = True
            self._runtime.network.call_later(0.0, self._resume)

    def _resume(self) -> None:
        runtime = self._runtime
        if self._is_over or self._greenlet is None or runtime.is_dead:
            return
        stalled_s = runtime.stalled_until - runtime.now()
        if stalled_s > 0.0:
            runtime.network.call_later(stalled_s, self._resume)
            return
        self._is_over = True
        self._greenlet.switch()


class GreenletThread(threading.Thread):
    def __init__(
        self, runtime: VirtualRuntime, scheduler: greenlet, run: Callable[[], None], name: str
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.runtime = runtime
        self._work: Callable[[], None] | None = run
        self._scheduler = scheduler
        self._greenlet: greenlet | None = None
        self._ended = VirtualEvent(runtime)
        self._has_begun = False

    def start(self) -> None:
        """Start the greenlet, after all other events of this moment."""
        self._greenlet = greenlet(self._do_work, self._scheduler)
        self._greenlet.thread = self
        self._has_begun = True
        self.runtime.network.call_later(0.0, self._first)

    @property
    def ident(self) -> int | None:
        return 1 if self._has_begun else None

    def is_alive(self) -> bool:
        return self._has_begun and not self._ended.is_set() and not self.runtime.is_dead

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._ended.wait(timeout)

    def kill(self) -> None:
        """Stop the greenlet. The scheduler calls this."""
        if self._greenlet is not None:
            self._greenlet.throw()
        self._greenlet = self._work = None

    def _first(self) -> None:
        if self._greenlet is not None:
            self._greenlet.switch()

    def _do_work(self) -> None:
        work, self._work = self._work, None
        try:
            if work is not None:
                work()
        finally:
            self._ended.set()


class VirtualCondition(Condition):
    """A greenlet condition variable. No greenlet waits with the lock, so the lock does nothing."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self._runtime = runtime
        self._sleepers: list[Sleeper] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        sleeper = Sleeper(self._runtime)
        self._sleepers.append(sleeper)
        try:
            return sleeper.sleep(timeout)
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        end = None if timeout is None else self._runtime.now() + timeout
        result = predicate()
        while not result and not self._runtime.is_dead:
            left = None if end is None else end - self._runtime.now()
            if left is not None and left <= 0.0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify_all(self) -> None:
        self.notify(None)

    def notify(self, most: int | None = 1) -> None:
        """Wake the greenlets that have waited longest, at most this many."""
        woken = self._sleepers[:most]
        del self._sleepers[:most]
        for sleeper in woken:
            sleeper.wake()


class VirtualEvent(threading.Event):
    def __init__(self, runtime: VirtualRuntime) -> None:
        self._changed = VirtualCondition(runtime)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the event. Return whether it happened, or can never happen."""
        return self._is_set or self._changed.wait(timeout) or self._is_set


class VirtualCallLock(CallLock):
    def __init__(self, runtime: VirtualRuntime) -> None:
        self._runtime = runtime
        self._changed = VirtualCondition(runtime)
        self._holder: threading.Thread | None = None

    @property
    def is_own(self) -> bool:
        return self._holder is self._runtime.current_thread()

    def __enter__(self) -> bool:
        self._changed.wait_for(lambda: self._holder is None)
        self._holder = self._runtime.current_thread()
        return True

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._changed.notify_all()


class VirtualWaker(Waker):
    """Wakes a greenlet that polls."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self.receiver = VirtualSocket(cast("VirtualContext", runtime))

    def wake(self) -> None:
        if not self.receiver.is_readable:
            self.receiver.push([b""])

    def clear(self) -> None:
        with suppress(zmq.Again):
            self.receiver.recv()

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""


class VirtualQueue:
    """A queue between greenlets, like `queue.SimpleQueue`."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self._changed = VirtualCondition(runtime)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._changed.notify()

    def get(self, timeout: float | None = None) -> Any:
        if not self._items:
            self._changed.wait(timeout)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


def _current_thread() -> GreenletThread | None:
    found: GreenletThread | None = getattr(getcurrent(), "thread", None)
    return found
