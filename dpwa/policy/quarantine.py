"""Quarantine temporarily excludes a peer if merges with that peer raise the loss abruptly.

After a merge, the next loss is compared with the expected loss. The level of the loss is L =
max(|previous loss|, median of the recent |losses|). A change is (loss - previous) / L. A change is
a jump if it is above both of

    median + threshold * 1.4826 * MAD        of the recent changes without jumps
    median + 0.25                            so that small noise on a smooth curve is no jump

MAD is the median distance from the median. 1.4826 * MAD estimates the standard deviation, and up to
half of the values may be outliers (F. R. Hampel, The Influence Curve and Its Role in Robust
Estimation, 1974). Changes are relative, because the noise of a loss grows and falls with the loss.
They are relative to the median if it is higher, so that the loss after a lucky loss near 0 is no
jump.

A jump is one strike. The peers merged since the last loss share it in proportion to their factors.
A loss without a jump removes `CLEAN_MERGE` of a strike, shared in the same way. With `strikes`
strikes, a peer is put into quarantine, each time for twice as long, up to an hour. If more than
half of the peers in view would be in quarantine, this node's own training is probably at fault.
Then all peers are released, and the learned changes are forgotten.

The rule does not detect a peer that does harm slowly. Nor does it detect a peer whose harm lasts
until its next merge, because then the loss is high, but jumps no more. Nor does it detect a peer
that does harm in fewer than one of 11 merges (1 + 1/`CLEAN_MERGE`). The rule is dpwa's own.
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
    """The usual change of the loss, and the deviation, both relative to the loss level L."""

    change: float
    deviation: float


class LossChanges:
    """The recent losses, and their recent relative changes except jumps."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._changes: deque[float] = deque(maxlen=WINDOW)

    def change_to(self, loss: float) -> float | None:
        """Return the relative change to `loss`, `None` without a former loss, inf if not finite."""
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
        """Store `loss` and `change`. A loss that is not finite clears all stored losses."""
        if not math.isfinite(loss):
            self._losses.clear()
            return
        self._losses.append(loss)
        if change is not None:
            self._changes.append(change)


class Quarantine:
    """The quarantine of one node. Call `merged` after every merge, and `measured` with every loss.

    It is not thread-safe. The loss must have been computed with the parameters after the merges
    that were noted before.
    """

    def __init__(
        self, threshold: float = 4.0, strikes: float = 3.0, duration_s: float = 60.0
    ) -> None:
        """Set limits: deviations of a jump, strikes, and seconds of a peer's first quarantine."""
        self._threshold = threshold
        self._strikes_allowed = strikes
        self._duration_s = duration_s
        self._loss_changes = LossChanges()
        self._factors: dict[str, float] = {}  # of the peers merged since the last loss
        self._strikes: dict[str, float] = {}
        self._terms: dict[str, int] = {}  # how often each peer was put into quarantine
        self._until: dict[str, float] = {}

    def merged(self, peer: str, factor: float) -> None:
        """Note that a peer was merged with this factor. A factor of 0 is no merge."""
        if factor > 0.0:
            self._factors[peer] = self._factors.get(peer, 0.0) + factor

    def measured(self, loss: float | None, now: float, peers: int) -> str | None:
        """Use `loss` to judge the merges since the previous loss. Return a log message, or `None`.

        A loss of `None` was not measured, and the merges wait for the next loss. A loss that is not
        finite is a jump. The first loss cannot be compared, and neither can the first loss after
        one that was not finite. `peers` is the number of peers, including those in quarantine.
        """
        if loss is None:
            return None
        shares = _shares(self._factors)
        self._factors = {}
        change, expected = self._loss_changes.change_to(loss), self._loss_changes.expectation()
        is_outlier = change is not None and self._is_outlier(change, expected)
        # Without a merge, the change is the training's own, so it counts as usual for this node.
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
        # The exponent is bounded, because a float overflows at 2^1024.
        duration_s = min(LONGEST_S, self._duration_s * 2.0 ** min(terms, 30))
        self._until[peer] = now + duration_s
        return (
            f"{peer} is not merged for {duration_s:.0f} s: the loss jumped after its merges "
            f"({strikes:.1f} strikes, the last time {jump})"
        )

    def _release_all(self, convicts: list[str], peers: int, jump: str) -> str:
        self._loss_changes = LossChanges()
        for state in (self._strikes, self._terms, self._until):
            state.clear()
        return (
            f"the loss jumped after merges with {', '.join(convicts)} ({jump}). This node merges "
            f"all {peers} peers again. With more than half of the peers in quarantine, the "
            "training of this node may be at fault [DPWA-W046]"
        )


def _shares(factors: Mapping[str, float]) -> dict[str, float]:
    total = sum(factors.values())
    return {peer: factor / total for peer, factor in factors.items()}


def _jump_text(change: float, expected: Expectation | None) -> str:
    if expected is None or math.isinf(change):
        return "the loss was not finite"
    return (
        f"by {100 * change:.0f} % when {100 * expected.change:.0f} % "
        f"with a deviation of {100 * expected.deviation:.0f} % was expected"
    )
