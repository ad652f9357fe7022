"""Connections of a node to its peers: opened when there is something to say, and bounded.

A node knows of any number of peers, but is connected to `connections` of them at most. While there
are few it connects to all of them at once, and keeps these links: then it is seen at once when one
comes or goes. Of many, only those are connected to that are asked for something; the one that was
used least recently makes room for the next, unless something is under way with it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

import zmq

from dpwa.node.context import NodeContext
from dpwa.node.peer_channel import ChannelSettings, PeerChannel
from dpwa.transport.keyring import Keyring
from dpwa.transport.link import LinkState, PeerLink
from dpwa.transport.sockets import Context

log = logging.getLogger("dpwa.tx")

FEW = 8  # peers that are all connected to, asked for or not


class Connections:
    """The channels to all peers, and the links of those that are connected; of the TxThread.

    Args:
        zmq_context: of the sockets.
        poller: waits for what links have to say.
        context: of the node.
        keyring: keys of the peers; `None` where there are none.
        is_busy: tells whether something is under way with a peer, whose link must stay.

    Attributes:
        channels: by name of the peer.
    """

    def __init__(
        self,
        zmq_context: Context,
        poller: zmq.Poller,
        context: NodeContext,
        keyring: Keyring | None,
        is_busy: Callable[[PeerChannel], bool],
    ) -> None:
        self._zmq_context = zmq_context
        self._poller = poller
        self._context = context
        self._keyring = keyring
        self._is_busy = is_busy
        self._most = context.config.connections
        self._uses = itertools.count()
        self._keeps_all = False
        self._sockets: dict[object, PeerChannel] = {}  # of links, and their monitors
        self.channels: dict[str, PeerChannel] = {}

    @property
    def keeps_all(self) -> bool:
        """Whether this node is to be connected to all peers."""
        return self._keeps_all or len(self.channels) <= FEW

    def add(self, name: str, endpoint: str, settings: ChannelSettings) -> bool:
        """Make a channel to a peer; return `False` if it cannot be connected to, and should."""
        channel = self.channels[name] = PeerChannel(name, endpoint, settings)
        return not self.keeps_all or self.open(channel)

    def remove(self, channel: PeerChannel, linger_ms: int) -> None:
        """Forget a peer."""
        del self.channels[channel.peer]
        self._unregister(channel)
        channel.close(linger_ms)

    def keep_all(self) -> None:
        """Connect to all peers from now on, and stay so: there is something that needs it."""
        self._keeps_all = True
        for channel in self.channels.values():
            self.open(channel)

    def open(self, channel: PeerChannel) -> bool:
        """Connect to a peer, if this node is not: there is something to say to it.

        Returns:
            Whether there is a link now, which may be up or not.
        """
        channel.used = next(self._uses)
        if channel.link is not None:
            return True
        self._make_room()
        try:
            link = PeerLink(self._zmq_context, channel.peer, channel.endpoint, self._keyring)
        except zmq.ZMQError as error:
            log.error("cannot connect to %s at %s: %s", channel.peer, channel.endpoint, error)
            return False
        channel.link = link
        self._register(channel)
        return True

    def ready(self, events: dict[object, int]) -> dict[PeerChannel, bool]:
        """Return the channels that have something to say, and whether it is of the connection."""
        ready: dict[PeerChannel, bool] = {}
        for socket in events:
            channel = self._sockets.get(socket)
            if channel is not None and channel.link is not None:
                ready[channel] = ready.get(channel, False) or socket is channel.link.monitor
        return ready

    def with_link(self) -> list[PeerChannel]:
        """Return the channels that have a link, whether it is up or not."""
        return list(dict.fromkeys(self._sockets.values()))

    def up(self) -> list[PeerChannel]:
        """Return the channels whose link is up."""
        return [channel for channel in self.with_link() if channel.is_up]

    def lost(self, channel: PeerChannel) -> None:
        """Take note that a link is down: of many peers, one that is not there is let go."""
        if not self.keeps_all and not self._is_busy(channel):
            self._let_go(channel)
            self._context.peer_table.absent(channel.peer)

    def renew(self) -> list[PeerChannel]:
        """Replace links of which nothing can come, because a key has changed or was refused.

        Returns:
            The channels whose link had not been down: it is now.
        """
        changed = []
        for channel in self.with_link():
            if channel.link is not None and channel.link.is_useless:
                if channel.state is not LinkState.DOWN:
                    changed.append(channel)
                self._unregister(channel)
                channel.replace(channel.link.renewed(self._zmq_context))
                self._register(channel)
        return changed

    def close(self, linger_ms: int) -> None:
        """Close all links."""
        for channel in self.channels.values():
            channel.close(linger_ms)

    def _make_room(self) -> None:
        """Let go of the link that was used least recently, if there are as many as there may be."""
        open_ones = self.with_link()
        if self._keeps_all or len(open_ones) < self._most:
            return
        idle = [channel for channel in open_ones if not self._is_busy(channel)]
        if idle:
            self._let_go(min(idle, key=lambda channel: channel.used))

    def _let_go(self, channel: PeerChannel) -> None:
        self._unregister(channel)
        channel.disconnect()

    def _register(self, channel: PeerChannel) -> None:
        link = channel.link
        if link is None:
            return
        for socket in (link.socket, link.monitor):
            self._poller.register(socket, zmq.POLLIN)
            self._sockets[socket] = channel
        self._context.peer_table.trouble(link.peer, link.problem)
        if link.state is LinkState.DOWN:
            log.warning("%s: not connected to %s: %s", self._context.name, link.peer, link.problem)

    def _unregister(self, channel: PeerChannel) -> None:
        if channel.link is not None:
            for socket in (channel.link.socket, channel.link.monitor):
                self._poller.unregister(socket)
                del self._sockets[socket]
