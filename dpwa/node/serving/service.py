"""Extensions of a node: services that answer peers, and listeners for their answers."""

from __future__ import annotations

import math
from typing import Any, Protocol

import zmq

from dpwa.transport.link import LinkState
from dpwa.transport.sockets import Context, Receipt
from dpwa.types import Frame
from dpwa.wire.messages import Message


class Reply(Protocol):
    """Sends an answer to the asking peer. Returns a receipt, or `None` if it was not accepted.

    `is_lent`: the payload does not change until the receipt is done.
    """

    def __call__(
        self, message: Message, payload: Frame | None = None, *, is_lent: bool = False
    ) -> Receipt | None: ...


class Service:
    """A service answers certain messages. It is called on the RxThread only."""

    handles: tuple[type[Any], ...]

    def handle(self, sender: bytes, message: Any, reply: Reply) -> None:
        raise NotImplementedError

    def receive(self, sender: bytes, message: Any, payload: Frame, reply: Reply) -> None:  # noqa: ARG002
        """Answer one message that may carry a payload, which is ignored by default."""
        self.handle(sender, message, reply)

    def tick(self, now: float) -> bool:  # noqa: ARG002
        """Do the due work, and return whether to be called again within `BUSY_S`.

        Called after each message for it, when the thread is woken, and at least every `IDLE_S`.
        """
        return False

    def ended(self) -> bool:
        """Send the last messages as the node ends, and return whether there were any."""
        return False


class Listener:
    """A listener receives connections' states and answers. It is called on the TxThread only."""

    handles: tuple[type[Any], ...] = ()  # types of answers that are for it

    def attached(self, zmq_context: Context, poller: zmq.Poller) -> None:
        """It is heard from now on, and may have sockets of its own."""

    def poll_sockets(self) -> None:
        """Look at its own sockets."""

    def tick(self, now: float) -> float:  # noqa: ARG002
        """Do the due work, and return the maximum seconds until the next call."""
        return math.inf

    def ended(self) -> None:
        """Close all sockets, because the thread ends."""

    def link_changed(self, peer: str, state: LinkState) -> None:
        """Note that the connection to a peer is `UP`, `DOWN`, or `IDLE` because this node closed
        it.
        """

    def removed(self, peer: str) -> None:
        """Note that a peer was removed. By default, this is like a lost connection."""
        self.link_changed(peer, LinkState.DOWN)

    def receive(self, peer: str, message: Any, payload: Frame) -> None:
        """Take in an answer."""
