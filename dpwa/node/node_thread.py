"""NodeThread: a thread of a node; others have it make calls (`soon`), or look at once (`wake`)."""

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
    """Have a method run on its thread, soon, whoever calls it; a call returns at once.

    Calls are made in the order in which they came; after the thread has ended, they are dropped.
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
        """Have it look at once whether something has become due; from any thread."""
        self.waker.wake()

    def call_soon(self, function: Callable[..., None], *args: Any, **options: Any) -> None:
        """Have it call a function; from any thread, see `soon`."""
        self._calls.put((function, args, options))
        self.waker.wake()

    def make_calls(self) -> None:
        """Make all calls that wait; the thread's own side."""
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

    def end(self) -> None:
        raise NotImplementedError

    def stop(self, timeout_s: float | None) -> bool:
        """Ask the thread to end; return whether it did within the time."""
        self.end()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self.waker.close()
        return True

    def _run(self) -> None:
        """Do its work, until it is asked to end."""
        raise NotImplementedError
