"""What the TxThread can be told to do."""

from __future__ import annotations

from dataclasses import dataclass

from dpwa.node.fetching.fetch_request import FetchRequest
from dpwa.node.fetching.peer_channel import ChannelSettings
from dpwa.node.serving.service import Listener
from dpwa.types import Frame
from dpwa.wire.messages import Message


@dataclass(frozen=True)
class AddPeer:
    name: str
    endpoint: str
    settings: ChannelSettings


@dataclass(frozen=True)
class RemovePeer:
    name: str


@dataclass(frozen=True)
class Tell:
    """Send a message to a peer, if there is a connection."""

    peer: str
    message: Message
    payload: Frame | None = None
    connects: bool = False  # connect if there is none, and send it then


@dataclass(frozen=True)
class Attach:
    """Let a listener hear of connections, beginning with the present ones."""

    listener: Listener


@dataclass(frozen=True)
class Detach:
    """End a listener."""

    listener: Listener


@dataclass(frozen=True)
class TickListeners:
    """Have all listeners look at once whether something has become due."""


@dataclass(frozen=True)
class Stop:
    """End the thread."""


@dataclass(frozen=True)
class PartnerPrepared:
    """A peer has all of this node's snapshot, for a transaction; or it cannot have it."""

    transaction: bytes
    name: str
    is_there: bool


@dataclass(frozen=True)
class PeerLeft:
    """A peer has said goodbye."""

    name: str


@dataclass(frozen=True)
class PassOnNews:
    """Tell a peer, drawn at random, what this node knows, and hear what that one does."""


@dataclass(frozen=True)
class Connect:
    """Connect to peers, as many as there may be connections."""

    needs_all: bool  # all of them are needed from now on


@dataclass(frozen=True)
class RenewLinks:
    """Other keys are allowed than before."""


Command = (
    FetchRequest
    | AddPeer
    | RemovePeer
    | PartnerPrepared
    | PeerLeft
    | PassOnNews
    | Tell
    | Attach
    | Detach
    | TickListeners
    | Connect
    | RenewLinks
    | Stop
)
