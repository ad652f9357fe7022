"""PeerChannel contains a node's connection to one peer, and the peer's mapped shared memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpwa.data.codecs import Codec
from dpwa.data.peer_memory import NotMappedError, PeerMemory
from dpwa.data.shared_memory import remains
from dpwa.transport.link import LinkState, PeerLink
from dpwa.types import Frame
from dpwa.wire.messages import Message, SharedMemoryName

log = logging.getLogger("dpwa.tx")

MAX_UNSENT = 4


@dataclass(frozen=True)
class ChannelSettings:
    """The settings for fetching from one peer."""

    codec: Codec  # of streams
    plain: Codec  # of fetches that must be exact
    may_map: bool = True  # use shared memory
    may_stream: bool = True


class PeerChannel:
    """The connection and the shared memory of one peer. A new connection tries the memory again."""

    __slots__ = (
        "_left",
        "_memory",
        "endpoint",
        "goodbye_at",
        "is_mappable",
        "is_met",
        "link",
        "may_stream",
        "peer",
        "settings",
        "unsent",
        "used_at",
    )

    def __init__(self, peer: str, endpoint: str, settings: ChannelSettings) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.link: PeerLink | None = None  # `None` as long as there is nothing to say
        self.is_met = False  # whether the peer has said on this connection that it is there
        self.used_at = -math.inf
        self.goodbye_at: float | None = None  # when it said goodbye, while it is still connected
        # messages for when it is connected; of many, the last few
        self.unsent: Sequence[tuple[Message, Frame | None]] = ()
        self.settings = settings
        self.may_stream = settings.may_stream
        self.is_mappable = settings.may_map
        self._memory: PeerMemory | None = None
        self._left: str | None = None  # the folder of a peer that is down

    @property
    def state(self) -> LinkState:
        """State of the connection, which is up once the peer has sent its name."""
        link = self.link  # which another thread may give up meanwhile
        if link is None:
            return LinkState.IDLE
        return LinkState.CONNECTING if self.is_to_be_met else link.state

    @property
    def is_to_be_met(self) -> bool:
        """Whether a process is connected, and has not sent the name of its node yet."""
        link = self.link
        return link is not None and link.state is LinkState.UP and not self.is_met

    @property
    def is_up(self) -> bool:
        """Whether there is a connection. Any thread may ask."""
        return self.state is LinkState.UP

    @property
    def problem(self) -> str:
        """Why there is no connection, or "" if there is no problem."""
        return "" if self.link is None else self.link.problem

    def send_request(self, message: Message, payload: Frame | None = None) -> bool:
        """Send a request without waiting. Return whether the connection accepted it."""
        return self.link is not None and self.link.send_request(message, payload)

    def send_later(self, message: Message, payload: Frame | None) -> None:
        self.unsent = [*self.unsent, (message, payload)][-MAX_UNSENT:]

    def send_unsent(self) -> None:
        unsent, self.unsent = self.unsent, ()
        for message, payload in unsent:
            self.send_request(message, payload)

    @property
    def mapped_bytes(self) -> int:
        memory = self._memory  # another thread may ask while it is replaced
        return 0 if memory is None else memory.nbytes

    def map(self, found: SharedMemoryName) -> PeerMemory | None:
        """Map the peer's shared memory. If that fails, clear `is_mappable` and return `None`."""
        memory = self._memory
        if memory is not None and (memory.name, memory.nonce) == (found.name, found.nonce):
            return memory
        self._unmap()
        try:
            self._memory = PeerMemory(found.name, found.nonce)
        except NotMappedError as error:
            log.info("peer %s is asked for streams: %s", self.peer, error)
            self.is_mappable = False
        return self._memory

    def follow(self) -> list[LinkState]:
        """Read the events of the connection. Return the new states of the connection, in order.

        `UP` is not among them, because it is entered when the peer has sent its name.
        """
        states = [] if self.link is None else self.link.update()
        if LinkState.DOWN in states:
            self._lost()
        # If the peer was killed, nobody else may ever come by. Its connection may end before its
        # locks do, so this is tried again with every attempt to connect.
        if self._left is not None and not remains(self._left):
            self._left = None
        return [state for state in states if state is not LinkState.UP]

    def replace(self, link: PeerLink) -> None:
        """Use a different link to the peer from now on. The old one is not read any more."""
        self._lost()
        if self.link is not None:
            self.link.close()
        self.link = link

    def disconnect(self, linger_ms: int) -> None:
        """Disconnect and unmap the peer's memory, because its death would now go unnoticed."""
        self.unsent = ()
        self.is_met = False
        self._unmap()
        self.is_mappable = self.settings.may_map
        link, self.link = self.link, None
        if link is not None:
            link.close(linger_ms)

    def _lost(self) -> None:
        self.is_met = False
        if self._memory is not None:
            self._left = self._memory.name
            self._unmap()
        self.is_mappable = self.settings.may_map

    def _unmap(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
