"""Quarantine excludes peers from merges for a while if their merges make the loss jump.

After a merge the next loss is compared with the expected one. With the level of the loss L =
max(|previous loss|, median of the recent |losses|), a change is (loss - previous) / L, and it is a
jump if it is above both of

    median + threshold * 1.4826 * MAD        of the recent changes when nothing was wrong
    median + 0.25                            so that little noise on a smooth curve is no jump

MAD is the median distance from the median; 1.4826 * MAD estimates the standard deviation, and up to
half of the values may be outliers (F. R. Hampel, The Influence Curve and Its Role in Robust
Estimation, 1974). Changes are relative, as the noise of a loss grows and falls with it, and to the
median level if that is higher, so that one lucky loss near 0 makes no jump of the next.

A jump is one strike, shared by the peers merged since the last loss in proportion to their factors.
A loss without a jump removes `CLEAN_MERGE` of a strike, shared alike. With `strikes` strikes a peer
is put into quarantine, each time for twice as long, up to an hour. If that were more than half of
the peers in view, this node's own training is probably at fault. Then all are released, and the
learned changes are forgotten.

It cannot detect a peer that does harm slowly, one whose harm lasts until it is merged again (the
loss is high, but jumps no more), or one that does harm with fewer than one in eleven of its merges
(1 + 1/`CLEAN_MERGE`). The rule is dpwa's own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

DEVIATION_OF_MAD = 1.4826
SMALLEST_JUMP = 0.25
CLEAN_MERGE = 0.1
WINDOW = 100
WARM_UP = 20
LONGEST_S = 3600.0


@dataclass(frozen=True)
class Expectation:
    """The usual change of the loss, in shares of its level."""

    change: float
    deviation: float


class LossChanges:
    """The recent losses, and their changes without jumps."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._changes: deque[float] = deque(maxlen=WINDOW)

    def change_to(self, loss: float) -> float | None:
        """Return the change from the previous loss. `None`: there is none. inf: not finite."""
        if not self._losses:
            return None
        if not math.isfinite(loss):
            return math.inf
        previous = self._losses[-1]
        level = max(abs(previous), median(map(abs, self._losses)))
        return (loss - previous) / level if level else None

    def expectation(self) -> Expectation | None:
        if len(self._changes) < WARM_UP:
            return None
        middle = median(self._changes)
        spread = median(abs(change - middle) for change in self._changes)
        return Expectation(middle, DEVIATION_OF_MAD * spread)

    def learn(self, loss: float, change: float | None) -> None:
        """Store a loss and the change to it. A loss that is not finite clears all before."""
        if not math.isfinite(loss):
            self._losses.clear()
            return
        self._losses.append(loss)
        if change is not None:
            self._changes.append(change)


class Quarantine:
    """The rule of one node, with `merged` for every merge, `measured` for every loss. Not
    thread-safe.

    The loss must have been computed with the parameters after the merges that were noted before.
    """

    def __init__(
        self, threshold: float = 4.0, strikes: float = 3.0, duration_s: float = 60.0
    ) -> None:
        """Set the deviations of a jump, the strikes, and the first duration of a quarantine."""
        self._threshold = threshold
        self._strikes_allowed = strikes
        self._duration_s = duration_s
        self._loss_changes = LossChanges()
        self._factors: dict[str, float] = {}  # merged since the last loss
        self._strikes: dict[str, float] = {}
        self._terms: dict[str, int] = {}  # how often each peer was put into quarantine
        self._until: dict[str, float] = {}

    def merged(self, peer: str, factor: float) -> None:
        """Note that a peer was merged with this factor. 0 is no merge."""
        if factor > 0.0:
            self._factors[peer] = self._factors.get(peer, 0.0) + factor

    def measured(self, loss: float | None, now: float, peers: int) -> str | None:
        """Judge the merges since the last loss by this one, and return the message to log, if any.

        If the loss is `None`, it was not measured, and the merges wait for the next one. A loss
        that is not finite is a jump. The first loss, and the first after one that was not finite,
        cannot be compared. `peers` counts those in quarantine, too.
        """
        if loss is None:
            return None
        shares = _shares(self._factors)
        self._factors = {}
        change, expected = self._loss_changes.change_to(loss), self._loss_changes.expectation()
        is_outlier = change is not None and self._is_outlier(change, expected)
        # Without a merge it was the training itself: that is how the loss of this node changes.
        self._loss_changes.learn(loss, None if is_outlier and shares else change)
        if change is None:
            return None
        if not is_outlier or change < 0.0:
            self._forgive(shares)
            return None
        return self._blame(shares, now, peers, _jump_text(change, expected))

    def quarantined(self, now: float) -> frozenset[str]:
        return frozenset(peer for peer, until in self._until.items() if now < until)

    def _is_outlier(self, change: float, expected: Expectation | None) -> bool:
        if expected is None or math.isinf(change):
            return math.isinf(change)
        margin = max(self._threshold * expected.deviation, SMALLEST_JUMP)
        return abs(change - expected.change) > margin

    def _forgive(self, shares: Mapping[str, float]) -> None:
        for peer, share in shares.items():
            left = self._strikes.pop(peer, 0.0) - CLEAN_MERGE * share
            if left > 0.0:
                self._strikes[peer] = left

    def _blame(self, shares: Mapping[str, float], now: float, peers: int, jump: str) -> str | None:
        for peer, share in shares.items():
            self._strikes[peer] = self._strikes.get(peer, 0.0) + share
        # Shares such as 1/10 do not add up to whole strikes exactly.
        enough = self._strikes_allowed - 1e-9
        convicts = sorted(peer for peer in shares if self._strikes[peer] >= enough)
        if not convicts:
            return None
        if 2 * len(self.quarantined(now) | set(convicts)) > peers:
            return self._release_all(convicts, peers, jump)
        told = "; ".join(self._put(peer, now, jump) for peer in convicts)
        return f"{told} [DPWA-W045]"

    def _put(self, peer: str, now: float, jump: str) -> str:
        strikes = self._strikes.pop(peer)
        terms = self._terms.get(peer, 0)
        self._terms[peer] = terms + 1
        # The exponent is bounded, as a float overflows at 2^1024.
        duration_s = min(LONGEST_S, self._duration_s * 2.0 ** min(terms, 30))
        self._until[peer] = now + duration_s
        return (
            f"{peer} is not merged for {duration_s:.0f} s: the loss jumped after its merges "
            f"({strikes:.1f} strikes; the last time {jump})"
        )

    def _release_all(self, convicts: list[str], peers: int, jump: str) -> str:
        self._loss_changes = LossChanges()
        for state in (self._strikes, self._terms, self._until):
            state.clear()
        return (
            f"the loss jumped after merges with {', '.join(convicts)} ({jump}), but no more than "
            f"half of {peers} peers are put into quarantine: all are merged again, as the training "
            "of this node itself may be at fault [DPWA-W046]"
        )


def _shares(factors: Mapping[str, float]) -> dict[str, float]:
    total = sum(factors.values())
    return {peer: factor / total for peer, factor in factors.items()}


def _jump_text(change: float, expected: Expectation | None) -> str:
    if expected is None or math.isinf(change):
        return "it was not finite"
    return (
        f"by {100 * change:.0f} % when {100 * expected.change:.0f} % "
        f"with a deviation of {100 * expected.deviation:.0f} % was expected"
    )
