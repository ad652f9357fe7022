"""Pulls (requests) of members' values on other hosts, with a bounded number of pieces at a time.

The receiver has a `Puller`. Its `PullListener` hands out the pieces that arrive, on the TxThread.
At the other end, `PullSource` serves a member's value and its reduced shard, on the RxThread.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.views import Key
from dpwa.data.segments import ByteArray
from dpwa.lifecycle import Closeable
from dpwa.node.serving.service import Listener, Reply
from dpwa.transport.link import LinkState
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.collecting import Pull, PulledPiece

LOOK_EVERY_S = 0.02  # at least so often whoever waits for something looks whether it has come
PIECES_UNDER_WAY = 4  # from each peer: keeps the wire full
BROUGHT, REDUCED = 0, 1  # areas that can be pulled


class PullRequest(NamedTuple):
    """A request to a peer for bytes `start` to `stop` of its value or of its reduced shard."""

    peer: str
    area: int
    start: int
    stop: int


Arrivals = SimpleQueue[tuple[PullRequest, ByteArray]]


class PullListener(Listener):
    """Passes pieces that arrive to the puller that has asked for them."""

    handles = (PulledPiece,)

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self.numbers = itertools.count(1)
        self.pullers: dict[int, Puller] = {}  # that have started, by the number of their requests
        self.received_bytes = 0

    def link_changed(self, peer: str, state: LinkState) -> None:
        self._contacts.link_changed(peer, state)

    def receive(self, peer: str, message: PulledPiece, payload: Frame) -> None:
        """Pass a piece on, or drop it if it was not requested from this peer or has a bad size."""
        puller = self.pullers.get(message.request)
        request = None if puller is None else puller.under_way.pop((peer, message.start), None)
        if puller is None or request is None:
            return
        data = np.frombuffer(payload, np.uint8)
        if data.nbytes == request.stop - request.start:
            self.received_bytes += data.nbytes
            self._contacts.count(peer, taken=data.nbytes)
            puller.arrived.put((request, data))


class Puller(Closeable):
    """The pulls of one collective. All requests have one number."""

    def __init__(
        self,
        listener: PullListener,
        contacts: Contacts,
        arrived: Arrivals,
        header: dict[str, Any],  # fields that all its pulls have in common
    ) -> None:
        self._listener = listener
        self._contacts = contacts
        self._number = next(listener.numbers)
        self._header = {"request": self._number, **header}
        self._waiting: dict[str, deque[PullRequest]] = {}  # by peer
        self._missing = 0
        # Both also belong to the TxThread. The key is a peer, and where its piece starts. A peer
        # has two areas, but their pieces never start at the same place.
        self.under_way: dict[tuple[str, int], PullRequest] = {}
        self.arrived = arrived

    def request(self, peer: str, area: int, start: int, stop: int) -> None:
        """Queue requests for bytes `start` to `stop` of a peer's value or shard, piece by piece."""
        waiting = self._waiting.setdefault(peer, deque())
        for first in range(start, stop, limits.MAX_PULLED_BYTES):
            last = min(first + limits.MAX_PULLED_BYTES, stop)
            waiting.append(PullRequest(peer, area, first, last))
            self._missing += 1

    def start(self) -> None:
        self._listener.pullers[self._number] = self
        for peer in [*self._waiting] * PIECES_UNDER_WAY:
            self._ask_next(peer)

    def arrivals(self, look: Callable[[], bool]) -> Iterator[tuple[PullRequest, ByteArray]]:
        """Yield all pieces as they arrive. `look` is called from time to time, and ends it by
        returning true.
        """
        while self._missing and not look():
            try:
                request, data = self.arrived.get(timeout=LOOK_EVERY_S)
            except Empty:
                continue
            self._missing -= 1
            self._ask_next(request.peer)
            yield request, data

    def close(self) -> None:
        self._listener.pullers.pop(self._number, None)

    def _ask_next(self, peer: str) -> None:
        if self._waiting[peer]:
            request = self._waiting[peer].popleft()
            self.under_way[peer, request.start] = request
            fields = {"area": request.area, "start": request.start, "stop": request.stop}
            self._contacts.tell(peer, Pull.model_construct(**{**self._header, **fields}))


@dataclass
class _Shown:
    """The data of a collective that members may pull: pieces of a value, and a reduced shard."""

    key: Key
    brought: Mapping[int, ByteArray]  # pieces of the value, by their first byte
    reduced: ByteArray
    start: int  # of the shard
    reduced_to: int = 0

    def find(self, pull: Pull) -> ByteArray | None:
        """Return the bytes that a pull requests, or `None` if they are not reduced yet."""
        if pull.area == BROUGHT:
            return self.brought[pull.start]
        if pull.stop > self.reduced_to:
            return None
        return self.reduced[pull.start - self.start : pull.stop - self.start]

    def allows(self, pull: Pull) -> bool:
        """Return whether a pull requests bytes that this node offers, reduced already or not."""
        if pull.area == BROUGHT:
            piece = self.brought.get(pull.start)
            return piece is not None and piece.nbytes == pull.stop - pull.start
        last = self.start + self.reduced.nbytes
        is_short = pull.stop - pull.start <= limits.MAX_PULLED_BYTES
        return is_short and self.start <= pull.start < pull.stop <= last


class PullSource:
    """Serves this node's values to members that cannot map its memory, one value for each group."""

    def __init__(self, wake: Callable[[], None], sent: Callable[[str, int], None]) -> None:
        self._wake = wake
        self._sent = sent  # called with who has pulled, and how many bytes
        self._lock = threading.RLock()
        self._shown: dict[str, _Shown] = {}
        self._waiting: list[tuple[Pull, Reply]] = []  # of the RxThread
        self._is_awaited = False  # somebody may wait for what is being reduced
        self.served_bytes = 0

    def show(
        self, tag: str, key: Key, brought: Mapping[int, ByteArray], reduced: ByteArray, start: int
    ) -> None:
        """Offer a value's pieces to members, and the shard from `start` as far as it is reduced."""
        with self._lock:
            self._shown[tag] = _Shown(key, brought, reduced, start)

    def reduced(self, tag: str, stop: int) -> None:
        """Let members pull the shard up to `stop`, because this part is now reduced."""
        with self._lock:
            shown = self._shown.get(tag)  # none once the node was closed
            if shown is not None:
                shown.reduced_to = stop
        if self._is_awaited:
            self._wake()

    def hide(self, tag: str) -> None:
        """Stop offering a group's value to members, because the user may change it again."""
        with self._lock:
            self._shown.pop(tag, None)

    def clear(self) -> None:
        with self._lock:
            self._shown.clear()

    def serve(self, pull: Pull, reply: Reply) -> None:
        """Answer a pull, now or as soon as its bytes are available. Called on the RxThread."""
        with self._lock:
            shown = self._shown.get(pull.tag)
        if shown is None or shown.key != (pull.view, pull.number) or not shown.allows(pull):
            return  # of a collective that is over: a ballot tells
        self._is_awaited = True  # before it looks: what is reduced meanwhile wakes this thread
        is_sent, data = False, shown.find(pull)
        if data is not None:
            piece = PulledPiece.model_construct(request=pull.request, start=pull.start)
            is_sent = reply(piece, data.data, is_lent=True) is not None
            if is_sent:
                self.served_bytes += data.nbytes
                self._sent(pull.name, data.nbytes)
        if not is_sent and len(self._waiting) < limits.MAX_WAITING_PULLS:
            self._waiting.append((pull, reply))

    def serve_waiting(self) -> bool:
        """Answer the pulls that had to wait, and return whether some still wait."""
        waiting, self._waiting = self._waiting, []
        for pull, reply in waiting:
            self.serve(pull, reply)
        self._is_awaited = bool(self._waiting)
        return self._is_awaited
