"""TxThread: owns the links to all peers and fetches one snapshot at a time."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import zmq

from dpwa.clock import Clock, Deadline
from dpwa.data.layout import Layout
from dpwa.data.snapshot import ByteArray, Snapshot
from dpwa.errors import ProtocolError, VersionError
from dpwa.node.peers import PeerBook
from dpwa.policy.health import Outcome
from dpwa.transport.link import LinkState, PeerLink
from dpwa.transport.mailbox import Mailbox
from dpwa.transport.sockets import Context
from dpwa.wire.fetching import FetchSession
from dpwa.wire.messages import Cancel, Frame, Goodbye, decode

log = logging.getLogger("dpwa.tx")

IDLE_POLL_MS = 1_000
FAREWELL_MS = 100  # for a goodbye to leave; a peer that takes longer does without
ANSWERS_PER_TURN = 16  # of one peer, before deadlines, commands and other peers have theirs


@dataclass(frozen=True)
class Fetched:
    """A peer's snapshot; its data is the thread's buffer, valid until the next fetch is ordered."""

    peer: str
    snapshot: Snapshot


@dataclass(frozen=True)
class FetchOrder:
    """Fetch a snapshot of this layout from one peer before the deadline.

    `future` gets what was fetched, or `None` when nothing came; it never gets an exception.
    """

    layout: Layout
    deadline: Deadline
    future: Future[Fetched | None] = field(default_factory=Future)


@dataclass(frozen=True)
class AddPeer:
    """Connect to a peer."""

    name: str
    endpoint: str


@dataclass(frozen=True)
class RemovePeer:
    """Disconnect from a peer."""

    name: str


@dataclass(frozen=True)
class Stop:
    """End the thread."""


Command = FetchOrder | AddPeer | RemovePeer | Stop


class _ActiveFetch:
    def __init__(self, order: FetchOrder) -> None:
        self.order = order
        self.tried: set[str] = set()
        self.link: PeerLink | None = None
        self.session: FetchSession | None = None
        self.asked = False  # whether the request is on its way


class TxThread(threading.Thread):
    """Fetches what is ordered. A peer that is down is passed over for another at once."""

    def __init__(
        self, name: str, context: Context, book: PeerBook, rng: random.Random, clock: Clock
    ) -> None:
        super().__init__(name=f"dpwa-tx-{name}", daemon=True)
        self._node_name = name
        self._context = context
        self._book = book
        self._rng = rng
        self._clock = clock
        self._commands: Mailbox[Command] = Mailbox(context)
        self._poller = zmq.Poller()
        self._links: dict[str, PeerLink] = {}
        self._active: _ActiveFetch | None = None
        self._requests = itertools.count(1)
        self._buffer: ByteArray = np.empty(0, np.uint8)
        self._stopping = False
        self.bytes_received = 0
        self.late_answers = 0
        self.said_goodbye = False

    def order(self, command: Command) -> None:
        """Hand over a command; returns at once. A new fetch replaces one still under way."""
        self._commands.put(command)

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end; return whether it did within the time."""
        self.order(Stop())
        self.join(timeout_s)
        if self.is_alive():
            return False
        self._commands.close()
        return True

    def run(self) -> None:
        """Own the links from here to the end."""
        self._poller.register(self._commands.receiver, zmq.POLLIN)
        while not self._stopping:
            ready = dict(self._poller.poll(self._patience_ms()))
            try:
                self._step(ready)
            except Exception:
                log.exception("a fetch failed for an unforeseen reason; the node goes on")
                self._finish(None)
        self._finish(None)
        for link in self._links.values():
            if link.state is LinkState.UP:
                self.said_goodbye |= link.send(Goodbye(request=0, name=self._node_name))
            link.close(FAREWELL_MS)

    def _patience_ms(self) -> int:
        if self._active is None:
            return IDLE_POLL_MS
        remaining_ms = self._active.order.deadline.remaining_s() * 1000
        return min(IDLE_POLL_MS, int(remaining_ms) + 1)

    def _step(self, ready: dict[object, int]) -> None:
        for link in list(self._links.values()):
            if link.socket in ready or link.monitor in ready:
                self._read(link)  # first: a peer may answer and be gone
                self._follow(link)
        if self._commands.receiver in ready:
            for command in self._commands.take_all():
                self._obey(command)
        if self._active is not None and self._active.order.deadline.expired():
            self._give_up(Outcome.TIMED_OUT)
            self._finish(None)

    # Commands

    def _obey(self, command: Command) -> None:
        match command:
            case FetchOrder():
                if self._active is not None:
                    self._cancel()
                    self._finish(None)
                self._active = _ActiveFetch(command)
                self._ask_next_peer()
            case AddPeer():
                self._add(command)
            case RemovePeer():
                self._remove(command.name)
            case Stop():
                self._stopping = True

    def _add(self, command: AddPeer) -> None:
        try:
            link = PeerLink(self._context, command.name, command.endpoint)
        except zmq.ZMQError as error:
            log.error("cannot connect to %s at %s: %s", command.name, command.endpoint, error)
            return
        self._links[command.name] = link
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)

    def _remove(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is None:
            return
        self._poller.unregister(link.socket)
        self._poller.unregister(link.monitor)
        link.close()
        if self._active is not None and self._active.link is link:
            self._ask_next_peer()

    # The fetch under way

    def _ask_next_peer(self) -> None:
        """Start a session with the next peer that flow control picks and that is not down."""
        active = self._active
        while active is not None:
            active.link = active.session = None
            active.asked = False
            name = self._book.choose(self._rng, exclude=active.tried)
            if name is None:
                self._finish(None)
                return
            active.tried.add(name)
            link = self._links.get(name)
            if link is None or link.state is LinkState.DOWN:
                self._book.record(name, Outcome.UNREACHABLE)
                continue
            active.link = link
            active.session = FetchSession(next(self._requests), active.order.layout, self._allocate)
            if link.state is LinkState.UP:
                self._request()
            return  # else the request goes out as soon as the link is up

    def _request(self) -> None:
        active = self._active
        if active is None or active.link is None or active.session is None:
            return
        budget_ms = int(active.order.deadline.remaining_s() * 1000)
        if active.link.send(active.session.request_message(budget_ms)):
            active.asked = True
        else:
            self._give_up(Outcome.UNREACHABLE)
            self._ask_next_peer()

    def _follow(self, link: PeerLink) -> None:
        """Act on what happened to a connection."""
        is_active = self._active is not None and self._active.link is link
        for state in link.update():
            if state is LinkState.UP:
                self._book.connected(link.peer)
            if is_active and state is LinkState.UP:
                self._request()
            elif is_active and state is LinkState.DOWN:
                was_asked = self._active is not None and self._active.asked
                self._give_up(Outcome.LOST if was_asked else Outcome.UNREACHABLE)
                self._ask_next_peer()
                is_active = False

    def _read(self, link: PeerLink) -> None:
        for _ in range(ANSWERS_PER_TURN):
            frames = link.receive()
            if frames is None:
                return
            try:
                self._take(link, frames)
            except VersionError as error:
                self._failed(link, Outcome.OTHER_VERSION, str(error))
            except (ProtocolError, MemoryError) as error:
                self._failed(link, Outcome.MISBEHAVED, str(error))

    def _take(self, link: PeerLink, frames: list[Frame]) -> None:
        message, payload = decode(frames)
        self.bytes_received += len(payload)
        active = self._active
        if (
            active is None
            or active.session is None
            or active.link is not link
            or active.session.request != message.request
        ):
            self.late_answers += 1
            return
        credit = active.session.receive(message, payload)
        if credit is not None:
            link.send(credit)
        result = active.session.result
        if result is not None:
            snapshot = result.snapshot
            if snapshot is None:
                self._book.record(link.peer, result.outcome, result.detail)
                self._finish(None)
            else:  # whether it can be merged is for the node to tell
                self._finish(Fetched(link.peer, snapshot))

    def _failed(self, link: PeerLink, outcome: Outcome, detail: str) -> None:
        """A peer broke the protocol: the fetch from it, if any, has ended."""
        if self._active is not None and self._active.link is link:
            self._give_up(outcome, detail)
            self._finish(None)

    def _give_up(self, outcome: Outcome, detail: str = "") -> None:
        """Charge the peer of the fetch under way with its failure."""
        if self._active is not None and self._active.link is not None:
            self._cancel()
            self._book.record(self._active.link.peer, outcome, detail)

    def _cancel(self) -> None:
        """Tell the peer, if it can be told, that nobody waits any more."""
        active = self._active
        if active is not None and active.link is not None and active.session is not None:
            active.link.send(Cancel(request=active.session.request))

    def _finish(self, fetched: Fetched | None) -> None:
        active, self._active = self._active, None
        if active is not None:
            active.order.future.set_result(fetched)

    def _allocate(self, nbytes: int) -> ByteArray:
        """Return the receive buffer, reused between fetches of one size."""
        if self._buffer.nbytes != nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        return self._buffer
