"""Inbox: brings the answers of donors from the TxThread to the thread that fetches."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dpwa.node.serving.service import Listener
from dpwa.runtime import SYSTEM, Runtime
from dpwa.types import Frame
from dpwa.wire.state import (
    OtherState,
    StateBusy,
    StateGone,
    StateOffer,
    StatePiece,
    StateStanding,
)

MOST_WAITING = 256  # answers: whoever sends more than was asked for loses the rest

Answer = StateStanding | StateBusy | OtherState | StateOffer | StatePiece | StateGone


class DonorAnswer(NamedTuple):
    """An answer, from whom, and what came with it."""

    peer: str
    message: Answer
    payload: Frame


class Inbox(Listener):
    """A bounded queue of answers; those that nobody waits for are dropped.

    Args:
        runtime: of the node.
    """

    handles = (StateStanding, StateBusy, OtherState, StateOffer, StatePiece, StateGone)

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._received: deque[DonorAnswer] = deque()
        self._changed = runtime.condition()
        self._is_open = False

    def open(self) -> None:
        """Begin to keep what comes."""
        self._is_open = True

    def close(self) -> None:
        """Keep nothing any more."""
        with self._changed:
            self._is_open = False
            self._received.clear()

    def receive(self, peer: str, message: Answer, payload: Frame) -> None:
        """Take in an answer; called on the TxThread."""
        with self._changed:
            if self._is_open and len(self._received) < MOST_WAITING:
                self._received.append(DonorAnswer(peer, message, payload))
                self._changed.notify_all()

    def take(self, timeout_s: float) -> DonorAnswer | None:
        """Return the next answer; `None` if there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._received), timeout_s)
            return self._received.popleft() if self._received else None
