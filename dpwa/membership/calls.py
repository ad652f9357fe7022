"""Calls: one question to one address, on a connection of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from dpwa.clock import Clock
from dpwa.errors import ProtocolError
from dpwa.transport.keyring import Keyring
from dpwa.transport.link import LinkState, PeerLink
from dpwa.transport.sockets import Context
from dpwa.types import Frame
from dpwa.wire.messages import GoAway, Message, decode

log = logging.getLogger("dpwa.members")

MOST_CALLS = 32


@dataclass(frozen=True)
class Question:
    """What to ask, and what to do with the answer.

    Attributes:
        name: who should be there; empty if that is not known.
        endpoint: where.
        message: of the question.
        payload: of the question, if it carries one.
        answered: called with the answer and its payload.
        failed: called, if there is none in time, with the reason in words.
        timeout_s: how long to wait.
        is_join_request: whether it is this node that wants to be let in.
    """

    name: str
    endpoint: str
    message: Callable[[], tuple[Message, Frame | None]]
    answered: Callable[[Message, Frame], None]
    failed: Callable[[str], None]
    timeout_s: float
    is_join_request: bool = False


@dataclass
class _Call:
    question: Question
    link: PeerLink
    expires: float
    was_sent: bool = False


class Calls:
    """The calls under way; owned by one thread.

    Args:
        zmq_context: of the sockets.
        poller: wakes the thread that owns this.
        keyring: keys of those who are called.
        clock: time source.
    """

    def __init__(
        self, zmq_context: Context, poller: zmq.Poller, keyring: Keyring | None, clock: Clock
    ) -> None:
        self._zmq_context = zmq_context
        self._poller = poller
        self._keyring = keyring
        self._clock = clock
        self._calls: dict[str, _Call] = {}

    def asks_to_join(self, endpoint: str, name: str) -> bool:
        """Tell whether this node asks at an address just now, where this name may be."""
        call = self._calls.get(endpoint)
        return (
            call is not None and call.question.is_join_request and call.question.name in ("", name)
        )

    def start(self, question: Question) -> bool:
        """Begin a call; return whether there was room for it, and none to that address."""
        if question.endpoint in self._calls or len(self._calls) >= MOST_CALLS:
            return False
        try:
            link = PeerLink(self._zmq_context, question.name, question.endpoint, self._keyring)
        except zmq.ZMQError as error:
            question.failed(str(error))
            return True
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)
        expires = self._clock.now() + question.timeout_s
        self._calls[question.endpoint] = _Call(question, link, expires)
        return True

    def go_on(self) -> None:
        """Look at all calls: send, take answers, and end those that are over."""
        for call in list(self._calls.values()):
            self._look_at(call)

    def close(self) -> None:
        """End all calls; nobody is told."""
        for call in list(self._calls.values()):
            self._end(call)

    def _look_at(self, call: _Call) -> None:
        call.link.update()
        if call.link.state is LinkState.UP and not call.was_sent:
            call.was_sent = call.link.send(*call.question.message())
        frames = call.link.receive()
        if frames is not None and self._is_answer(call, frames):
            return
        is_lost = frames is None and call.link.state is LinkState.DOWN  # else more may have come
        if is_lost or self._clock.now() >= call.expires:
            problem = call.link.problem or (
                "connected, but no answer in time" if call.was_sent else "no answer in time"
            )
            self._end(call)
            call.question.failed(problem)

    def _is_answer(self, call: _Call, frames: list[Frame]) -> bool:
        """Tell whether this ends a call, and end it."""
        question = call.question
        try:
            message, payload = decode(frames)
        except ProtocolError as error:
            self._end(call)
            question.failed(str(error))
            return True
        if isinstance(message, GoAway):  # it has many visitors; the answer comes all the same
            return False
        self._end(call)
        try:
            question.answered(message, payload)
        except ProtocolError as error:
            question.failed(str(error))
        return True

    def _end(self, call: _Call) -> None:
        del self._calls[call.question.endpoint]
        self._poller.unregister(call.link.socket)
        self._poller.unregister(call.link.monitor)
        call.link.close()
