"""Limits on the wait for a late node in a round, and the time when the late node rejoins.

Nodes that average gradients are in a round together. The round ends when all have entered it, or
when no node has entered for as long as `Patience` allows. A missing node is then out of sync.
`Absence` says when it may rejoin.

>>> patience = Patience(timeout_s=2.5)
>>> patience.allowances(["w4"])  # before the first round
{'w4': 2.5}
>>> for _ in range(20):  # w4 enters 160 ms after the other two, which work 70 ms for a step
...     patience.took_part({"w2": 0.01, "w3": 0.0, "w4": 0.16}, worked_s=0.07)
>>> {name: round(left, 2) for name, left in patience.allowances(["w2", "w4"]).items()}
{'w2': 0.5, 'w4': 0.02}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

MIN_SHARE = 0.1
MAX_STEPS = 5  # a budget is at most the time of this many steps, or `MAX_WAIT_S` if that is more
MAX_WAIT_S = 0.5
FLOOR_S = 0.02
MAX_EXITS = 9
DECAY = 0.9  # in each round, of a budget that is above its maximum
SETTLED = 4  # a node is trusted again after this many times the rounds of its absence


class Patience:
    """One node's wait budgets: the seconds that the node still waits for each other node.

    Waiting for one of n members pays if all nodes together take more steps with it than the others
    take without it. If the others work w seconds for a step, the member may be w / (n - 1) seconds
    later than they. In every round, this time is added to its budget, or a tenth of w if that is
    more, because no machine runs many processes in lockstep. The longest time in which the member
    was missing, and no other node entered, is subtracted, as far as the training had to wait. So
    nodes wait for the jitter of single steps. For a member that is always late, they wait only
    until its budget is empty.

    No wait is longer than `timeout_s`.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._left_s: dict[str, float] = {}

    def allowances(
        self, names: Iterable[str], missed_s: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return the maximum seconds to wait for each node, counted while no other node enters.

        Args:
            names: the names of other nodes.
            missed_s: seconds for which nodes have been missing that are not subtracted yet.
        """
        left_s, missed_s = self._left_s, missed_s or {}
        return {
            name: max(FLOOR_S, left_s.get(name, self._timeout_s) - missed_s.get(name, 0.0))
            for name in names
        }

    def took_part(self, missed_s: Mapping[str, float], worked_s: float) -> None:
        """Update the wait budgets after the rounds of one training step.

        Args:
            missed_s: for each other member, the longest time in a round in which the member was
                missing, and no node entered. For several rounds together, it is at most the time
                for which the training waited, because training continues in all but the last.
            worked_s: seconds from the end of the earlier rounds until the training waited.
        """
        share_s = worked_s * max(MIN_SHARE, 1 / max(1, len(missed_s)))
        most_s = min(self._timeout_s, max(MAX_WAIT_S, MAX_STEPS * worked_s))
        for name, lost_s in missed_s.items():
            before_s = self._left_s.get(name, most_s)
            after_s = min(max(most_s, DECAY * before_s), before_s + share_s - lost_s)
            self._left_s[name] = max(0.0, after_s)

    def was_hasty(self, names: Iterable[str]) -> None:
        """Double the wait budgets of members that were excluded from a round too early.

        The messages of these members take longer, for example on a link with varying delays.
        """
        for name in names:
            if name in self._left_s:
                left_s = max(FLOOR_S, self._left_s[name])
                self._left_s[name] = min(self._timeout_s, 2 * left_s)

    def came_back(self, names: Iterable[str], worked_s: float) -> None:
        """Raise the budgets of new and rejoined members to at least the time of one step."""
        for name in names:
            if name in self._left_s:
                self._left_s[name] = max(self._left_s[name], worked_s)


@dataclass(frozen=True)
class Absence:
    """The steps that a node stays out of sync before it tries to rejoin: 0, then 1, 3, 7 ...

    The count starts again after the node was in sync for some time. Changes return a new value.
    """

    exits: int = 0  # number of exits since the count started
    since: int | None = None  # the step of this node at its last exit; `None`: it is in sync
    entered: int = 0  # the step of this node at its last return

    @property
    def steps(self) -> int:
        """The number of steps that the node waits before an attempt to rejoin."""
        return int(2 ** max(0, self.exits - 1) - 1)

    def left(self, step: int) -> Absence:
        """Record that the node went out of sync, or was refused at an attempt to rejoin."""
        has_kept = self.since is None and step - self.entered > SETTLED * (self.steps + 1)
        exits = 0 if has_kept else self.exits
        return replace(self, exits=min(exits + 1, MAX_EXITS), since=step)

    def may_enter(self, step: int) -> bool:
        return self.since is not None and step - self.since >= self.steps

    def returned(self, step: int) -> Absence:
        return replace(self, since=None, entered=step)


class RoundLimits:
    """Time limits of a collective: before all members have entered, and after that.

    `most_s` is the maximum time for which each other member may be missing while no member enters,
    and `longest_s` the time for which each was. `exchange_s` is the maximum time once all have
    entered, which was after `entered_at`, and `took_s` the time it took. Even if members enter, any
    may be missing for `missing_s` only. Unless it `lets_in`, nodes that ask to join have to wait.
    """

    def __init__(
        self,
        most_s: Mapping[str, float],
        missing_s: float,
        exchange_s: float,
        *,
        lets_in: bool = True,
    ) -> None:
        self.most_s = {name: min(s, missing_s) for name, s in most_s.items()}
        self.missing_s = missing_s
        self.exchange_s = exchange_s
        self.lets_in = lets_in
        self.longest_s = dict.fromkeys(most_s, 0.0)
        self.entered_at, self.took_s = -math.inf, 0.0
        self._missing, self._since, self._began = set(most_s), -math.inf, math.inf

    @property
    def given_up(self) -> list[str]:
        """The members for which the others have waited as long as allowed."""
        return [name for name, s in self.longest_s.items() if s >= self.most_s[name]]

    def are_over(self, missing: set[str], now: float) -> bool:
        """Return whether a time limit has expired, while `missing` members have not entered."""
        self._began = min(self._began, now)
        if missing != self._missing or self._since == -math.inf:
            self._missing, self._since = missing, now
        passed_s = now - self._since
        if not missing:
            return passed_s >= self.exchange_s
        self.entered_at = now
        for name in missing & self.longest_s.keys():
            self.longest_s[name] = max(self.longest_s[name], passed_s)
        is_late = now - self._began >= self.missing_s
        return is_late or passed_s >= max(self.most_s.get(name, 0.0) for name in missing)
