"""How one of the two threads of a node is talked to (Mailbox), and how it ends (NodeThread)."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from dpwa.runtime import Runtime, Waker

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """A queue that any thread puts into and one reads: it polls `receiver`, and
    calls `take_all`.
    """

    def __init__(self, waker: Waker) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._waker = waker
        self.receiver: Any = waker.receiver

    def put(self, item: Item) -> None:
        """Leave an item and wake the reader; after `close` nobody takes it."""
        self._items.put(item)
        self._waker.wake()

    def take_all(self) -> Iterator[Item]:
        """Yield every waiting item; the reader's side."""
        self._waker.clear()  # first: whoever puts an item from now on wakes the reader again
        while not self._items.empty():
            yield self._items.get()

    def close(self) -> None:
        """Wake nobody any more, after the reader has ended."""
        self._waker.close()


class NodeThread:
    """One thread of a node, which others wake when there is something to do.

    It owns `mailbox`, and closes it when it has ended.
    """

    def __init__(self, runtime: Runtime, name: str, mailbox: Mailbox[Any] | Waker) -> None:
        self.name = name
        self._runtime = runtime
        self._mailbox = mailbox
        self._thread = runtime.thread(self._run, name)

    @property
    def is_current(self) -> bool:
        return self._thread is self._runtime.current_thread()

    @property
    def was_started(self) -> bool:
        return self._thread.ident is not None

    def discard(self) -> None:
        self._mailbox.close()

    def end(self) -> None:
        raise NotImplementedError

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end; return whether it did within the time."""
        self.end()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._mailbox.close()
        return True

    def _run(self) -> None:
        """Do its work, until it is asked to end."""
        raise NotImplementedError
