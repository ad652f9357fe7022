"""Trials: which dead nodes are tried, whether they are there again, and when."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from dpwa.policy.members.records import MemberRecord
from dpwa.policy.members.states import MemberEntry, MemberStatus, Times

FEW_REMEMBERED = 16
TRIED_EVERY_S = 0.15  # dead nodes, one after the other: a view of hundreds costs no more


class Trials:
    """The pauses between trials of one node grow, and trials of all of them have a rate.

    Args:
        times: how long the pauses are.
    """

    def __init__(self, times: Times) -> None:
        self._times = times
        self._next_at = -math.inf

    def due(
        self, records: Iterable[MemberRecord], now: float, rng: random.Random
    ) -> list[MemberEntry]:
        """Choose the dead node to try now, if any is due, and note that it was.

        Of many that are due, the one that has waited longest.
        """
        if now < self._next_at:
            return []
        dead = [record for record in records if record.entry.status is MemberStatus.DEAD]
        due = [record for record in dead if now >= record.retry_at]
        if not due:
            return []
        self._next_at = now + TRIED_EVERY_S
        chosen = min(due, key=lambda record: record.retry_at)
        times = self._times
        longest_s = times.retry_few_s if len(dead) < FEW_REMEMBERED else times.retry_many_s
        chosen.pause_s = min(longest_s, max(2 * chosen.pause_s, times.retry_first_s))
        # The jitter keeps nodes that died together from being tried together.
        chosen.retry_at = now + rng.uniform(0.5, 1.0) * chosen.pause_s
        return [chosen.entry]
