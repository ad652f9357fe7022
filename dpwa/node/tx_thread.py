"""TxThread: owns the links to all peers and fetches one snapshot at a time."""

from __future__ import annotations

import itertools
import logging
import math
import random
import threading
from dataclasses import dataclass

import numpy as np
import zmq

from dpwa.clock import Clock, Deadline
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError, VersionError
from dpwa.node.fetch_order import FetchOrder, Found
from dpwa.node.incoming import BrokenFetchError, Incoming
from dpwa.node.peer_channel import ChannelSettings, PeerChannel
from dpwa.node.peers import PeerBook
from dpwa.policy.health import Outcome
from dpwa.transport.link import LinkState, PeerLink
from dpwa.transport.mailbox import Mailbox
from dpwa.transport.sockets import Context
from dpwa.types import Frame, JsonObject
from dpwa.wire.fetching import (
    Announced,
    Ended,
    FetchPlan,
    FetchSession,
    InSharedMemory,
    PieceArrived,
)
from dpwa.wire.messages import Cancel, Goodbye, decode

log = logging.getLogger("dpwa.tx")

IDLE_POLL_MS = 1_000
FAREWELL_MS = 100  # for a goodbye to leave; a peer that takes longer does without
ANSWERS_PER_TURN = 16  # of one peer, before deadlines, commands and other peers have theirs


@dataclass(frozen=True)
class AddPeer:
    """Connect to a peer."""

    name: str
    endpoint: str
    settings: ChannelSettings


@dataclass(frozen=True)
class RemovePeer:
    """Disconnect from a peer."""

    name: str


@dataclass(frozen=True)
class Stop:
    """End the thread."""


Command = FetchOrder | AddPeer | RemovePeer | Stop


class _Attempt:
    """A fetch from one peer, for an order."""

    def __init__(self, channel: PeerChannel, request: int, plan: FetchPlan) -> None:
        self.channel = channel
        self.session = FetchSession(request, plan)
        self.incoming: Incoming | None = None
        self.asked_at: float | None = None  # None: the request is not on its way yet
        self.deadline: Deadline | None = None


class _ActiveFetch:
    def __init__(self, order: FetchOrder) -> None:
        self.order = order
        self.tried: set[str] = set()
        self.attempt: _Attempt | None = None


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
        self._channels: dict[str, PeerChannel] = {}
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

    def discard(self) -> None:
        """Give up a thread that was never started."""
        self._commands.close()

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
                self._cancel()
                self._charge(Outcome.MISBEHAVED)
                self._finish(Outcome.MISBEHAVED)
        self._finish(Outcome.TIMED_OUT)
        for channel in self._channels.values():
            if channel.link.state is LinkState.UP:
                self.said_goodbye |= channel.link.send(Goodbye(request=0, name=self._node_name))
            channel.close(FAREWELL_MS)

    def memory_report(self) -> JsonObject:
        """Describe the memory in plain data: bytes of what arrives, is held, and is mapped."""
        channels = tuple(self._channels.values())
        return {
            "receive_bytes": self._buffer.nbytes,
            "held_bytes": sum(channel.held_bytes for channel in channels),
            "mapped_bytes": sum(channel.mapped_bytes for channel in channels),
        }

    def _patience_ms(self) -> int:
        if self._active is None:
            return IDLE_POLL_MS
        remaining_s = self._active.order.deadline.remaining_s()
        attempt = self._active.attempt
        if attempt is not None and attempt.deadline is not None:
            remaining_s = min(remaining_s, attempt.deadline.remaining_s())
        return min(IDLE_POLL_MS, int(remaining_s * 1000) + 1)

    def _step(self, ready: dict[object, int]) -> None:
        for channel in list(self._channels.values()):
            if channel.link.socket in ready or channel.link.monitor in ready:
                self._read(channel)  # first: a peer may answer and be gone
                self._follow(channel)
        if self._commands.receiver in ready:
            for command in self._commands.take_all():
                self._obey(command)
        self._keep_deadlines()

    def _keep_deadlines(self) -> None:
        active = self._active
        if active is None:
            return
        if active.order.deadline.expired():
            self._cancel()
            self._charge(Outcome.TIMED_OUT)
            self._finish(Outcome.TIMED_OUT)
        elif active.attempt is not None and _has_expired(active.attempt.deadline):
            self._cancel()
            self._failed(active.attempt.channel, Outcome.TIMED_OUT, "slower than it used to be")

    # Commands

    def _obey(self, command: Command) -> None:
        match command:
            case FetchOrder():
                self._keep_deadlines()  # of the one before
                self._cancel()
                self._finish(Outcome.TIMED_OUT)
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
        self._channels[command.name] = PeerChannel(link, command.settings)
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)

    def _remove(self, name: str) -> None:
        channel = self._channels.pop(name, None)
        if channel is None:
            return
        self._poller.unregister(channel.link.socket)
        self._poller.unregister(channel.link.monitor)
        channel.close()
        if self._attempt_with(channel) is not None:
            self._ask_another_peer(Outcome.LOST, "")

    # The fetch under way

    def _ask_next_peer(self) -> None:
        """Make an attempt with the next peer that flow control picks and that is not down."""
        active = self._active
        while active is not None:
            active.attempt = None
            name = active.order.first
            if name is None or name in active.tried:
                name = self._book.choose(self._rng, exclude=active.tried)
            if name is None:
                self._finish(Outcome.UNREACHABLE)
                return
            active.tried.add(name)
            channel = self._channels.get(name)
            if channel is None or channel.link.state is LinkState.DOWN:
                self._book.record(name, Outcome.UNREACHABLE)
                continue
            self._attempt(active, channel)
            return

    def _attempt(self, active: _ActiveFetch, channel: PeerChannel) -> None:
        """Ask a peer, now or as soon as its link is up."""
        plan = channel.plan(active.order)
        active.attempt = _Attempt(channel, next(self._requests), plan)
        if channel.link.state is LinkState.UP:
            self._request(active, active.attempt)

    def _request(self, active: _ActiveFetch, attempt: _Attempt) -> None:
        budget_s = active.order.deadline.remaining_s()
        patience_s = self._book.patience_s(attempt.channel.peer, budget_s)
        request = attempt.session.request_message(int(budget_s * 1000))
        if attempt.channel.link.send(request):
            attempt.asked_at = self._clock.now()
            attempt.deadline = Deadline(self._clock, patience_s)
        else:
            self._failed(attempt.channel, Outcome.UNREACHABLE)

    def _follow(self, channel: PeerChannel) -> None:
        """Act on what happened to a connection."""
        for state in channel.follow():
            if state is LinkState.UP:
                self._book.connected(channel.peer)
            elif state is LinkState.DOWN:
                self._book.share(channel.peer, None)
            attempt = self._attempt_with(channel)
            if attempt is None or self._active is None:
                continue
            if state is LinkState.UP:
                self._request(self._active, attempt)
            elif state is LinkState.DOWN:
                was_asked = attempt.asked_at is not None
                self._failed(channel, Outcome.LOST if was_asked else Outcome.UNREACHABLE)

    def _read(self, channel: PeerChannel) -> None:
        for _ in range(ANSWERS_PER_TURN):
            frames = channel.link.receive()
            if frames is None:
                return
            try:
                self._take(channel, frames)
            except BrokenFetchError as error:
                self._cancel()
                self._failed(channel, error.outcome, error.detail)
            except VersionError as error:
                self._failed(channel, Outcome.OTHER_VERSION, str(error))
            except (ProtocolError, MemoryError) as error:
                if self._attempt_with(channel) is not None:
                    self._cancel()
                self._failed(channel, Outcome.MISBEHAVED, str(error))

    def _take(self, channel: PeerChannel, frames: list[Frame]) -> None:
        message, payload = decode(frames)
        self.bytes_received += len(payload)
        attempt = self._attempt_with(channel)
        if attempt is None or attempt.session.request != message.request:
            self.late_answers += 1
            return
        match attempt.session.receive(message, payload):
            case PieceArrived() as arrived:
                self._piece_arrived(attempt, arrived)
            case InSharedMemory() as found:
                self._in_shared_memory(attempt, found)
            case Announced() as announced:
                self._announced(attempt, announced)
            case Ended() as ended:
                self._failed(channel, ended.outcome, ended.detail)

    def _piece_arrived(self, attempt: _Attempt, arrived: PieceArrived) -> None:
        credit = attempt.session.credit()
        if credit is not None:
            attempt.channel.link.send(credit)
        if attempt.incoming is not None:
            attempt.incoming.add(arrived.piece, arrived.payload)
        if arrived.is_last:
            self._succeeded(attempt)

    def _in_shared_memory(self, attempt: _Attempt, found: InSharedMemory) -> None:
        active, memory = self._active, attempt.channel.map(found)
        if active is None:
            return
        self._book.share(attempt.channel.peer, memory)
        if memory is not None:
            active.order.offer(Found(attempt.channel.peer, memory))
            self._succeeded(attempt)
        elif attempt.channel.may_stream:
            self._attempt(active, attempt.channel)  # the same peer again, for a stream
        else:
            self._failed(attempt.channel, Outcome.NOT_MAPPED)

    def _announced(self, attempt: _Attempt, announced: Announced) -> None:
        active, channel = self._active, attempt.channel
        if active is None:
            return
        if not channel.may_stream:
            self._cancel()
            self._failed(channel, Outcome.NOT_MAPPED)
            return
        header = announced.header
        if header.loss == math.inf or (active.order.is_finite and header.is_finite is False):
            self._cancel()
            what = "loss is" if header.loss == math.inf else "parameters are"
            self._failed(channel, Outcome.DIVERGED, f"its {what} not finite")
            return
        buffer = self._room(header.nbytes)
        attempt.incoming = channel.incoming(active.order, announced, buffer)
        active.order.offer(Found(channel.peer, attempt.incoming))

    def _succeeded(self, attempt: _Attempt) -> None:
        """All of it is there; whether it can be merged is for the node to tell and to record."""
        if attempt.asked_at is not None:
            self._book.fetched_in(attempt.channel.peer, self._clock.now() - attempt.asked_at)
        if self._active is not None:
            self._active.order.end()
            self._active = None

    def _failed(self, channel: PeerChannel, outcome: Outcome, detail: str = "") -> None:
        """The attempt with this peer, if there is one, has failed: another peer may do better."""
        if self._attempt_with(channel) is not None:
            self._charge(outcome, detail)
            self._ask_another_peer(outcome, detail)

    def _ask_another_peer(self, outcome: Outcome, detail: str) -> None:
        """Unless the trainer has begun to merge what will not be complete now."""
        if self._active is None:
            return
        if not self._active.order.withdraw():
            self._finish(outcome, detail)
        else:
            self._ask_next_peer()

    def _charge(self, outcome: Outcome, detail: str = "") -> None:
        """Charge the peer of the attempt under way with its failure."""
        if self._active is not None and self._active.attempt is not None:
            self._book.record(self._active.attempt.channel.peer, outcome, detail)

    def _cancel(self) -> None:
        """Tell the peer, if it can be told, that nobody waits any more."""
        attempt = None if self._active is None else self._active.attempt
        if attempt is not None and attempt.asked_at is not None:
            attempt.channel.link.send(Cancel(request=attempt.session.request))

    def _finish(self, outcome: Outcome, detail: str = "") -> None:
        """End the order under way without a snapshot."""
        active, self._active = self._active, None
        if active is None:
            return
        incoming = None if active.attempt is None else active.attempt.incoming
        if not active.order.withdraw() and incoming is not None:
            incoming.break_off(outcome, detail)
        active.order.end()

    def _attempt_with(self, channel: PeerChannel) -> _Attempt | None:
        attempt = None if self._active is None else self._active.attempt
        return attempt if attempt is not None and attempt.channel is channel else None

    def _room(self, nbytes: int) -> ByteArray:
        """Return the receive buffer, reused between fetches of one size."""
        if self._buffer.nbytes != nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        return self._buffer


def _has_expired(deadline: Deadline | None) -> bool:
    return deadline is not None and deadline.expired()
