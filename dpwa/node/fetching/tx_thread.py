"""TxThread owns the connections to all peers, fetches snapshots, and sends other requests."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import zmq

from dpwa.clock import Deadline
from dpwa.errors import ProtocolError, VersionError
from dpwa.node.arrival import BrokenFetchError, FetchRequest
from dpwa.node.context import NodeContext
from dpwa.node.fetching.connections import LINGER_MS, Connections
from dpwa.node.fetching.fetcher import Fetcher
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.node.name_clashes import clash_of
from dpwa.node.node_thread import NodeThread, soon
from dpwa.node.serving.service import Listener
from dpwa.policy.health import Outcome
from dpwa.transport.link import RENEWAL_S, LinkState, PeerLink
from dpwa.transport.sockets import HEARTBEAT_TIMEOUT_MS, Context
from dpwa.types import Frame, JsonObject
from dpwa.wire.messages import (
    AskIdentity,
    GoAway,
    Goodbye,
    Identity,
    Message,
    NewsMessage,
    OtherSettings,
    Refused,
    decode,
)

if TYPE_CHECKING:
    from dpwa.transport.keyring import Keyring


log = logging.getLogger("dpwa.tx")

FAREWELL_S = 1.0  # a peer that takes longer to answer does without
FAREWELLS_PER_TURN = 16  # of one peer, before the others and the deadline are looked at


def say_goodbye(
    links: Iterable[PeerLink],
    goodbye: Goodbye,
    ending: Collection[str],
    deadline: Deadline,
    poller: zmq.Poller,
) -> None:
    """Send the peers a goodbye, and wait for their answers until the deadline.

    A peer that connects only now gets the goodbye, too. If a connection is closed while it has
    unread answers, TCP resets it, and a busy peer never sees the goodbye. `ending` are peers that
    have said goodbye themselves, for whose answers nodes do not wait.
    """
    waiting = dict.fromkeys(links, False)  # and whether each was told
    for link in waiting:
        poller.register(link.socket, zmq.POLLIN)
        poller.register(link.monitor, zmq.POLLIN)
    while True:
        for link, is_told in list(waiting.items()):
            is_lost = LinkState.DOWN in link.update() or link.state is LinkState.DOWN
            if link.state is LinkState.UP and not is_told:
                waiting[link] = link.send_request(goodbye)
            if is_lost or link.peer in ending or (is_told and _has_answered(link)):
                del waiting[link]
                poller.unregister(link.socket)
                poller.unregister(link.monitor)
        if deadline.expired() or not waiting:
            return
        poller.poll(int(deadline.remaining_s() * 1000) + 1)


def _has_answered(link: PeerLink) -> bool:
    """Read waiting messages from a peer, and return whether the peer has answered the goodbye."""
    for _ in range(FAREWELLS_PER_TURN):
        frames = link.receive()
        if frames is None:
            return False
        try:
            if isinstance(decode(frames)[0], Goodbye | Refused):
                return True
        except VersionError:  # it has read something, and there is nothing to wait for
            return True
        except ProtocolError:
            continue
    return False


class Listeners:
    """The `Listener` objects of a node, which the TxThread calls with the answers of peers."""

    def __init__(self, zmq_context: Context, poller: zmq.Poller) -> None:
        self.tick_at = math.inf  # when something becomes due; inf: never
        self._zmq_context = zmq_context
        self._poller = poller
        self._listeners: list[Listener] = []
        self.by_message: dict[type[Any], Listener] = {}  # who takes which answers

    def attach(self, listener: Listener, connected: Iterable[str]) -> None:
        self._listeners.append(listener)
        self._look_up()
        listener.attached(self._zmq_context, self._poller)
        self.tick_at = -math.inf
        for peer in connected:
            listener.link_changed(peer, LinkState.UP)

    def detach(self, listener: Listener) -> None:
        if listener not in self._listeners:
            return
        self._listeners.remove(listener)
        self._look_up()
        try:
            listener.ended()
        except Exception:
            log.exception(
                "an unexpected error occurred in %s while this node ended [DPWA-W015]",
                type(listener).__name__,
            )

    def _look_up(self) -> None:
        listeners = reversed(self._listeners)  # of two that take the same, the first has it
        self.by_message = {handled: each for each in listeners for handled in each.handles}

    def detach_all(self) -> None:
        for listener in list(self._listeners):
            self.detach(listener)

    def tick(self, now: float) -> None:
        waits_s = (listener.tick(now) for listener in list(self._listeners))
        self.tick_at = now + min(waits_s, default=math.inf)

    def poll_sockets(self) -> None:
        """Make all listeners read from their sockets."""
        for listener in list(self._listeners):
            listener.poll_sockets()

    def link_changed(self, peer: str, state: LinkState) -> None:
        for listener in self._listeners:
            listener.link_changed(peer, state)

    def removed(self, peer: str) -> None:
        for listener in self._listeners:
            listener.removed(peer)


IDLE_S = 1.0
GONE_AFTER_S = HEARTBEAT_TIMEOUT_MS / 1000  # then the connection of a peer that has ended is gone
ANSWERS_PER_TURN = 16  # of one peer, before deadlines, commands and other peers have theirs


class TxThread(NodeThread):
    def __init__(
        self,
        zmq_context: Context,
        context: NodeContext,
        keyring: Keyring | None,
        most_connections: int,
    ) -> None:
        super().__init__(context.runtime, f"dpwa-tx-{context.name}")
        self._looked_at_links = context.runtime.now()
        self._context = context
        self._rng = context.rng("other")
        self._poller = self._runtime.poller()
        self._connections = Connections(
            zmq_context,
            self._poller,
            context,
            keyring,
            most_connections,
            self._is_in_use,
            self._let_go,
        )
        self._channels = self._connections.channels
        self.fetcher = Fetcher(self._connections, context, self._rng)
        self._listeners = Listeners(zmq_context, self._poller)
        self._stopping = False
        self.reason = ""  # why the node leaves, if it has not finished
        self.late_answers = 0
        self._was_short = False  # of memory

    def reaches(self, peer: str) -> bool:
        """Return whether a peer is connected, or idle and ready to connect. Any thread may ask."""
        return self.state_of(peer) in (LinkState.UP, LinkState.IDLE)

    def state_of(self, peer: str) -> LinkState:
        """Return the state of the connection to a peer. Any thread may ask."""
        channel = self._channels.get(peer)
        return LinkState.CONNECTING if channel is None else channel.state

    def states_of(self, peers: Iterable[str]) -> dict[str, LinkState]:
        """Return the connection state of each of `peers`, perhaps thousands. Any thread may ask."""
        channels = tuple(self._channels.values())
        idle = {channel.peer for channel in channels if channel.link is None}
        return {peer: LinkState.IDLE if peer in idle else self.state_of(peer) for peer in peers}

    def start(self) -> None:
        self._thread.start()

    @soon
    def request_stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        self._poller.register(self.waker.receiver, zmq.POLLIN)
        while not self._stopping:
            due = min(self.fetcher.due, self._listeners.tick_at)
            wait_s = min(max(0.0, due - self._context.runtime.now()), IDLE_S)
            ready = dict(self._poller.poll(int(wait_s * 1000) + 1))
            try:
                self._step(ready)
            except Exception:
                log.exception(
                    "a fetch failed with an unexpected error. The node continues [DPWA-W014]"
                )
                self.fetcher.give_up(Outcome.MISBEHAVED, charge=True)
        self.fetcher.give_up(Outcome.TIMED_OUT)
        goodbye = Goodbye(request=1, name=self._context.name, reason=self.reason)
        deadline = Deadline(self._context.runtime, FAREWELL_S)
        connected = self._connections.with_link()
        links = [channel.link for channel in connected if channel.link is not None]
        ending = {channel.peer for channel in connected if channel.goodbye_at is not None}
        self._listeners.detach_all()
        try:
            say_goodbye(links, goodbye, ending, deadline, self._runtime.poller())
        finally:
            self._connections.close(LINGER_MS)

    def memory_report(self) -> JsonObject:
        channels = tuple(self._channels.values())
        return {
            "receive_bytes": self.fetcher.receive_bytes,
            "mapped_bytes": sum(channel.mapped_bytes for channel in channels),
        }

    def _step(self, ready: dict[object, int]) -> None:
        for channel, is_changed in self._connections.take_ready(ready).items():
            self._read(channel)  # first: a peer may answer and be gone
            if is_changed:
                self._follow(channel)
        if ready.pop(self.waker.receiver, 0):
            self.make_calls()
        if ready:  # what is left is of sockets of listeners
            self._listeners.poll_sockets()
        now = self._context.runtime.now()
        if now >= self._listeners.tick_at:
            self._listeners.tick(now)
        if now >= self.fetcher.due:
            self.fetcher.keep_deadlines(now)
        if self._connections.leaving:
            self._connections.close_unneeded()
        if now - self._looked_at_links >= RENEWAL_S:
            self._renew_links()
            self._connections.end_idle()
            self._doubt_farewells()

    # What others have it do

    @soon
    def fetch(self, request: FetchRequest) -> None:
        """Start a fetch in place of the current one."""
        self.fetcher.pursue(request)

    @soon
    def send_message(
        self,
        peer: str,
        message: Message,
        payload: Frame | None = None,
        *,
        connects: bool = True,
        must: bool = True,
    ) -> None:
        """Send a message, and connect if needed. It is lost if the peer is not there.

        With `connects=False`, it is sent only if there is a connection. With `must=False`, no
        connection is opened if the limit is reached and all connections are in use.
        """
        channel = self._channels.get(peer)
        if channel is None:
            return
        was_idle = channel.state is LinkState.IDLE
        is_for_later = connects and self._connections.open(channel, must=must) and was_idle
        if is_for_later or channel.unsent:
            channel.send_later(message, payload)
        elif channel.is_up:
            channel.send_request(message, payload)

    @soon
    def attach(self, listener: Listener) -> None:
        """Add a listener, and notify the listener of all current and later connections."""
        self._listeners.attach(listener, [channel.peer for channel in self._connections.up()])

    @soon
    def detach(self, listener: Listener) -> None:
        """Remove a listener, and close the listener's sockets."""
        self._listeners.detach(listener)

    @soon
    def connect(self, most: int = sys.maxsize, *, needs_all: bool = False) -> None:
        """Connect to at most `most` idle peers, longest idle first, within the limit.

        `needs_all`: all of them are needed from now on, and the connections stay.
        """
        self._connections.open_more(most, needs_all=needs_all)

    @soon
    def renew_links(self) -> None:
        """Replace connections that use outdated keys, after the allowed keys have changed."""
        self._renew_links()

    @soon
    def add_peers(self, channels: Collection[PeerChannel]) -> None:
        for name in self._connections.add_peers(channels):
            self._listeners.link_changed(name, LinkState.DOWN)

    @soon
    def remove_peer(self, name: str) -> None:
        channel = self._channels.get(name)
        if channel is None:
            return
        self.fetcher.removed(channel)
        self._connections.remove(channel, LINGER_MS)
        self._listeners.removed(name)

    @soon
    def peer_left(self, name: str) -> None:
        """Forget a peer once it has said goodbye and is disconnected. A goodbye may be forged."""
        channel = self._channels.get(name)
        if channel is None or channel.state in (LinkState.DOWN, LinkState.IDLE):
            self._forget(name)
        elif channel.goodbye_at is None:
            channel.goodbye_at = self._context.runtime.now()

    @soon
    def pass_on_news(self) -> None:
        """Send the loss reports of this node to a random peer, which answers with its own."""
        is_left_alone = self._context.peer_table.is_left_alone
        up = [channel for channel in self._connections.up() if not is_left_alone(channel.peer)]
        if up:
            self._rng.choice(up).send_request(
                NewsMessage(request=0, news=self._context.select_news())
            )

    def _forget(self, name: str) -> None:
        # Again: this thread may have seen its connection come up after the goodbye was read.
        self._context.peer_table.peer_left(name)
        self._context.forget_peer(name)

    def _doubt_farewells(self) -> None:
        """Ignore a peer's goodbye, perhaps forged or repeated, if the peer stays connected."""
        now = self._context.runtime.now()
        for channel in self._channels.values():
            said_at, is_idle = channel.goodbye_at, channel.link is None
            if said_at is not None and (is_idle or now - said_at >= GONE_AFTER_S):
                channel.goodbye_at = None
                if channel.is_up:
                    self._context.peer_table.returned(channel.peer)
                    channel.send_request(self._context.settings.question())

    # The links

    def _is_in_use(self, channel: PeerChannel) -> bool:
        """Return whether a peer must stay connected for a fetch or an unsent message."""
        return bool(channel.unsent) or self.fetcher.needs(channel)

    def _let_go(self, channel: PeerChannel) -> None:
        self._context.peer_table.link_changed(channel.peer, LinkState.IDLE)
        self._listeners.link_changed(channel.peer, LinkState.IDLE)

    def _renew_links(self) -> None:
        self._looked_at_links = self._context.runtime.now()
        for channel in self._connections.renew():
            # All who rely on the connection are to know that it is not that one.
            self._entered(channel, LinkState.DOWN)
        for channel in self._connections.with_link():
            if channel.is_to_be_met:  # its answer may have been lost
                self._introduce(channel)

    def _follow(self, channel: PeerChannel) -> None:
        for state in channel.follow():
            if channel.link is not None:  # else it was let go as it is down
                self._entered(channel, state)
        if channel.is_to_be_met:
            self._introduce(channel)
        else:
            self._context.peer_table.link_changed(channel.peer, channel.state, channel.problem)

    def _introduce(self, channel: PeerChannel) -> None:
        """Ask the process at the other end for its name."""
        incarnation, endpoint = self._context.peer_table.own_process
        channel.send_request(
            AskIdentity(
                request=0,
                name=self._context.name,
                incarnation=incarnation,
                endpoint=endpoint,
                expects=channel.peer,
            )
        )

    def _meet(self, channel: PeerChannel, said: Identity) -> None:
        """Accept a connection if the process is the expected peer and accepts this node's name."""
        table = self._context.peer_table
        own = self._context.name, table.own_process[0]
        clash = clash_of(said, channel.peer, channel.endpoint, own)
        if clash:
            is_certain = said.is_certain or not said.taken_by or said.name != channel.peer
            self._refuse(channel, Outcome.MISTAKEN if is_certain else Outcome.UNREACHABLE, clash)
        elif channel.is_to_be_met:
            channel.is_met = True
            table.met(channel.peer, said.incarnation)
            self._entered(channel, LinkState.UP)

    def _refuse(self, channel: PeerChannel, outcome: Outcome, problem: str) -> None:
        """Stop using a connection. A new one is made after a second."""
        if channel.link is not None:
            channel.link.give_up(problem)
        if self.fetcher.is_asking(channel):
            self.fetcher.failed(channel, outcome, problem)
        else:
            self._context.peer_table.record(channel.peer, outcome, problem)

    def _entered(self, channel: PeerChannel, state: LinkState) -> None:
        problem = "" if state is LinkState.UP else channel.problem
        self._context.peer_table.link_changed(channel.peer, state, problem)
        if state is LinkState.UP:
            channel.send_request(self._context.settings.question())  # before any fetch
            channel.send_unsent()
        elif state is LinkState.DOWN:
            channel.unsent = ()
            has_left, channel.goodbye_at = channel.goodbye_at is not None, None
            if has_left or self._context.peer_table.has_left(channel.peer):
                self._forget(channel.peer)
        self.fetcher.link_changed(channel, state)
        self._listeners.link_changed(channel.peer, state)
        if state is LinkState.DOWN:
            self._connections.lost(channel)

    def _read(self, channel: PeerChannel) -> None:
        for _ in range(ANSWERS_PER_TURN):
            frames = None if channel.link is None else channel.link.receive()
            if frames is None:
                break
            try:
                self._take(channel, frames)
            except BrokenFetchError as error:
                self.fetcher.failed(channel, error.outcome, error.detail)
            except VersionError as error:
                self._refuse(channel, Outcome.OTHER_VERSION, str(error))
            except MemoryError as error:
                self._short_of_memory(channel, error)
            except ProtocolError as error:
                self.fetcher.failed(channel, Outcome.MISBEHAVED, str(error))
        if channel.link is not None and channel.link.is_spent:
            self._connections.mute(channel)  # until it is renewed
            self._follow(channel)

    def _short_of_memory(self, channel: PeerChannel, error: MemoryError) -> None:
        """Give up a snapshot for lack of memory, without a penalty for the peer."""
        self.fetcher.give_up(Outcome.BUSY)
        if not self._was_short:
            self._was_short = True
            text = "there is too little memory for a snapshot of %s, so %s skips it: %s [DPWA-W092]"
            log.warning(text, channel.peer, self._context.name, error)

    def _take(self, channel: PeerChannel, frames: list[Frame]) -> None:
        message, payload = decode(frames)
        if payload:
            self._context.peer_table.exchanged(channel.peer, received=len(payload))
        match message:
            case NewsMessage():
                self._context.receive_news(message.news, channel.peer)
            case OtherSettings():
                if why := self._context.settings.compare(channel.peer, payload):
                    self._context.peer_table.record(channel.peer, Outcome.OTHER_SETTINGS, why)
                    self.fetcher.failed(channel, Outcome.OTHER_SETTINGS, why)
            case Identity():
                self._meet(channel, message)
            case GoAway():
                self._connections.asked_to_go(channel)
            case _ if listener := self._listeners.by_message.get(type(message)):
                listener.receive(channel.peer, message, payload)
            case _:
                if not self.fetcher.receive(channel, message, payload):
                    self.late_answers += 1
