"""NodeThread: a thread of a node, on which other threads queue calls (`soon`, `wake`)."""

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
    """Let calls of a method return at once, while its own thread runs it soon.

    Calls are made in order of arrival. After the thread has ended, they are dropped.
    """

    @functools.wraps(method)
    def called(self: Self, /, *args: Arguments.args, **options: Arguments.kwargs) -> None:
        self.call_soon(method, self, *args, **options)

    return called


class NodeThread:
    """One thread of a node, which others wake when there is something to do."""

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
        """Let the thread check at once for due work. Any thread may call this."""
        self.waker.wake()

    def call_soon(self, function: Callable[..., None], *args: Any, **options: Any) -> None:
        """Let the thread call a function. Any thread may call this. See `soon`."""
        self._calls.put((function, args, options))
        self.waker.wake()

    def make_calls(self) -> None:
        """Make all waiting calls, on the thread itself."""
        self.waker.clear()  # first: whoever calls from now on wakes it again
        try:
            while not self._calls.empty():
                function, args, options = self._calls.get()
                function(*args, **options)
        finally:
            if not self._calls.empty():  # one has failed, and costs the others nothing
                self.waker.wake()

    def discard(self) -> None:
        self.waker.close()

    def request_stop(self) -> None:
        raise NotImplementedError

    def stop(self, timeout_s: float | None) -> bool:
        """Ask the thread to end, and return whether it did within the time."""
        self.request_stop()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self.waker.close()
        return True

    def _run(self) -> None:
        """Do its work, until it is asked to end."""
        raise NotImplementedError
