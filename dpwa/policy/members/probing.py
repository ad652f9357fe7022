"""Which members answer: the failure detector of one node, without sockets.

It is that of SWIM (A. Das, I. Gupta, A. Motivala, 2002), with the local health of Lifeguard
(A. Dadgar, J. Phillips, J. Currey, 2017):

- A member that was asked and has not been heard from for `ask_others_after_s` is uncertain. A few
  others are asked once to ask it: if one of them hears from it, only the way to it is broken.
- If nobody has heard from it `suspect_after_s` after the question, it is suspected.
- Who contradicted a suspicion of this node without having been heard from by it is given twice as
  much time, then four and eight times.
- A node whose questions stay unanswered, or that is suspected itself, may be the slow one: it gives
  everybody more time, `LocalHealth.most` times as much at the most, until questions are answered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpwa.policy.members.states import Times

MOST_PATIENCE = 8


@dataclass(eq=False)
class LocalHealth:
    """How far this node trusts its own questions: `factor` times more time for all, 1 to `most`."""

    factor: int = 1
    most: int = 2  # of more, a node that is cut off would hold on to the others for too long

    def worse(self) -> None:
        """Note a question without an answer, or a suspicion of this node."""
        self.factor = min(self.most, self.factor + 1)

    def better(self) -> None:
        self.factor = max(1, self.factor - 1)


@dataclass(eq=False)
class Probe:
    """What one member was asked, and whether it was heard from; seconds of any monotonic clock."""

    heard_at: float = -math.inf  # last; -inf: never
    asked_at: float | None = None  # first since then; `None`: it was not
    helpers: frozenset[str] = frozenset()  # names of those who were asked to ask it since then
    patience: int = 1  # by how much more time it is given than others
    is_accused: bool = False  # this node itself suspects it

    def asked(self, now: float) -> None:
        """Note a question: from now on it should be heard from."""
        if self.asked_at is None:
            self.asked_at = now

    def heard(self, now: float) -> bool:
        """Note a message of its own; return whether it was waited for."""
        was_awaited = self.asked_at is not None
        self.answered()
        self.heard_at, self.patience, self.is_accused = now, 1, False
        return was_awaited

    def answered(self) -> None:
        self.asked_at, self.helpers = None, frozenset()

    def helped(self, helper: str) -> None:
        """Note that a helper has heard from it, so that a lost connection is no evidence either."""
        if helper in self.helpers:
            self.answered()
            self.patience = max(2, self.patience)

    def contradicted(self) -> None:
        """Note that it says it is alive, though this node does not hear from it."""
        self.answered()
        self.is_accused = False
        self.patience = min(MOST_PATIENCE, 2 * self.patience)

    def is_uncertain(self, now: float, times: Times, health: LocalHealth) -> bool:
        """Tell whether others may hear from it, as this node does not."""
        return self._is_silent(now, times.ask_others_after_s, health)

    def has_failed(self, now: float, times: Times, health: LocalHealth) -> bool:
        return self._is_silent(now, times.suspect_after_s, health)

    def _is_silent(self, now: float, limit_s: float, health: LocalHealth) -> bool:
        if self.asked_at is None:
            return False
        return now - self.asked_at >= limit_s * max(self.patience, health.factor)
