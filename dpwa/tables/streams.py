"""Streams: from each member to each other one, messages in order, each once, a few at a time.

A connection may break and come back, and full queues drop messages; so they are numbered in each
view, kept until the other side has seen them, and sent again when it does not say so. Time is an
argument, and what is to be sent is given to a function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dpwa.errors import ProtocolError
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.tables import InPieces, Numbered

WINDOW = 32  # messages that the other side has not seen: half of what its queue takes
RESEND_AFTER_S = 0.25
LONGEST_RESEND_S = 1.0

Send = Callable[[Any, Frame | None], None]  # of a message


@dataclass(frozen=True)
class Item:
    """Something to be told in a stream.

    Attributes:
        kind: of message.
        fields: of it, but for those that all messages have, and those of its pieces.
        data: its payload; cut into pieces if the kind allows that.
        seen: called when the other side has it; of what is not cut into pieces.
    """

    kind: type[Numbered]
    fields: dict[str, Any] = field(default_factory=dict)
    data: Frame | None = None
    seen: Callable[[], None] | None = None

    def pieces(self) -> Iterator[tuple[dict[str, Any], Frame | None]]:
        """Yield fields and payload of each message."""
        if not issubclass(self.kind, InPieces):
            yield self.fields, self.data
            return
        data = memoryview(self.data or b"")
        for start in range(0, max(len(data), 1), limits.MAX_PUSH_BYTES):
            place = {"start": start, "nbytes": len(data)}
            yield {**self.fields, **place}, data[start : start + limits.MAX_PUSH_BYTES]


class OutgoingStream:
    """The stream to one member in one view.

    Args:
        header: fields that all messages have in common.
        send: sends a message, which may be lost.
    """

    def __init__(self, header: dict[str, Any], send: Send) -> None:
        self._header = header
        self._send = send
        self._sources: deque[Iterator[Item]] = deque()
        self._pieces: Iterator[tuple[dict[str, Any], Frame | None]] = iter(())
        self._item = Item(Numbered)
        self._unseen: deque[tuple[Numbered, Frame | None, Callable[[], None] | None]] = deque()
        self._number = 0
        self._seen_at = self._resent_at = 0.0
        self._patience_s = RESEND_AFTER_S

    def put(self, items: Iterable[Item]) -> None:
        """Tell these, one after the other; they are taken when there is room."""
        self._sources.append(iter(items))

    def pump(self, now: float) -> None:
        """Send what there is room for; send again what nobody has seen for too long."""
        while len(self._unseen) < WINDOW:
            piece = self._next()
            if piece is None:
                break
            if not self._unseen:
                self._seen_at = self._resent_at = now
            self._number += 1
            fields, data = piece
            message = self._item.kind(**{**self._header, **fields, "number": self._number})
            self._unseen.append((message, data, self._item.seen))
            self._send(message, data)
        if self._unseen and now - self._resent_at >= self._patience_s:
            self._patience_s = min(2 * self._patience_s, LONGEST_RESEND_S)
            self.resend(now)

    def resend(self, now: float) -> None:
        """Send again what was not seen."""
        self._resent_at = now
        for message, data, _ in self._unseen:
            self._send(message, data)

    def seen(self, number: int, now: float) -> None:
        """Take note that all up to this number have come."""
        while self._unseen and self._unseen[0][0].number <= number:
            *_, then = self._unseen.popleft()
            self._seen_at = self._resent_at = now
            self._patience_s = RESEND_AFTER_S
            if then is not None:
                then()

    def heard(self, now: float) -> None:
        """Take note that the other side is there, even if it cannot take more yet."""
        self._seen_at = now

    def stalled_s(self, now: float) -> float:
        """Return for how long the other side was silent although something was sent."""
        return now - self._seen_at if self._unseen else 0.0

    @property
    def is_busy(self) -> bool:
        """Whether there is something that was not seen."""
        return bool(self._unseen or self._sources)

    def _next(self) -> tuple[dict[str, Any], Frame | None] | None:
        while True:
            piece = next(self._pieces, None)
            if piece is not None:
                return piece
            item = self._next_item()
            if item is None:
                return None
            self._item, self._pieces = item, item.pieces()

    def _next_item(self) -> Item | None:
        while self._sources:
            item = next(self._sources[0], None)
            if item is not None:
                return item
            self._sources.popleft()
        return None


class IncomingStream:
    """The stream from one member in one view.

    Attributes:
        last: number of the message that was taken last.
        is_owed: whether the other side is to be told of it.
        wants: whether it is to send again what comes after.
    """

    def __init__(self) -> None:
        self.last = 0
        self.is_owed = self.wants = False
        self._needs_none_after = -1  # the next one has come, or was asked for: this was `last` then
        self._data = bytearray()

    def is_next(self, number: int) -> bool:
        """Tell whether a message is the next one; take note if it is not.

        What is missing is asked for once; if that is in vain, it is sent again after a while. What
        has come and cannot be taken yet is not asked for: all that follows would come again and
        again, each time with more answers that ask for it.
        """
        self.is_owed = True
        if number > self.last and self._needs_none_after != self.last:
            self._needs_none_after = self.last
            self.wants |= number > self.last + 1
        return number == self.last + 1

    def take(self, message: Numbered, payload: Frame, most_bytes: int) -> Frame | None:
        """Take a message; return all of its bytes once it is complete.

        Args:
            message: the next one.
            payload: that has come with it.
            most_bytes: that it may have altogether.

        Raises:
            ProtocolError: it is too large, or its pieces do not fit together.
        """
        if not isinstance(message, InPieces):
            self.last = message.number
            return payload
        if message.start == 0:
            self._data = bytearray()
        stop = message.start + len(payload)
        if message.start != len(self._data) or not stop <= message.nbytes <= most_bytes:
            self.last = message.number  # it would be refused again
            raise ProtocolError(
                f"{type(message).__name__}: bytes {message.start} to {stop} of {message.nbytes}, "
                f"expected from {len(self._data)} to at most {most_bytes}"
            )
        if message.start == 0 and stop == message.nbytes:
            self.last = message.number
            return payload
        self._data += payload  # all or nothing: without memory for it, the piece comes again
        self.last = message.number
        return None if stop < message.nbytes else self._data
