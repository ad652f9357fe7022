"""Answers to reads: rows on their way to whoever has asked for them, piece by piece."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dpwa import fault_points
from dpwa.data.segments import ByteArray
from dpwa.node.serving.service import Reply
from dpwa.wire import limits
from dpwa.wire.tables import TableGot, TableRefused

KEPT_S = 5.0  # for somebody who does not take them
MAX_ANSWER_BYTES = 1024**3  # waiting at once


@dataclass
class ReadAnswer:
    """Rows, or why there are none.

    Attributes:
        request: that asked for them.
        reply: sends a message to whoever did.
        data: the bytes.
        image: the memory that has the values of the shard; 0: none.
        refused: why not.
        sent_bytes: of them.
        until: when it is given up.
    """

    request: int
    reply: Reply
    data: ByteArray = field(default_factory=lambda: np.empty(0, np.uint8))
    image: int = 0
    refused: str | None = None
    sent_bytes: int = 0
    until: float | None = None

    def send(self, now: float) -> bool:
        """Send what is taken; return whether that was all, or nobody takes it."""
        if self.refused is not None:
            reason = self.refused[: limits.MAX_REASON_CHARACTERS]
            self.reply(TableRefused(request=self.request, reason=reason))
            return True
        while self._send_piece():
            self.until = now + KEPT_S
            if self.sent_bytes >= self.data.nbytes:
                fault_points.reached("table.get.answered")
                return True
        self.until = now + KEPT_S if self.until is None else self.until
        return now > self.until

    def _send_piece(self) -> bool:
        start, total = self.sent_bytes, self.data.nbytes
        piece = self.data[start : start + limits.CHUNK_BYTES]
        got = TableGot(request=self.request, start=start, nbytes=total, image=self.image)
        if self.reply(got, piece.data, is_lent=True) is None:
            return False
        self.sent_bytes += piece.nbytes
        return True


class Answers:
    """The answers of a node; sent by the RxThread.

    Args:
        wake: has the RxThread look for more.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._fresh: queue.SimpleQueue[ReadAnswer] = queue.SimpleQueue()
        self._waiting: deque[ReadAnswer] = deque()

    def put(self, answer: ReadAnswer) -> None:
        """Have an answer sent; from any thread."""
        self._fresh.put(answer)
        self._wake()

    def send(self, now: float) -> bool:
        """Send what is taken; return whether something is left."""
        while not self._fresh.empty():
            answer = self._fresh.get()
            nbytes = sum(waiting.data.nbytes for waiting in self._waiting)
            if nbytes < MAX_ANSWER_BYTES:  # who does not get an answer will ask again
                self._waiting.append(answer)
        for _ in range(len(self._waiting)):
            answer = self._waiting.popleft()
            if not answer.send(now):
                self._waiting.append(answer)
        return bool(self._waiting)
