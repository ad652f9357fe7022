"""Bytes of other members' images, over the network, a bounded number of pieces at once.

`CollectiveService` is the RxThread's side: it takes in what members say, and serves their pulls.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import Group
from dpwa.collectives.views import Key
from dpwa.data.segments import ByteArray
from dpwa.node.serving.service import Listener, Reply, Service
from dpwa.node.serving.upload import Upload
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.collecting import (
    AskToJoinView,
    CollectiveOutcome,
    Evicted,
    Hello,
    Post,
    Pull,
    PulledPiece,
    Vote,
)

POLL_S = 0.02  # at least so often whoever waits for pieces looks for events
PIECES_UNDER_WAY = 4  # from each peer: keeps the wire full


@dataclass(frozen=True)
class PullRequest:
    """The bytes from `start` to `stop` of an area, asked of a peer."""

    peer: str
    area: int
    start: int
    stop: int


@dataclass(frozen=True)
class Arrived:
    request: PullRequest
    data: ByteArray


@dataclass
class _PeerQueue:
    waiting: deque[PullRequest] = field(default_factory=deque)
    under_way: int = 0


class PullListener(Listener):
    """Hands pieces that arrive to whoever has asked for them."""

    handles = (PulledPiece,)

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._asked: dict[int, tuple[PullRequest, SimpleQueue[Arrived]]] = {}
        self.received_bytes = 0

    def link_changed(self, peer: str, *, is_up: bool) -> None:
        self._contacts.link_changed(peer, is_up=is_up)

    def let_go(self, peer: str) -> None:
        self._contacts.let_go(peer)

    def receive(self, peer: str, message: PulledPiece, payload: Frame) -> None:
        """Take in a piece; drop what nobody has asked this peer for, or has the wrong size."""
        with self._lock:
            asked = self._asked.pop(message.request, None)
        if asked is None:
            return
        request, arrived = asked
        data = np.frombuffer(payload, np.uint8)
        if (peer, message.start, data.nbytes) == (
            request.peer,
            request.start,
            request.stop - request.start,
        ):
            self.received_bytes += data.nbytes
            arrived.put(Arrived(request, data))

    def ask(self, request: PullRequest, arrived: SimpleQueue[Arrived]) -> int:
        """Return a number for a request, whose answer goes into `arrived`."""
        number = next(self._numbers)
        with self._lock:
            self._asked[number] = request, arrived
        return number

    def forget(self, numbers: set[int]) -> None:
        """Drop what comes for these requests."""
        with self._lock:
            for number in numbers:
                self._asked.pop(number, None)


class Puller:
    """The pulls of one collective."""

    def __init__(
        self,
        listener: PullListener,
        contacts: Contacts,
        arrived: SimpleQueue[Arrived],
        header: dict[str, Any],  # fields that all its pulls have in common
    ) -> None:
        self._listener = listener
        self._contacts = contacts
        self._header = header
        self._lanes: dict[str, _PeerQueue] = {}
        self._arrived = arrived
        self._numbers: set[int] = set()
        self.missing = 0

    def request(self, request: PullRequest) -> None:
        """Ask for a piece, as soon as there is room."""
        self._lanes.setdefault(request.peer, _PeerQueue()).waiting.append(request)
        self.missing += 1

    def start(self) -> None:
        for lane in self._lanes.values():
            self._fill(lane)

    def take(self, timeout_s: float) -> Arrived | None:
        try:
            arrived = self._arrived.get(timeout=timeout_s)
        except Empty:
            return None
        self.missing -= 1
        lane = self._lanes[arrived.request.peer]
        lane.under_way -= 1
        self._fill(lane)
        return arrived

    def close(self) -> None:
        self._listener.forget(self._numbers)

    def _fill(self, lane: _PeerQueue) -> None:
        while lane.waiting and lane.under_way < PIECES_UNDER_WAY:
            request = lane.waiting.popleft()
            lane.under_way += 1
            number = self._listener.ask(request, self._arrived)
            self._numbers.add(number)
            fields = {"area": request.area, "start": request.start, "stop": request.stop}
            self._contacts.tell(
                request.peer, Pull.model_construct(**{**self._header, **fields, "request": number})
            )


BROUGHT, REDUCED = 0, 1  # areas that can be pulled

FindGroup = Callable[[str], Group | None]
AllGroups = Callable[[], Iterable[Group]]


@dataclass(frozen=True)
class Offer:
    """What a node offers to members of other hosts."""

    brought: Mapping[int, ByteArray]  # pieces of its value, by their first byte
    reduced: ByteArray  # where its shard is reduced
    start: int = 0  # first byte of that shard


@dataclass
class _Shown:
    """What members may pull: pieces of a value, and of the shard that is being reduced."""

    view: bytes
    number: int
    brought: Mapping[int, ByteArray]
    reduced: ByteArray
    start: int  # of the shard
    reduced_to: int = 0

    def find(self, pull: Pull) -> ByteArray | None:
        """Return what is asked for; `None` if it is not there yet."""
        if pull.area == BROUGHT:
            return self.brought[pull.start]
        if pull.stop > self.reduced_to:
            return None
        return self.reduced[pull.start - self.start : pull.stop - self.start]

    def allows(self, pull: Pull) -> bool:
        """Tell whether there is, or will be, what is asked for."""
        if pull.area == BROUGHT:
            piece = self.brought.get(pull.start)
            return piece is not None and piece.nbytes == pull.stop - pull.start
        last = self.start + self.reduced.nbytes
        is_short = pull.stop - pull.start <= limits.MAX_PULLED_BYTES
        return is_short and self.start <= pull.start < pull.stop <= last


class PullSource:
    """The buffers of this node that members without shared memory pull from, one for each group."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.RLock()
        self._shown: dict[str, _Shown] = {}
        self.awaited = False  # whether somebody waits for what is being reduced

    def show(self, tag: str, key: Key, offer: Offer) -> None:
        with self._lock:
            self._shown[tag] = _Shown(*key, offer.brought, offer.reduced, offer.start)

    def reduced(self, tag: str, stop: int) -> None:
        """Let them pull what has been reduced: from the start of the shard to `stop`."""
        with self._lock:
            shown = self._shown.get(tag)  # none once the node was closed
            if shown is not None:
                shown.reduced_to = stop
        if self.awaited:
            self._wake()

    def find(self, pull: Pull) -> _Shown | None:
        """Return what is asked for; `None` if the collective is not the one under way."""
        with self._lock:
            shown = self._shown.get(pull.tag)
            is_it = shown is not None and (shown.view, shown.number) == (pull.view, pull.number)
            return shown if is_it else None

    def hide(self, tag: str) -> None:
        """Show nothing of a group any more: its value belongs to the user again."""
        with self._lock:
            self._shown.pop(tag, None)

    def clear(self) -> None:
        with self._lock:
            self._shown.clear()


class CollectiveService(Service):
    """Answers what members of the groups of a node send."""

    handles = (Hello, Post, Vote, CollectiveOutcome, Evicted, AskToJoinView, Pull)

    def __init__(
        self,
        contacts: Contacts,
        find_group: FindGroup,
        groups: AllGroups,
        pull_source: PullSource,
        upload: Upload,
    ) -> None:
        self._contacts = contacts
        self._find = find_group
        self._groups = groups
        self._pull_source = pull_source
        self._upload = upload
        self._waiting: list[tuple[Pull, Reply]] = []
        self.served_bytes = 0

    def handle(
        self,
        sender: bytes,  # noqa: ARG002
        message: Hello | Post | Vote | CollectiveOutcome | Evicted | AskToJoinView | Pull,
        reply: Reply,
    ) -> None:
        if isinstance(message, Hello):
            self._contacts.hear(message)
        elif isinstance(message, Pull):
            self._serve(message, self._upload.shared(message.name, reply))
        else:
            is_peer = self._contacts.knows(message.name)
            group = self._find(message.tag) if is_peer else None
            if group is not None:
                group.hear(message)

    def tick(self, now: float) -> bool:
        """Go on with ballots, and with pulls that had to wait."""
        busy = [group.tick(now) for group in self._groups()]
        waiting, self._waiting = self._waiting, []
        for pull, reply in waiting:
            self._serve(pull, reply)
        self._pull_source.awaited = bool(self._waiting)
        return any(busy) or bool(self._waiting)

    def _serve(self, pull: Pull, reply: Reply) -> None:
        shown = self._pull_source.find(pull)
        if shown is None or not shown.allows(pull):
            return  # of a collective that is over: a ballot tells
        is_sent, data = False, shown.find(pull)
        if data is not None:
            piece = PulledPiece.model_construct(request=pull.request, start=pull.start)
            is_sent = reply(piece, data.data, is_lent=True) is not None
            self.served_bytes += data.nbytes * is_sent
        if not is_sent and len(self._waiting) < limits.MAX_WAITING_PULLS:
            self._waiting.append((pull, reply))
            self._pull_source.awaited = True
