"""What a node is extended with: services that answer peers, and listeners that hear from them."""

from __future__ import annotations

import math
from typing import Any, Protocol

import zmq

from dpwa.transport.link import LinkState
from dpwa.transport.sockets import Context, Receipt
from dpwa.types import Frame
from dpwa.wire.messages import Message


class Reply(Protocol):
    """Sends an answer to whoever asked; returns a receipt, or `None` when it was not taken.

    `is_lent`: the payload stays as it is until the receipt is done.
    """

    def __call__(
        self, message: Message, payload: Frame | None = None, *, is_lent: bool = False
    ) -> Receipt | None: ...


class Service:
    """Something that answers certain messages; called on the RxThread only."""

    handles: tuple[type[Any], ...]

    def handle(self, sender: bytes, message: Any, reply: Reply) -> None:
        raise NotImplementedError

    def receive(self, sender: bytes, message: Any, payload: Frame, reply: Reply) -> None:  # noqa: ARG002
        """Answer one message that may carry a payload; by default, that is ignored."""
        self.handle(sender, message, reply)

    def tick(self, now: float) -> bool:  # noqa: ARG002
        """Do what has become due; return whether to be called again within `BUSY_S`.

        Called after each message for it, when the thread is woken, and at least every `IDLE_S`.
        """
        return False

    def ended(self) -> bool:
        """Say what is left to say, as the node ends; return whether there was anything."""
        return False


class Listener:
    """Something that hears of connections and of answers; called on the TxThread only."""

    handles: tuple[type[Any], ...] = ()  # types of answers that are for it

    def attached(self, zmq_context: Context, poller: zmq.Poller) -> None:
        """It is heard from now on, and may have sockets of its own."""

    def ready(self) -> None:
        """Look at its own sockets."""

    def tick(self, now: float) -> float:  # noqa: ARG002
        """Do what has become due; return in how many seconds to be called again at the latest."""
        return math.inf

    def ended(self) -> None:
        """Close all sockets: the thread ends."""

    def link_changed(self, peer: str, state: LinkState) -> None:
        """The connection to a peer is `UP`, `DOWN`, or `IDLE`: this node has let it go."""

    def removed(self, peer: str) -> None:
        """It is no peer any more; by default, as if its connection were gone."""
        self.link_changed(peer, LinkState.DOWN)

    def receive(self, peer: str, message: Any, payload: Frame) -> None:
        """Take in an answer."""
