"""The wait budgets of nodes in sync for each other, and the time when a late node rejoins.

Nodes that average gradients take a round together, which ends when all have entered it, or when no
node has entered for as long as `Patience` allows. A missing node is then out of sync, and rejoins
by `Absence`.

>>> patience = Patience(timeout_s=2.5)
>>> patience.allowances(["w4"])  # before the first round
{'w4': 2.5}
>>> for _ in range(20):  # it comes 160 ms after the other two, who work 70 ms a step
...     patience.took_part({"w2": 0.01, "w3": 0.0, "w4": 0.16}, worked_s=0.07)
>>> {name: round(left, 2) for name, left in patience.allowances(["w2", "w4"]).items()}
{'w2': 0.5, 'w4': 0.02}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

MIN_SHARE = 0.1
MAX_STEPS = 5  # that an account holds, and at least
MAX_WAIT_S = 0.5
FLOOR_S = 0.02
MAX_EXITS = 9
DECAY = 0.9  # of what an account holds above its most, in each round
SETTLED = 4  # times as many rounds as it was to stay away, after which a node is trusted again


class Patience:
    """The wait budgets of a node for each of the others, in seconds.

    Waiting for one of n members pays as long as all take more steps with it than the others do
    without it. If these work w seconds a step, it may be w / (n - 1) later than they. This much is
    added to its budget in every round, at least a tenth of w, since no machine runs many processes
    in lockstep. The longest time is subtracted in which it was missing, and no other node entered,
    as far as the training had to wait. So nodes wait for the jitter of single steps, and for a
    member that is always late only until its budget is empty.

    No wait is longer than `timeout_s`.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._left_s: dict[str, float] = {}

    def allowances(
        self, names: Iterable[str], missed_s: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return the seconds for which others may be missing while no node enters, by name.

        Args:
            names: of others.
            missed_s: the seconds for which they have been missing, not yet subtracted.
        """
        left_s, missed_s = self._left_s, missed_s or {}
        return {
            name: max(FLOOR_S, left_s.get(name, self._timeout_s) - missed_s.get(name, 0.0))
            for name in names
        }

    def took_part(self, missed_s: Mapping[str, float], worked_s: float) -> None:
        """Update the budgets by the rounds of a step.

        Args:
            missed_s: of each other member, the longest time in which it was missing in a round, and
                no node entered. For several rounds together, at most the time that the training has
                waited for them, as it continues during all but the last.
            worked_s: the time that the training took from the rounds before to its waiting.
        """
        share_s = worked_s * max(MIN_SHARE, 1 / max(1, len(missed_s)))
        most_s = min(self._timeout_s, max(MAX_WAIT_S, MAX_STEPS * worked_s))
        for name, lost_s in missed_s.items():
            before_s = self._left_s.get(name, most_s)
            after_s = min(max(most_s, DECAY * before_s), before_s + share_s - lost_s)
            self._left_s[name] = max(0.0, after_s)

    def was_hasty(self, names: Iterable[str]) -> None:
        """Double the budgets of members without which a round was ended although they were there.

        Their messages take longer, for example over a link whose delays vary.
        """
        for name in names:
            if name in self._left_s:
                left_s = max(FLOOR_S, self._left_s[name])
                self._left_s[name] = min(self._timeout_s, 2 * left_s)

    def came_back(self, names: Iterable[str], worked_s: float) -> None:
        """Give new members, or those that rejoin, at least a step's time."""
        for name in names:
            if name in self._left_s:
                self._left_s[name] = max(self._left_s[name], worked_s)


@dataclass(frozen=True)
class Absence:
    """The way back of a node out of sync: at once the first time, then after 1, 3, 7 ... own steps.

    It begins again once the node has been in sync for some time. Every change returns a new value.
    """

    exits: int = 0  # since then
    since: int | None = None  # which of its steps it has left at; `None`: it is in pace
    entered: int = 0  # which of its steps it has come back at

    @property
    def steps(self) -> int:
        """The number of steps that it stays away."""
        return int(2 ** max(0, self.exits - 1) - 1)

    def left(self, step: int) -> Absence:
        """Leave, or be refused when it tries to rejoin."""
        has_kept = self.since is None and step - self.entered > SETTLED * (self.steps + 1)
        exits = 0 if has_kept else self.exits
        return replace(self, exits=min(exits + 1, MAX_EXITS), since=step)

    def may_enter(self, step: int) -> bool:
        return self.since is not None and step - self.since >= self.steps

    def returned(self, step: int) -> Absence:
        return replace(self, since=None, entered=step)


class RoundLimits:
    """The limits of a collective's time, until all have entered it, and from there on.

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
        """The members that were missing for their maximum time."""
        return [name for name, s in self.longest_s.items() if s >= self.most_s[name]]

    def are_over(self, missing: set[str], now: float) -> bool:
        """Tell, while these have not entered, whether it takes too long."""
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
