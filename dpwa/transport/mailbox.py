"""A mailbox: how other threads talk to a thread that waits on sockets."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Generic, TypeVar

import zmq

from dpwa.transport.sockets import NOBLOCK, Context, Socket

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """A queue with an inproc PAIR that wakes its reader.

    Any thread may `put`; one thread reads: it polls `receiver` and calls `take_all`.
    """

    def __init__(self, context: Context) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._sending = threading.RLock()
        self._is_awake = False  # whether a wake-up is on its way, or was not acted on yet
        endpoint = f"inproc://mailbox-{id(self)}"
        self.receiver: Socket = context.socket(zmq.PAIR)
        self.receiver.linger = 0
        self.receiver.bind(endpoint)
        self._sender: Socket = context.socket(zmq.PAIR)
        self._sender.linger = 0
        self._sender.connect(endpoint)

    def put(self, item: Item) -> None:
        """Leave an item and wake the reader. After `close` it is dropped."""
        self._items.put(item)
        with self._sending:
            if self._is_awake or self._sender.closed:
                return
            # One wake-up at a time: a full pipe looks full to its sender for a while after it was
            # emptied, and a wake-up that is dropped then would be missed.
            self._is_awake = True
            try:
                self._sender.send(b"", NOBLOCK)
            except zmq.ZMQError:
                if not self._sender.closed:  # a signal handler may just have closed the node
                    raise

    def take_all(self) -> Iterator[Item]:
        """Yield every waiting item; the reader's side."""
        with suppress(zmq.Again):
            while True:
                self.receiver.recv(NOBLOCK)
        self._is_awake = False  # first: whoever puts an item from now on wakes the reader again
        while not self._items.empty():
            yield self._items.get()

    def discard_all(self) -> None:
        """Forget every waiting item: they only said that something was up."""
        for _ in self.take_all():
            pass

    def close(self) -> None:
        """Close both ends, after the reader has ended."""
        with self._sending:
            self._sender.close(0)
        self.receiver.close(0)
