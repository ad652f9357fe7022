"""Connections: opens connections to peers when needed, and limits their number.

A node connects to at most `connections` peers. If there are no more, it connects to all at once and
stays connected, so that it notices when a peer comes or goes. If there are more, it connects to
those that it asks for something, and closes the least recently used idle connection.

The same number bounds the connections of others to this node. It asks the peer that was silent the
longest to close its connection, which that peer does when the connection is idle.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Collection
from contextlib import suppress
from heapq import nsmallest
from typing import TYPE_CHECKING

import zmq

from dpwa.node.context import NodeContext
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.runtime import NODE_NEEDS, DescriptorsError, open_descriptors
from dpwa.transport.link import LinkState, PeerLink
from dpwa.transport.sockets import Context

if TYPE_CHECKING:
    from dpwa.transport.keyring import Keyring


log = logging.getLogger("dpwa.tx")

IDLE_AFTER_S = 5.0  # a connection that was not used for so long is closed, if peers are many
ANSWERED_WITHIN_S = 1.0  # what was just asked on a connection that a peer wants closed
FEWEST = 4  # connections, however few descriptors there are
DESCRIPTORS = 6  # of a connection to a peer, and of one that it has to this node
OTHER_DESCRIPTORS = 100  # that the process needs, or more if more are open
LINGER_MS = 100  # for last words to leave; a peer that takes longer does without


class Connections:
    """A `PeerChannel` for each peer, with a link if it is connected. Belongs to the TxThread."""

    def __init__(
        self,
        zmq_context: Context,
        poller: zmq.Poller,
        context: NodeContext,
        keyring: Keyring | None,  # `None`: no encryption
        most: int,  # peers that may be connected, see `affordable`
        is_busy: Callable[[PeerChannel], bool],  # tells whether a peer's link must stay
        has_let_go: Callable[[PeerChannel], None],  # called when an idle link was closed
    ) -> None:
        self._zmq_context = zmq_context
        self._poller = poller
        self._context = context
        self._keyring = keyring
        self._is_busy = is_busy
        self._has_let_go = has_let_go
        self._most = most
        self._needs_all = False
        self._rng = context.rng("connections")
        self._sockets: dict[object, PeerChannel] = {}  # of links, and their monitors
        self.leaving: dict[PeerChannel, None] = {}  # in order of being asked to
        self.channels: dict[str, PeerChannel] = {}  # by name of the peer

    @property
    def keeps_all(self) -> bool:
        """Whether this node keeps connections to all peers, because the limit allows so many."""
        return len(self.channels) <= self._most

    def add_peers(self, channels: Collection[PeerChannel]) -> list[str]:
        """Add peers, and return the names of the peers to which no connection can be opened."""
        self.channels.update({channel.peer: channel for channel in channels})
        if not self.keeps_all:
            return []
        return [channel.peer for channel in channels if not self.open(channel)]

    def remove(self, channel: PeerChannel, linger_ms: int) -> None:
        del self.channels[channel.peer]
        self.leaving.pop(channel, None)
        self.mute(channel)
        channel.disconnect(linger_ms)
        if self.keeps_all:
            self.open_more(self._most, needs_all=self._needs_all)  # until now, they were too many

    def open_more(self, most: int, *, needs_all: bool) -> None:
        """Connect to the peers that have been idle longest, up to `most`, within the limit.

        `needs_all`: all peers are needed from now on.
        """
        if needs_all and not self._needs_all:
            self._needs_all = True
            if len(self.channels) > self._most:
                log.warning(
                    "%s: this node needs a connection to each of %d peers, but may have only %d "
                    "connections. Raise `connections`, and `ulimit -n` if files are the limit "
                    "[DPWA-W010]",
                    self._context.name,
                    len(self.channels),
                    self._most,
                )
        room = self._most - len(self.with_link())
        idle = [channel for channel in self.channels.values() if channel.link is None]
        count, drawn = min(most, max(0, room)), self._rng.random  # else all take the first ones
        for channel in nsmallest(count, idle, key=lambda each: (each.used_at, drawn())):
            self.open(channel)

    def open(self, channel: PeerChannel, *, must: bool = True) -> bool:
        """Connect to a peer if needed. Return whether there is a link now, which may be down.

        With `must=False`, this opens no link if the limit is reached and all links are in use.
        """
        if channel.link is None and not self._make_room() and not must:
            return False
        channel.used_at = self._context.runtime.now()
        self.leaving.pop(channel, None)
        if channel.link is not None:
            return True
        peer, endpoint = channel.peer, channel.endpoint
        try:
            channel.link = PeerLink(self._zmq_context, peer, endpoint, self._keyring)
        except zmq.ZMQError as error:
            why = str(error.strerror)
            if self._context.peer_table.link_changed(peer, LinkState.DOWN, why):
                log.error("cannot connect to %s at %s: %s [DPWA-W003]", peer, endpoint, why)
            return False
        self._register(channel)
        return True

    def take_ready(self, events: dict[object, int]) -> dict[PeerChannel, bool]:
        """Remove the events that concern channels from `events`.

        Returns the channels with data to read, and whether the event concerns the connection.
        """
        ready: dict[PeerChannel, bool] = {}
        for socket in list(events):
            channel = self._sockets.get(socket)
            if channel is not None:
                del events[socket]
                if channel.link is not None:
                    ready[channel] = ready.get(channel, False) or socket is channel.link.monitor
        return ready

    def with_link(self) -> list[PeerChannel]:
        return list(dict.fromkeys(self._sockets.values()))

    def up(self) -> list[PeerChannel]:
        return [channel for channel in self.with_link() if channel.is_up]

    def lost(self, channel: PeerChannel) -> None:
        """Note that a link is down. If there are many peers, the link is closed."""
        if not self.keeps_all and not self._is_busy(channel):
            self._let_go(channel)
            self._context.peer_table.absent(channel.peer)

    def renew(self) -> list[PeerChannel]:
        """Replace links that cannot recover or use old keys. Return those that were not down.

        Also open links that failed before because descriptors were short.
        """
        changed = []
        for channel in self.channels.values():
            if channel.link is None and self.keeps_all:
                self.open(channel)
            elif channel.link is not None and channel.link.is_useless:
                if channel.state is not LinkState.DOWN:
                    changed.append(channel)
                self.mute(channel)
                with suppress(DescriptorsError):  # later, when others have closed some
                    channel.replace(channel.link.renewed(self._zmq_context))
                    self._register(channel)
        return changed

    def mute(self, channel: PeerChannel) -> None:
        """Stop reading from the link to a peer."""
        if channel.link is not None and channel.link.socket in self._sockets:
            for socket in (channel.link.socket, channel.link.monitor):
                self._poller.unregister(socket)
                del self._sockets[socket]

    def close(self, linger_ms: int) -> None:
        for channel in self.channels.values():
            channel.disconnect(linger_ms)

    def asked_to_go(self, channel: PeerChannel) -> None:
        """Mark a link to be closed when it is idle, because the peer has too many connections."""
        if not self.keeps_all and not self._needs_all:
            self.leaving[channel] = None
            self._context.peer_table.asked_to_go(channel.peer)

    def end_idle(self) -> None:
        """Mark links to be closed if unused for `IDLE_AFTER_S`, unless all peers stay connected."""
        if self.keeps_all or self._needs_all:
            return
        latest = self._context.runtime.now() - IDLE_AFTER_S
        idle = [c for c in self.with_link() if c.used_at < latest and not c.mapped_bytes]
        self.leaving.update(dict.fromkeys(idle))

    def close_unneeded(self) -> None:
        """Close the links that are marked for closing, once no request is in progress."""
        if self.keeps_all:
            self.leaving.clear()  # they are not many any more
        latest = self._context.runtime.now() - ANSWERED_WITHIN_S
        for channel in [c for c in self.leaving if c.link is None or self._may_go(c, latest)]:
            self.leaving.pop(channel, None)
            if channel.link is not None:
                self._let_go(channel)

    def _may_go(self, channel: PeerChannel, latest: float) -> bool:
        return channel.used_at < latest and not self._is_busy(channel)

    def _make_room(self) -> bool:
        """Close the least recently used links, if the limit is reached.

        Returns whether a link may be opened, which is not so if all remaining links are in use.
        """
        open_ones = self.with_link()
        too_many = len(open_ones) - self._most + 1
        if too_many <= 0:
            return True
        idle = [channel for channel in open_ones if not self._is_busy(channel)]
        # Nothing is sent to those whose memory is mapped, though it is read all the time.
        idle.sort(key=lambda channel: (channel.mapped_bytes > 0, channel.used_at))
        for channel in idle[:too_many]:
            self._let_go(channel)
        return len(idle) >= too_many

    def _let_go(self, channel: PeerChannel) -> None:
        self.mute(channel)
        channel.disconnect(LINGER_MS)
        self._has_let_go(channel)

    def _register(self, channel: PeerChannel) -> None:
        link = channel.link
        if link is None:
            return
        for socket in (link.socket, link.monitor):
            self._poller.register(socket, zmq.POLLIN)
            self._sockets[socket] = channel
        self._context.peer_table.link_changed(link.peer, link.state, link.problem)
        if link.state is LinkState.DOWN:
            log.warning(
                "%s: this node is not connected to %s: %s [DPWA-W009]",
                self._context.name,
                link.peer,
                link.problem,
            )


def affordable(connections: int, name: str) -> int:
    """Return the maximum number of a node's connections. Warn if descriptors limit it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    others = max(OTHER_DESCRIPTORS, open_descriptors() + NODE_NEEDS)
    needed = others + DESCRIPTORS * connections
    if limit == resource.RLIM_INFINITY or needed <= limit:
        return connections
    fewer = min(connections, max(FEWEST, (limit - others) // DESCRIPTORS))
    log.warning(
        "%s: `connections: %d` needs %d file descriptors, but this process may open %d "
        "(see `ulimit -n`), so the node has at most %d connections [DPWA-W011]",
        name,
        connections,
        needed,
        limit,
        fewer,
    )
    return fewer
