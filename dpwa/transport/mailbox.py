"""A mailbox: how other threads talk to a thread that waits on sockets."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from dpwa.runtime import Waker

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
