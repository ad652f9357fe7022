"""FetchTask: one request, and the attempts that are made to meet it."""

from __future__ import annotations

from dpwa.clock import Deadline
from dpwa.node.fetching.fetch_request import FetchRequest
from dpwa.node.fetching.incoming import IncomingSnapshot
from dpwa.node.fetching.peer_channel import PeerChannel
from dpwa.wire.fetching import FetchSession
from dpwa.wire.proposing import ProposeSession


class Attempt:
    """A fetch from one peer; in a transaction, a proposal comes first.

    Attributes:
        channel: to the peer.
        session: the talk with it.
        transaction: what it is part of, if any; a fetch that collects for a peer's transaction is
            not.
        version: of the snapshot that the transaction is about.
        origin: the peer that has sent this node to another one for a copy.
        incoming: what has begun to come.
        asked_at: when the request left; `None` as long as the link is not up.
        deadline: when another peer is asked.
        answered_at: when the header of a stream came, as long as it lasts.
        streamed_bytes: of payload, since then.
    """

    def __init__(self, channel: PeerChannel, session: FetchSession | ProposeSession) -> None:
        self.channel = channel
        self.session = session
        self.transaction: bytes | None = None
        self.version = 0
        self.origin: PeerChannel | None = None
        self.incoming: IncomingSnapshot | None = None
        self.asked_at: float | None = None
        self.deadline: Deadline | None = None
        self.answered_at: float | None = None
        self.streamed_bytes = 0

    @property
    def source(self) -> str:
        """Name of the node whose snapshot it is."""
        return (self.channel if self.origin is None else self.origin).peer

    @property
    def has_expired(self) -> bool:
        """Whether it is time to ask another peer."""
        return self.deadline is not None and self.deadline.expired()


class FetchTask:
    """One order under way.

    Attributes:
        order: what is wanted.
        tried: the peers that were asked.
        attempt: the one under way.
    """

    def __init__(self, order: FetchRequest) -> None:
        self.order = order
        self.tried: set[str] = set()
        self.attempt: Attempt | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds until something is over."""
        remaining_s = self.order.deadline.remaining_s()
        if self.attempt is not None and self.attempt.deadline is not None:
            remaining_s = min(remaining_s, self.attempt.deadline.remaining_s())
        return remaining_s


def is_of_transaction(order: FetchRequest, attempt: Attempt) -> bool:
    """Tell whether what is fetched is on a transaction's terms, of this node or of a peer."""
    return attempt.transaction is not None or order.collects is not None
