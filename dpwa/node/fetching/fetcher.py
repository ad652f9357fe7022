"""Fetcher requests a snapshot from one peer after another, until success or the deadline."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dpwa.data.layout import Piece
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.segments import ByteArray
from dpwa.node.arrival import BrokenFetchError, FetchRequest, IncomingSnapshot
from dpwa.node.context import NodeContext
from dpwa.node.fetching.connections import Connections
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.health import Outcome
from dpwa.transport.link import LinkState
from dpwa.types import Frame
from dpwa.wire.fetching import Ended, FetchSession
from dpwa.wire.messages import Cancel, Message, SharedMemoryName, SnapshotHeader


class Session(Protocol):
    """The requesting side of a message exchange with a peer."""

    @property
    def request(self) -> int: ...
    def request_message(self, budget_ms: int) -> Message: ...


@dataclass(eq=False)
class Attempt:
    """A fetch from one peer."""

    request: FetchRequest
    channel: PeerChannel
    session: Session
    version: int  # of the snapshot that is wanted; 0: any
    is_timed: bool = True  # the peer answers at once, without waiting for slower nodes
    incoming: IncomingSnapshot | None = None  # what has begun to come
    # when the request left; `None` as long as the link is not up
    asked_at: float | None = None
    # when the header of a stream came, as long as it lasts
    answered_at: float | None = None
    streamed_bytes: int = 0  # of payload, since then


CONNECTED_WITHIN_S = 0.25  # or this share of the time left, before another of many peers is asked
CONNECTED_WITHIN = 0.25


class Fetcher:
    """Handles one fetch request at a time for the TxThread. A down peer is skipped at once."""

    def __init__(self, connections: Connections, context: NodeContext, rng: random.Random) -> None:
        self.connections, self._channels = connections, connections.channels
        self._peer_table, self._clock = context.peer_table, context.runtime
        self._greet, self._hear = context.greeting, context.receive_news
        self.rng = rng
        self._request: FetchRequest | None = None  # that is under way
        self._tried: set[str] = set()  # the peers that were asked for it
        self.attempt: Attempt | None = None
        # when it is over, or another peer is asked: when to call `keep_deadlines`
        self.due = math.inf
        self._numbers = itertools.count(1)
        self._buffer: ByteArray = np.empty(0, np.uint8)

    @property
    def receive_bytes(self) -> int:
        return self._buffer.nbytes

    def pursue(self, request: FetchRequest) -> None:
        if self._request is not None:
            self.keep_deadlines(self._clock.now())  # of the one before
            self.give_up(Outcome.TIMED_OUT)
        self._request, self._tried = request, set()
        self._ask_next_peer()

    def give_up(self, outcome: Outcome, *, charge: bool = False) -> None:
        """End the request without a snapshot. With `charge`, record that the peer failed."""
        self._cancel()
        self.end_attempt(outcome, is_charged=charge)
        self.finish()

    def keep_deadlines(self, now: float) -> None:
        request, attempt = self._request, self.attempt
        if request is None or now < self.due:
            return
        if attempt is not None:
            self._measure_stream(attempt)
        if attempt is None or now >= request.deadline.end:
            self.give_up(Outcome.TIMED_OUT, charge=True)
        elif attempt.asked_at is None:
            self.attempt_failed(attempt.channel, Outcome.UNREACHABLE, "no connection in time")
        else:
            self._cancel()
            self.attempt_failed(
                attempt.channel, Outcome.TIMED_OUT, "the peer is slower than in earlier fetches"
            )

    def is_asking(self, channel: PeerChannel) -> bool:
        """Tell whether a fetch from this peer is under way."""
        return self.attempt is not None and self.attempt.channel is channel

    def needs(self, channel: PeerChannel) -> bool:
        """Tell whether a peer must stay connected."""
        return self.is_asking(channel)

    # What happens to a peer

    def link_changed(self, channel: PeerChannel, state: LinkState) -> None:
        attempt = self.attempt
        if attempt is None or attempt.channel is not channel:
            return
        if state is LinkState.UP:
            self.ask(attempt)
        elif state is LinkState.DOWN:
            was_asked = attempt.asked_at is not None
            self.attempt_failed(channel, Outcome.LOST if was_asked else Outcome.UNREACHABLE)

    def removed(self, channel: PeerChannel) -> None:
        if self.is_asking(channel):
            self.end_attempt(Outcome.LOST, is_charged=False)
            self._ask_next_peer()

    def failed(self, channel: PeerChannel, outcome: Outcome, detail: str) -> None:
        """Record a peer's failure, and request the snapshot from a different peer."""
        if self.is_asking(channel):
            self._cancel()
        self.attempt_failed(channel, outcome, detail)

    def receive(self, channel: PeerChannel, message: Message, payload: Frame) -> bool:
        """Receive an answer of a peer, and return whether it was expected.

        Raises `ProtocolError` if it is not allowed here, `BrokenFetchError` if its content must not
        be merged.
        """
        attempt = self.attempt
        if attempt is None or attempt.channel is not channel:
            return False
        session = attempt.session
        if session.request != message.request:
            return False
        if not isinstance(session, FetchSession):
            self.answered(attempt, message, payload)
            return True
        match session.receive(message, payload):
            case Piece() as piece:
                self._piece_arrived(attempt, session, piece, payload)
            case SharedMemoryName() as name:
                self._in_shared_memory(attempt, name)
            case SnapshotHeader() as header:
                if header.news:
                    self._hear(header.news, channel.peer)
                self._announced(attempt, header, session.pieces)
            case Ended() as ended:
                self.attempt_failed(channel, ended.outcome, ended.detail)
        return True

    # Asking

    def _ask_next_peer(self) -> None:
        """Ask the next peer that flow control picks and that is not down.

        It is asked now, or as soon as its link is up.
        """
        request = self._request
        while request is not None:
            self.attempt, self.due = None, request.deadline.end
            name = self.next_peer(request)
            if name is None:
                self.finish()
                return
            self._tried.add(name)
            if self._peer_table.is_left_alone(name):  # as when an algorithm names it
                continue
            channel = self._channels.get(name)
            can_open = channel is not None and self.connections.open(channel)
            state = LinkState.DOWN if channel is None or not can_open else channel.state
            if channel is None or state is LinkState.DOWN:
                self._peer_table.record(name, Outcome.UNREACHABLE)
                continue
            self.attempt = attempt = self.new_attempt(request, channel)
            if attempt is None:
                self.finish()
            elif state is LinkState.UP:
                self.ask(attempt)
            elif not self.connections.keeps_all and request.only is None:
                share_s = CONNECTED_WITHIN * request.deadline.remaining_s()
                another = self._clock.now() + max(CONNECTED_WITHIN_S, share_s)
                self.due = min(request.deadline.end, another)
            return

    def next_peer(self, request: FetchRequest) -> str | None:
        if request.first is not None and request.first not in self._tried:
            return request.first
        if request.only is not None:
            return None
        budget_s = request.deadline.remaining_s()
        return self._peer_table.choose(self.rng, self._tried, request.among, budget_s)

    def new_attempt(self, request: FetchRequest, channel: PeerChannel) -> Attempt | None:
        """Return a new attempt to fetch from a peer, or `None` if the request must end."""
        session, version = self.session(request, channel, request.version), request.version
        return Attempt(request, channel, session, version, is_timed=version == 0)

    def session(self, request: FetchRequest, channel: PeerChannel, version: int) -> FetchSession:
        """Return a fetch session for this version of a peer's snapshot (0: the newest)."""
        codec = channel.settings.plain if request.is_exact else channel.settings.codec
        return FetchSession(
            next(self._numbers),
            layout=request.layout,
            codec=codec.name,
            can_map=channel.is_mappable and (request.may_map or not channel.may_stream),
            shard=request.shard,
            version=version,
            merged=request.merged_of(channel.peer),
            greeting=self._greet(),
        )

    def fetch(self, attempt: Attempt) -> None:
        """Send a new request for a snapshot to the peer of this attempt."""
        session = self.session(attempt.request, attempt.channel, attempt.version)
        self.attempt = again = replace(attempt, session=session, asked_at=None)
        self.ask(again)

    def ask(self, attempt: Attempt) -> None:
        request, channel = attempt.request, attempt.channel
        budget_s = request.deadline.remaining_s()
        patience_s = self._peer_table.patience_s(channel.peer, budget_s)
        if channel.send_request(attempt.session.request_message(int(budget_s * 1000))):
            attempt.asked_at = self._clock.now()
            # The peer may not have published the version yet. Whole values take longer.
            waits = attempt.version or request.version or request.is_exact
            another = attempt.asked_at + (budget_s if waits else patience_s)
            self.due = min(request.deadline.end, another)
        else:
            self.attempt_failed(channel, Outcome.UNREACHABLE)

    # What comes

    def _piece_arrived(
        self, attempt: Attempt, session: FetchSession, piece: Piece, payload: Frame
    ) -> None:
        attempt.streamed_bytes += len(payload)
        if not session.is_complete and (credit := session.credit()) is not None:
            attempt.channel.send_request(credit)
        if attempt.incoming is not None:
            attempt.incoming.add_piece(piece, payload)
            if session.is_complete:
                self._measure_stream(attempt)
                self.found(attempt, attempt.incoming)

    def _in_shared_memory(self, attempt: Attempt, name: SharedMemoryName) -> None:
        channel, memory = attempt.channel, attempt.channel.map(name)
        self._measure_latency(attempt)
        self._peer_table.set_memory(channel.peer, memory)
        if memory is not None:
            self.found(attempt, memory)
        elif channel.may_stream:
            self.fetch(attempt)  # the same peer again, for a stream
        else:
            self.attempt_failed(channel, Outcome.NOT_MAPPED)

    def found(self, attempt: Attempt, found: IncomingSnapshot | PeerMemory) -> None:
        """Pass a complete snapshot, or the peer's shared memory, to the training thread."""
        peer = attempt.channel.peer
        result = found if isinstance(found, PeerMemory) else found.arrival(peer)
        if attempt.request.offer(peer, result):
            self.succeeded(attempt)
        else:
            self.give_up(Outcome.TIMED_OUT, charge=True)  # the trainer has gone on without it

    def _announced(self, attempt: Attempt, header: SnapshotHeader, pieces: Sequence[Piece]) -> None:
        request, channel = attempt.request, attempt.channel
        self._measure_latency(attempt)
        attempt.answered_at = self._clock.now()
        if not channel.may_stream:
            self._cancel()
            self.attempt_failed(channel, Outcome.NOT_MAPPED)
            return
        self._peer_table.told_clock(channel.peer, header.clock)
        if header.loss == math.inf or (request.is_finite and header.is_finite is False):
            what = "loss is" if header.loss == math.inf else "parameters or buffers are"
            raise BrokenFetchError(Outcome.DIVERGED, f"the peer's {what} not finite")
        if request.clock and is_far_behind(header.clock, request.clock):
            raise BrokenFetchError(Outcome.BEHIND)
        buffer = self.buffer_for(attempt, header)
        codec = channel.settings.codec
        codec = codec if header.codec == codec.name else channel.settings.plain
        attempt.incoming = IncomingSnapshot(header, pieces, codec, buffer, request.is_finite)

    def buffer_for(self, attempt: Attempt, header: SnapshotHeader) -> ByteArray:  # noqa: ARG002
        """Return memory for a snapshot. The next snapshot of the same size reuses it."""
        if self._buffer.nbytes != header.nbytes:
            self._buffer = np.empty(header.nbytes, np.uint8)
        return self._buffer

    def succeeded(self, attempt: Attempt) -> None:
        """End the current request as successful. The node judges whether to merge the snapshot."""
        if attempt.asked_at is not None:
            self._peer_table.fetched_in(attempt.channel.peer, self._clock.now() - attempt.asked_at)
        self._request, self.attempt, self.due = None, None, math.inf

    def _measure_latency(self, attempt: Attempt) -> None:
        """Measure a peer's response time, unless it waits for slower nodes before it answers."""
        if attempt.asked_at is not None and attempt.is_timed:
            latency_s = self._clock.now() - attempt.asked_at
            self._peer_table.answered_in(attempt.channel.peer, latency_s)

    def _measure_stream(self, attempt: Attempt) -> None:
        """Measure the transfer rate of a peer's stream, from the payload bytes so far."""
        if attempt.answered_at is not None:
            elapsed_s = self._clock.now() - attempt.answered_at
            attempt.answered_at = None  # for what else this may wait is no part of the stream
            self._peer_table.streamed(attempt.channel.peer, attempt.streamed_bytes, elapsed_s)

    # How it ends

    def attempt_failed(self, channel: PeerChannel, outcome: Outcome, detail: str = "") -> None:
        if self.is_asking(channel):
            self.end_attempt(outcome, detail)
            self._ask_next_peer()

    def end_attempt(self, outcome: Outcome, detail: str = "", *, is_charged: bool = True) -> None:
        """End the current attempt without a snapshot. If it `is_charged`, its peer has failed."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None and is_charged:
            self._peer_table.record(attempt.channel.peer, outcome, detail)

    def finish(self) -> None:
        """End the current request without a snapshot."""
        request = self._request
        self._request, self.attempt, self.due = None, None, math.inf
        if request is not None:
            request.end_fetch()

    def answered(self, attempt: Attempt, message: Message, payload: Frame) -> None:
        """Process a peer's answer in a session that only a subclass uses, not a `FetchSession`."""
        raise NotImplementedError

    def _cancel(self) -> None:
        attempt = self.attempt
        if attempt is not None and attempt.asked_at is not None:
            attempt.channel.send_request(Cancel(request=attempt.session.request))
