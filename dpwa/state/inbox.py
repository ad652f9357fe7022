"""Inbox: brings the answers of donors from the TxThread to the thread that fetches."""

from __future__ import annotations

import queue
from typing import NamedTuple

from dpwa.node.serving.service import Listener
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
    """A bounded queue of answers; those that nobody waits for are dropped."""

    handles = (StateStanding, StateBusy, OtherState, StateOffer, StatePiece, StateGone)

    def __init__(self) -> None:
        self._received: queue.Queue[DonorAnswer] = queue.Queue(MOST_WAITING)
        self._is_open = False

    def open(self) -> None:
        """Begin to keep what comes."""
        self._is_open = True

    def close(self) -> None:
        """Keep nothing any more."""
        self._is_open = False
        while self.take(0.0) is not None:
            pass

    def receive(self, peer: str, message: Answer, payload: Frame) -> None:
        """Take in an answer; called on the TxThread."""
        if self._is_open and not self._received.full():
            self._received.put(DonorAnswer(peer, message, payload))

    def take(self, timeout_s: float) -> DonorAnswer | None:
        """Return the next answer; `None` if there is none in time."""
        try:
            return self._received.get(block=timeout_s > 0.0, timeout=timeout_s or None)
        except queue.Empty:
            return None
