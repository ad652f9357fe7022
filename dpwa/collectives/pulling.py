"""Pulling: bytes of other members' images, over the network, a bounded number of pieces at once."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from dpwa.collectives.contacts import Contacts
from dpwa.data.segments import ByteArray
from dpwa.node.serving.service import Listener
from dpwa.types import Frame
from dpwa.wire.collecting import Pull, PulledPiece

POLL_S = 0.02  # at least so often whoever waits for pieces looks around
PIECES_UNDER_WAY = 4  # from each peer: keeps the wire full


@dataclass(frozen=True)
class WantedRange:
    """A piece that is wanted from a peer: the bytes from `start` to `stop` of an area."""

    peer: str
    area: int
    start: int
    stop: int


@dataclass(frozen=True)
class Arrived:
    """A piece that was wanted, and its bytes."""

    wanted: WantedRange
    data: ByteArray


@dataclass
class _PeerQueue:
    """What is asked of one peer: pieces that are to be asked for, and how many are under way."""

    waiting: deque[WantedRange] = field(default_factory=deque)
    under_way: int = 0


class PullListener(Listener):
    """Hands pieces that arrive to whoever has asked for them."""

    handles = (PulledPiece,)

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._asked: dict[int, tuple[WantedRange, SimpleQueue[Arrived]]] = {}
        self.received_bytes = 0

    def link_changed(self, peer: str, *, is_up: bool) -> None:
        """Pass on what happened to a connection."""
        self._contacts.link_changed(peer, is_up=is_up)

    def let_go(self, peer: str) -> None:
        """Pass on that an idle connection was given up."""
        self._contacts.let_go(peer)

    def receive(self, peer: str, message: PulledPiece, payload: Frame) -> None:
        """Take in a piece; drop what nobody has asked this peer for, or has the wrong size."""
        with self._lock:
            asked = self._asked.pop(message.request, None)
        if asked is None:
            return
        wanted, arrived = asked
        data = np.frombuffer(payload, np.uint8)
        if (peer, message.start, data.nbytes) == (
            wanted.peer,
            wanted.start,
            wanted.stop - wanted.start,
        ):
            self.received_bytes += data.nbytes
            arrived.put(Arrived(wanted, data))

    def ask(self, wanted: WantedRange, arrived: SimpleQueue[Arrived]) -> int:
        """Return a number for a request, whose answer goes into `arrived`."""
        number = next(self._numbers)
        with self._lock:
            self._asked[number] = wanted, arrived
        return number

    def forget(self, numbers: set[int]) -> None:
        """Drop what comes for these requests."""
        with self._lock:
            for number in numbers:
                self._asked.pop(number, None)


class Puller:
    """The pulls of one collective.

    Args:
        listener: which hears of what arrives.
        contacts: through whom messages go.
        arrived: a queue for what comes.
        header: fields that all pulls of the collective have in common.
    """

    def __init__(
        self,
        listener: PullListener,
        contacts: Contacts,
        arrived: SimpleQueue[Arrived],
        header: dict[str, Any],
    ) -> None:
        self._listener = listener
        self._contacts = contacts
        self._header = header
        self._lanes: dict[str, _PeerQueue] = {}
        self._arrived = arrived
        self._numbers: set[int] = set()
        self.missing = 0

    def want(self, wanted: WantedRange) -> None:
        """Ask for a piece, as soon as there is room."""
        self._lanes.setdefault(wanted.peer, _PeerQueue()).waiting.append(wanted)
        self.missing += 1

    def start(self) -> None:
        """Send the first requests."""
        for lane in self._lanes.values():
            self._fill(lane)

    def take(self, timeout_s: float) -> Arrived | None:
        """Return the next piece that has come; `None` if there is none in time."""
        try:
            arrived = self._arrived.get(timeout=timeout_s)
        except Empty:
            return None
        self.missing -= 1
        lane = self._lanes[arrived.wanted.peer]
        lane.under_way -= 1
        self._fill(lane)
        return arrived

    def close(self) -> None:
        """Forget what has not come."""
        self._listener.forget(self._numbers)

    def _fill(self, lane: _PeerQueue) -> None:
        while lane.waiting and lane.under_way < PIECES_UNDER_WAY:
            wanted = lane.waiting.popleft()
            lane.under_way += 1
            number = self._listener.ask(wanted, self._arrived)
            self._numbers.add(number)
            fields = {"area": wanted.area, "start": wanted.start, "stop": wanted.stop}
            self._contacts.tell(
                wanted.peer, Pull.model_construct(**{**self._header, **fields, "request": number})
            )
