"""NodeThread: a thread of a node. Other threads queue calls for it (`soon`, `wake`)."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from dpwa.runtime import Runtime

Self = TypeVar("Self", bound="NodeThread")
Arguments = ParamSpec("Arguments")


def soon(
    method: Callable[Concatenate[Self, Arguments], None],
) -> Callable[Concatenate[Self, Arguments], None]:
    """Queue each call of a method for the object's own thread, and return to the caller at once.

    The thread makes calls in order of arrival. After the thread has ended, calls are dropped.
    """

    @functools.wraps(method)
    def called(self: Self, /, *args: Arguments.args, **options: Arguments.kwargs) -> None:
        self.call_soon(method, self, *args, **options)

    return called


class NodeThread:
    """One thread of a node. Other threads wake it when it has something to do."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.name = name
        self._runtime = runtime
        self.waker = runtime.waker()  # the thread polls its `receiver`
        self._calls: queue.SimpleQueue[tuple[Callable[..., None], Any, Any]] = queue.SimpleQueue()
        self._thread = runtime.thread(self._run, name)

    @property
    def was_started(self) -> bool:
        return self._thread.ident is not None

    def wake(self) -> None:
        """Make the thread check at once whether work is due. Any thread may call this."""
        self.waker.wake()

    def call_soon(self, function: Callable[..., None], *args: Any, **options: Any) -> None:
        """Queue a function call for the thread. Any thread may call this. See `soon`."""
        self._calls.put((function, args, options))
        self.waker.wake()

    def make_calls(self) -> None:
        """Make all waiting calls, on the thread itself."""
        self.waker.clear()  # first, so that a call that is queued from now on wakes the thread
        try:
            while not self._calls.empty():
                function, args, options = self._calls.get()
                function(*args, **options)
        finally:
            if not self._calls.empty():  # a call has failed, and the other calls are still made
                self.waker.wake()

    def discard(self) -> None:
        self.waker.close()

    def request_stop(self) -> None:
        raise NotImplementedError

    def stop(self, timeout_s: float | None) -> bool:
        """Ask the thread to end, and return whether it ended within `timeout_s`."""
        self.request_stop()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self.waker.close()
        return True

    def _run(self) -> None:
        """Do the thread's work, until the thread is asked to end."""
        raise NotImplementedError
