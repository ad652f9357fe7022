"""Calls: each asks the process at an address one question, on a separate connection."""

from __future__ import annotations

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

MAX_CALLS = 32
FRAMES_PER_TURN = 16


@dataclass(frozen=True)
class NoAnswer:
    problem: str
    is_reached: bool = False  # whether a process answered or accepted the connection


@dataclass(frozen=True)
class Question:
    name: str  # the expected node; empty if unknown
    endpoint: str
    message: Callable[[], tuple[Message, Frame | None]]
    answered: Callable[[Message, Frame], None]
    failed: Callable[[NoAnswer], None]  # called with the reason if there is no answer in time
    timeout_s: float
    purpose: str = ""  # for the code that asks


@dataclass
class _Call:
    question: Question
    link: PeerLink
    expires: float
    was_sent: bool = False


class Calls:
    """The calls in progress of one thread, at most `most` at once."""

    def __init__(self, keyring: Keyring | None, clock: Clock, most: int = MAX_CALLS) -> None:
        self._most = most
        self._zmq_context: Context | None = None
        self._poller = zmq.Poller()
        self._keyring = keyring
        self._clock = clock
        self._calls: dict[str, _Call] = {}

    def open(self, zmq_context: Context, poller: zmq.Poller) -> None:
        """Start to accept calls. `poller` is the poller of the owning thread."""
        self._zmq_context, self._poller = zmq_context, poller

    def question_at(self, endpoint: str) -> Question | None:
        """Return the question that is in progress at an address, or `None`."""
        call = self._calls.get(endpoint)
        return None if call is None else call.question

    def has_room(self, purpose: str, most: int) -> bool:
        """Return whether a call may start, and fewer than `most` calls have the given purpose."""
        alike = sum(call.question.purpose == purpose for call in self._calls.values())
        return len(self._calls) < self._most and alike < most

    def start(self, question: Question) -> bool:
        """Start a call. Return False if there is no room, or a call to that address."""
        if self._zmq_context is None or len(self._calls) >= self._most:
            return False
        if question.endpoint in self._calls:
            return False
        try:
            link = PeerLink(self._zmq_context, question.name, question.endpoint, self._keyring)
        except zmq.ZMQError as error:
            question.failed(NoAnswer(str(error.strerror)))
            return True
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)
        expires = self._clock.now() + question.timeout_s
        self._calls[question.endpoint] = _Call(question, link, expires)
        return True

    def go_on(self) -> None:
        """Continue all calls: send questions, receive answers, and end finished calls."""
        for call in list(self._calls.values()):
            self._look_at(call)

    def close(self) -> None:
        """End all calls without their `Question.failed` callbacks. No more calls can start."""
        self._zmq_context = None
        for call in list(self._calls.values()):
            self._end(call)

    def give_up(self) -> None:
        for call in list(self._calls.values()):
            self._end(call)
            call.question.failed(_no_answer(call))

    def _look_at(self, call: _Call) -> None:
        call.link.update()
        if call.link.state is LinkState.UP and not call.was_sent:
            call.was_sent = call.link.send_request(*call.question.message())
        for _ in range(FRAMES_PER_TURN):
            frames = call.link.receive()
            if frames is None:
                break
            if self._is_answer(call, frames):
                return
        is_lost = frames is None and call.link.state is LinkState.DOWN  # else read more answers
        if is_lost or self._clock.now() >= call.expires:
            self._end(call)
            call.question.failed(_no_answer(call))

    def _is_answer(self, call: _Call, frames: list[Frame]) -> bool:
        """Return whether the received frames end a call. If they do, end the call."""
        question = call.question
        try:
            message, payload = decode(frames)
        except ProtocolError as error:
            self._end(call)
            question.failed(NoAnswer(str(error), is_reached=True))
            return True
        if isinstance(message, GoAway):  # the node has many clients, and still answers
            return False
        self._end(call)
        try:
            question.answered(message, payload)
        except ProtocolError as error:
            question.failed(NoAnswer(str(error), is_reached=True))
        return True

    def _end(self, call: _Call) -> None:
        del self._calls[call.question.endpoint]
        self._poller.unregister(call.link.socket)
        self._poller.unregister(call.link.monitor)
        call.link.close()


def _no_answer(call: _Call) -> NoAnswer:
    if call.link.problem:
        return NoAnswer(call.link.problem)
    if call.was_sent:
        return NoAnswer("connected, but no answer in time", is_reached=True)
    return NoAnswer("no answer in time")
