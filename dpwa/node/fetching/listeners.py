"""Listeners: what stands on the TxThread, when it is called, and with what."""

from __future__ import annotations

import math
from collections.abc import Iterable

import zmq

from dpwa.message_codes import get_log
from dpwa.node.serving.service import Listener
from dpwa.transport.sockets import Context
from dpwa.wire.messages import Message

log = get_log("dpwa.tx")

BETWEEN_TICKS_S = 0.01  # at least, however often they are to look at once


class Listeners:
    """The listeners of a node; belongs to the TxThread.

    Args:
        zmq_context: of sockets of their own.
        poller: wakes the thread.

    Attributes:
        tick_at: when something becomes due; inf: never.
    """

    def __init__(self, zmq_context: Context, poller: zmq.Poller) -> None:
        self.tick_at = math.inf
        self._ticked_at = -math.inf
        self._zmq_context = zmq_context
        self._poller = poller
        self._listeners: list[Listener] = []

    def attach(self, listener: Listener, connected: Iterable[str]) -> None:
        """Let it hear of connections, beginning with those that there are."""
        self._listeners.append(listener)
        listener.attached(self._zmq_context, self._poller)
        self.tick_at = -math.inf
        for peer in connected:
            listener.link_changed(peer, is_up=True)

    def detach(self, listener: Listener) -> None:
        """Let it hear of nothing any more, and end it."""
        if listener not in self._listeners:
            return
        self._listeners.remove(listener)
        try:
            listener.ended()
        except Exception:
            log.exception("%s did not end as it should", type(listener).__name__)

    def end(self) -> None:
        """End them all."""
        for listener in list(self._listeners):
            self.detach(listener)

    def look_at_once(self) -> None:
        """Call them as soon as may be."""
        self.tick_at = min(self.tick_at, self._ticked_at + BETWEEN_TICKS_S)

    def tick(self, now: float) -> None:
        """Have done what has become due."""
        waits_s = (listener.tick(now) for listener in list(self._listeners))
        self._ticked_at, self.tick_at = now, now + min(waits_s, default=math.inf)

    def ready(self) -> None:
        """Have them look at their sockets."""
        for listener in list(self._listeners):
            listener.ready()

    def link_changed(self, peer: str, *, is_up: bool) -> None:
        """Tell all that a connection has come up, or is gone."""
        for listener in self._listeners:
            listener.link_changed(peer, is_up=is_up)

    def let_go(self, peer: str) -> None:
        """Tell all that a connection was given up, as it was idle."""
        for listener in self._listeners:
            listener.let_go(peer)

    def of(self, message: Message) -> Listener | None:
        """Return the one that an answer is for, if there is one."""
        return next((each for each in self._listeners if isinstance(message, each.handles)), None)
