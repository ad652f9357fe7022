"""Joiner fetches a part of a training's state from several peers at once."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np

from dpwa import fault_points
from dpwa.clock import Clock, Deadline
from dpwa.data.checksum import checksum
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError
from dpwa.node.serving.service import Listener
from dpwa.runtime import SYSTEM, Runtime
from dpwa.state.download import ASK_EVERY_S, SILENT_S, STALL_S, Candidates, Download
from dpwa.state.safetensors_image import ImageLayout
from dpwa.transport.link import LinkState
from dpwa.transport.sockets import CONNECT_TIMEOUT_MS
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.messages import Message, unpack_layout
from dpwa.wire.state import (
    AskPiece,
    AskState,
    OtherState,
    PartName,
    StateBusy,
    StateDone,
    StateGone,
    StateOffer,
    StatePiece,
    StateStanding,
)

log = logging.getLogger("dpwa.state")

MAX_WAITING = 256  # maximum number of queued answers, more than this node requests at once

Answer = StateStanding | StateBusy | OtherState | StateOffer | StatePiece | StateGone


class DonorAnswer(NamedTuple):
    """An answer of a peer, with its payload."""

    peer: str
    message: Answer
    payload: Frame


class Inbox(Listener):
    """Queues the answers of peers about their states. A closed or full queue drops new answers."""

    handles = (StateStanding, StateBusy, OtherState, StateOffer, StatePiece, StateGone)

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._runtime = runtime
        self._received: SimpleQueue[DonorAnswer] | None = None  # `None`: closed

    def open(self) -> None:
        self._received = self._runtime.queue()

    def close(self) -> None:
        self._received = None

    def receive(self, peer: str, message: Answer, payload: Frame) -> None:
        """Add an answer of a peer to the queue. The TxThread calls this."""
        received = self._received
        if received is not None and received.qsize() < MAX_WAITING:
            received.put(DonorAnswer(peer, message, payload))

    def take_answers(self, timeout_s: float) -> list[DonorAnswer]:
        """Return all answers so far, in order. Wait up to `timeout_s` for the first answer."""
        received, taken = self._received, list[DonorAnswer]()
        with suppress(Empty):
            while received is not None and not (taken and received.empty()):
                taken.append(received.get(timeout=timeout_s))
        return taken


GRACE_S = 0.3  # for peers that refuse connections, because nodes do not start at the same moment
CONNECT_S = CONNECT_TIMEOUT_MS / 1000  # for peers that neither refuse nor accept connections


@dataclass(frozen=True)
class Patience:
    """The time limits of a joining node, for waiting for peers that may send a state."""

    refused_s: float = GRACE_S  # for peers that refuse connections: they may not listen yet
    connecting_s: float = CONNECT_S  # for peers that neither refuse nor accept connections
    silent_s: float = SILENT_S  # for connected peers that do not report their clocks
    # for the first copy of a state, which a peer's trainer makes at its next update
    offered_s: float = math.inf


# A peer well ahead has listened for long. A node that learns of it later adopts its state then.
BRIEF = Patience(refused_s=0.0, connecting_s=0.3, silent_s=1.0, offered_s=5.0)


@dataclass(frozen=True)
class StateRequest:
    """The request for a part of a state."""

    part: PartName
    kind: Layout | None  # the required kind; `None`: any
    most_bytes: int  # maximum size of the image
    layout: ImageLayout | None = None  # the image's layout, if it is known
    newer_than: float = 0.0  # the clock that a donor must exceed
    # The copies of the other parts, by donor. If there are any, this part must be of one of them.
    tokens: Mapping[str, bytes] = field(default_factory=dict)
    without: Collection[str] = ()  # the names of peers that are not asked
    is_alone: bool = False  # whether a single donor must send all pieces
    patience: Patience = Patience()
    node: str = ""  # the name of the joining node


@dataclass(frozen=True)
class Fetched:
    """A fetched part of a state. The pieces come from one donor, or several with equal copies."""

    image: ByteArray
    numbers: bytes  # values other than tensors
    clock: float
    updates: int
    pieces: Mapping[str, int]  # the number of pieces by donor
    tokens: Mapping[str, bytes]  # the donors' copies


@dataclass(frozen=True)
class JoinResult:
    """The result of an attempt to fetch a state."""

    fetched: Fetched | None
    # by peer: the reason why its state does not fit, in words
    differences: Mapping[str, str] = field(default_factory=dict)
    is_late: bool = False  # whether donors exist and the time limit passed
    came: int = 0  # the number of bytes out of `nbytes` that arrived, if not all did
    nbytes: int = 0


POLL_S = 0.005
CONNECT_EVERY_S = 0.25
FIRST_CONNECTIONS = 8  # made at once if peers are many; then twice as many, and so on
AGAIN_S = 1.0  # time after which a donor that was given up is asked again

Links = Callable[[], Mapping[str, LinkState]]
Tell = Callable[[str, Message], None]


@dataclass(eq=False)
class Joiner:
    """Fetches parts of a state one after the other, on the caller's thread."""

    links: Links  # returns the known peers, with the state of the connection to each
    tell: Tell  # sends a message to a peer
    connect: Callable[[int], None]  # connects to this number of further peers, at most
    inbox: Inbox  # the queue of the answers
    clock: Clock
    most_donors: int  # maximum number of donors of equal copies that send pieces at once
    piece_bytes: int = limits.CHUNK_BYTES  # the size of each piece but the last
    # returns whether all expected peers are known; until then, a missing peer is no reason to stop
    is_settled: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        # the last incomplete fetch; the next fetch reuses its pieces
        self.cut_off: _Attempt | None = None

    def fetch(self, request: StateRequest, timeout_s: float) -> JoinResult:
        """Fetch a part. Return as soon as it is clear that no peer has the part."""
        attempt = _Attempt(self, request)
        self.inbox.open()
        try:
            return attempt.fetch_state(Deadline(self.clock, timeout_s))
        finally:
            attempt.release_donors()
            self.inbox.close()


_OF_EQUAL_COPIES = ("token", "updates", "fingerprint", "nbytes")


class _Attempt:
    """One attempt to fetch a part of a state from peers."""

    def __init__(self, joiner: Joiner, request: StateRequest) -> None:
        self._joiner = joiner
        self._request = request
        self._most = 1 if request.is_alone else joiner.most_donors
        silent_s = request.patience.silent_s
        self._candidates = Candidates(self._most, request.without, silent_s)
        self._kind = b"" if request.kind is None else request.kind.fingerprint
        self._asked: dict[int, tuple[str, int]] = {}  # requested pieces, by request number
        self._questions: dict[int, str] = {}  # peers asked for a state, by request number
        self._donors: set[str] = set()
        self._offers: dict[str, tuple[StateOffer, bytes]] = {}  # the last offer of each donor
        self._download: Download | None = None
        self._image: ByteArray = np.empty(0, np.uint8)
        self._seen: dict[str, float] = {}  # the times since which peers are known
        self._connects_at, self._connects = 0.0, FIRST_CONNECTIONS
        self._are_some_up = False  # whether a peer is connected
        self._hopeful = joiner.clock.now()  # the last time when a peer could give the state
        self._began = self._moved = self._hopeful  # times of the first request, last piece
        before, joiner.cut_off = joiner.cut_off, self
        if before is not None and before._download and before._request.part == request.part:
            self._download, self._image = before._download, before._image
            self._offers, self._moved = before._offers, before._moved
            for donor in self._download.donors:
                self._download.remove(donor)

    def fetch_state(self, deadline: Deadline) -> JoinResult:
        while not deadline.expired():
            is_settled = self._joiner.is_settled()  # before the links, which then have all peers
            now, links = self._joiner.clock.now(), self._links()
            self._connect(links, now)
            self._follow(links, now)
            are_all_met = is_settled and not self._is_any_open(links.values())
            self._ask(now, are_all_met=are_all_met)
            wait_s = min(POLL_S, deadline.remaining_s() or POLL_S)
            for received in self._joiner.inbox.take_answers(wait_s):
                self._hear(received)
            if self._download is not None and self._download.is_complete:
                self._joiner.cut_off = None
                return JoinResult(self._fetched(self._download))
            if self._is_hopeless(links, now) and is_settled:
                break
        pieces = 0 if self._download is None else sum(self._download.brought.values())
        nbytes = self._image.nbytes
        came = min(nbytes, pieces * self._joiner.piece_bytes)
        is_late = self._candidates.give
        return JoinResult(None, self._candidates.differences, is_late, came, nbytes)

    def _links(self) -> Mapping[str, LinkState]:
        tokens, links = self._request.tokens, self._joiner.links()
        return {name: links[name] for name in links if name in tokens} if tokens else links

    def _connect(self, links: Mapping[str, LinkState], now: float) -> None:
        """Connect to more peers from time to time, until a peer sends its state."""
        self._are_some_up = LinkState.UP in links.values()
        is_due = not (self._download and self._download.donors) and now >= self._connects_at
        if is_due and LinkState.IDLE in links.values():
            self._connects_at = now + CONNECT_EVERY_S
            self._joiner.connect(self._connects)
            self._connects *= 2

    def release_donors(self) -> None:
        for donor in sorted(self._donors):
            self._joiner.tell(donor, StateDone(request=0))

    def _follow(self, links: Mapping[str, LinkState], now: float) -> None:
        """Stop fetching from donors that cannot be reached, or that send nothing."""
        up = [name for name, state in links.items() if state is LinkState.UP]
        if self._download is not None:
            for donor in self._download.donors:
                match links.get(donor):
                    case LinkState.UP:
                        pass
                    case LinkState.IDLE:  # the next request connects to it again
                        self._download.disconnected(donor, now)
                    case _:
                        self._give_up(donor, now)
            for donor in self._download.stalled(now):
                text = "%s: donor %s has sent no piece of its state for %g s [DPWA-W102]"
                log.warning(text, self._request.node, donor, STALL_S)
                self._give_up(donor, now + AGAIN_S)
                if self._request.tokens:  # another peer may give all parts
                    self._candidates.lose(donor)
        self._candidates.reach(up, now)

    def _ask(self, now: float, *, are_all_met: bool) -> None:
        request = self._request
        for name, prepares in self._candidates.pick_due(now, are_all_met=are_all_met):
            number = next(self._joiner.numbers)
            self._questions[number] = name
            offer, _ = self._offers.get(name, (None, b""))
            ask = AskState(
                request=number,
                part=request.part,
                kind=self._kind,
                prepares=prepares,
                token=offer.token if offer else request.tokens.get(name, b""),
            )
            self._joiner.tell(name, ask)
            if prepares:
                self._donors.add(name)
        for donor, index in () if self._download is None else self._download.requests(now):
            number = next(self._joiner.numbers)
            self._asked[number] = donor, index
            token = self._offers[donor][0].token
            piece = AskPiece(request=number, token=token, part=request.part, index=index)
            self._joiner.tell(donor, piece)

    def _hear(self, received: DonorAnswer) -> None:
        peer, message, payload = received
        now = self._joiner.clock.now()
        is_of_piece = isinstance(message, StatePiece | StateGone)
        if not is_of_piece and self._questions.pop(message.request, None) != peer:
            return  # the answer belongs to an earlier fetch
        match message:
            case StateStanding():
                useful = message.is_trained and message.is_sound
                useful &= message.clock > self._request.newer_than
                self._candidates.stands(peer, message.clock, now, is_trained=useful)
            case StateBusy():
                self._candidates.postpone(peer, now + max(ASK_EVERY_S, message.retry_after_s))
            case OtherState():
                self._differs(peer, payload)
            case StateOffer():
                self._offered(peer, message, payload, now)
            case StatePiece():
                self._arrived(peer, message, payload, now)
            case StateGone() if self._asked.pop(message.request, ("", 0))[0] == peer:
                self._give_up(peer, now)

    def _differs(self, peer: str, payload: Frame) -> None:
        candidate = self._candidates.peers.get(peer)
        kind = self._request.kind
        if candidate is None:
            return
        try:
            count, descriptions = unpack_layout(payload)
        except ProtocolError:
            self._candidates.lose(peer)
            return
        found = None if kind is None else kind.difference(descriptions, count)
        candidate.difference = (
            "the peer has none" if count == 0 else found or "not in its description"
        )

    def _offered(self, peer: str, offer: StateOffer, payload: Frame, now: float) -> None:
        candidate = self._candidates.peers.get(peer)
        if candidate is None or candidate.offer is not None or candidate.preparing is None:
            return
        expected = self._request.tokens.get(peer, offer.token)
        is_fit = self._is_fit(offer) and offer.token == expected
        if not is_fit or not candidate.can_offer(offer.clock, now):
            self._candidates.lose(peer)
        elif not self._goes_with_others(peer, offer):
            self._candidates.postpone(peer, now + AGAIN_S)
        else:
            try:
                download = self._begin(offer, now)
            except MemoryError:
                self._candidates.lose(peer)
                return
            candidate.offer = offer
            self._offers[peer] = offer, bytes(payload)
            download.add_donor(peer, now)

    def _is_fit(self, offer: StateOffer) -> bool:
        layout = self._request.layout
        if layout is None:
            return offer.nbytes <= self._request.most_bytes
        return (offer.fingerprint, offer.nbytes) == (layout.fingerprint, layout.nbytes)

    def _goes_with_others(self, peer: str, offer: StateOffer) -> bool:
        """Return whether `offer` equals the fetched copy. If no donor is left, restart with it."""
        first = next(iter(self._offers.values()), None)
        if first is None or self._download is None:
            return True
        is_equal = self._most > 1 or peer in self._offers
        if is_equal and all(
            getattr(first[0], each) == getattr(offer, each) for each in _OF_EQUAL_COPIES
        ):
            return True
        if self._download.donors:
            return False
        self._download, self._image = None, np.empty(0, np.uint8)
        self._offers.clear()
        self._asked.clear()
        return True

    def _begin(self, offer: StateOffer, now: float) -> Download:
        if self._download is None:
            self._began = self._moved = now
            self._image = np.empty(offer.nbytes, np.uint8)
            self._download = Download(-(-offer.nbytes // self._joiner.piece_bytes))
        return self._download

    def _arrived(self, peer: str, piece: StatePiece, payload: Frame, now: float) -> None:
        asked = self._asked.get(piece.request)
        if asked is None or asked != (peer, piece.index) or self._download is None:
            return
        del self._asked[piece.request]
        piece_bytes = self._joiner.piece_bytes
        room = self._image[piece.index * piece_bytes :][:piece_bytes]
        data = np.frombuffer(payload, np.uint8)
        if data.nbytes != room.nbytes or checksum(data) != piece.checksum:
            if self._download.corrupted(peer, piece.index):
                self._give_up(peer, now)
                self._candidates.lose(peer)
            return
        if self._download.arrived(peer, piece.index, now):
            room[:] = data
            self._moved = now
            fault_points.reached("state.piece_received")

    def _give_up(self, donor: str, until: float) -> None:
        if self._download is not None:
            self._download.remove(donor)
        self._candidates.postpone(donor, until)

    def _is_hopeless(self, links: Mapping[str, LinkState], now: float) -> bool:
        """Return whether no reachable peer has a state that this node could adopt."""
        if self._candidates.give:
            self._hopeful = now
            return self._is_kept_waiting(now)
        patience_s = 0.0
        if self._download is not None:
            # Donors whose connections are lost may return soon. Fetching the pieces again would
            # take as long as it took before.
            patience_s = max(CONNECT_S, self._moved - self._began)
        elif self._candidates.first_trained is not None:
            patience_s = 2 * ASK_EVERY_S  # the lost donor may have given its state to another peer
        if now - self._hopeful < patience_s:
            return False
        # With thousands of peers, nearly all are idle, and this loop runs at each turn.
        idle = LinkState.IDLE if self._are_some_up else None
        others = [(name, state) for name, state in links.items() if state is not idle]
        if any(self._may_come_up(name, state, now) for name, state in others):
            return False
        for name in links.keys() - self._seen.keys():
            self._seen[name] = now
        return self._candidates.have_answered(now)

    def _is_kept_waiting(self, now: float) -> bool:
        since = self._candidates.first_trained
        waited_s = 0.0 if since is None else now - since
        return self._download is None and waited_s >= self._request.patience.offered_s

    def _may_come_up(self, name: str, state: LinkState, now: float) -> bool:
        age_s = now - self._seen.setdefault(name, now)
        patience = self._request.patience
        if self._is_any_open([state]):
            return age_s < patience.connecting_s
        return state is LinkState.DOWN and age_s < patience.refused_s

    def _is_any_open(self, states: Collection[LinkState]) -> bool:
        """Return whether a peer is connecting, or an idle peer will be, since none is connected."""
        is_next = not self._are_some_up and LinkState.IDLE in states
        return is_next or LinkState.CONNECTING in states

    def _fetched(self, download: Download) -> Fetched:
        pieces = download.brought
        offer, numbers = self._offers[max(pieces, key=pieces.__getitem__)]
        return Fetched(
            self._image,
            numbers,
            self._candidates.counted(offer.clock),
            offer.updates,
            dict(pieces),
            {donor: self._offers[donor][0].token for donor in pieces},
        )
