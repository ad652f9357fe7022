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
    """Sends an answer to the asking peer. Returns a receipt, or `None` if the socket is full.

    `is_lent`: the caller does not change the payload until the receipt is done.
    """

    def __call__(
        self, message: Message, payload: Frame | None = None, *, is_lent: bool = False
    ) -> Receipt | None: ...


class Service:
    """Answers messages of certain types. Its methods are called on the RxThread only."""

    handles: tuple[type[Any], ...]

    def handle(self, sender: bytes, message: Any, reply: Reply) -> None:
        raise NotImplementedError

    def receive(self, sender: bytes, message: Any, payload: Frame, reply: Reply) -> None:  # noqa: ARG002
        """Answer one message, which may have a payload. By default, the payload is ignored."""
        self.handle(sender, message, reply)

    def tick(self, now: float) -> bool:  # noqa: ARG002
        """Do the work that is due. Return whether the next call must come within `BUSY_S`.

        The thread calls it after each message, when it is woken, and at least every `IDLE_S`.
        """
        return False

    def ended(self) -> bool:
        """Send the last messages before the node ends. Return whether there were any."""
        return False


class Listener:
    """Receives answers and the states of connections. It is called on the TxThread only."""

    handles: tuple[type[Any], ...] = ()  # the types of answers that it receives

    def attached(self, zmq_context: Context, poller: zmq.Poller) -> None:
        """Prepare to receive answers. The listener may open its own sockets."""

    def poll_sockets(self) -> None:
        """Read from the listener's own sockets."""

    def tick(self, now: float) -> float:  # noqa: ARG002
        """Do the work that is due. Return the maximum seconds until the next call."""
        return math.inf

    def ended(self) -> None:
        """Close the listener's sockets, because the thread ends."""

    def link_changed(self, peer: str, state: LinkState) -> None:
        """Note a change of the connection to a peer. `IDLE` means that this node has closed the
        connection.
        """

    def removed(self, peer: str) -> None:
        """Note that a peer was removed. By default, a removal is handled as a lost connection."""
        self.link_changed(peer, LinkState.DOWN)

    def receive(self, peer: str, message: Any, payload: Frame) -> None:
        """Process an answer of a peer."""
