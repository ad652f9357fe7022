"""Rate limits: a token bucket, a bucket that readers share fairly, and the serving budget.

A token bucket fills at `rate_per_s` up to `burst`. A sender removes one token for each unit that it
sends. Source: J. Turner, New Directions in Communications (or Which Way to the Information Age?),
IEEE Communications Magazine (1986); the meter of RFC 2697.

An amount larger than the burst passes when the bucket is full, and leaves a debt. So in any window
of t seconds, the amount that passes is at most

    rate_per_s * t + max(burst, largest amount)

>>> bucket = TokenBucket(rate_per_s=10.0, burst=20.0)
>>> bucket = bucket.taken(20.0, now=0.0)
>>> bucket.taken(5.0, now=0.4) is None
True

The serving budget is the share of a core that requests of peers may use.

The budget follows the generic cell rate algorithm. `due` is the time at which the next request
would be read if requests arrived evenly and used exactly `share` of the time. A request that has
used c seconds of processor time sets

    due = max(due, now) + c / share

The next request is too early by `due - now - burst / share` seconds, if that is positive. So in any
time t, requests use at most `share * t + burst`, plus the excess of the last request. Source: ITU-T
Recommendation I.371 (virtual scheduling), with seconds of processor time in place of cells.

>>> budget = ServingBudget(share=0.1, burst_s=0.05)
>>> budget.charge(0.05, now=0.0)
0.0
>>> round(budget.charge(0.01, now=0.0), 6)
0.1
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

_ROUNDING = 1e-9  # of sums of floats, so that a full bucket counts as full


@dataclass(frozen=True)
class TokenBucket:
    """The state of a token bucket. Every change returns a new value. A new bucket is full."""

    rate_per_s: float
    burst: float  # the maximum number of tokens
    missing: float = 0.0  # tokens that were missing at time `at`; more than `burst` is a debt
    at: float = -math.inf  # in seconds, on any clock that never goes backwards

    def taken(self, amount: float, now: float) -> TokenBucket | None:
        """Return the bucket without `amount` tokens, or `None` if the bucket has too few tokens."""
        come = (now - self.at) * self.rate_per_s if self.missing else 0.0
        missing = max(0.0, self.missing - come)
        # An amount above the burst needs a full bucket.
        if missing + min(amount, self.burst) - self.burst > _ROUNDING * self.burst:
            return None
        return replace(self, missing=missing + amount, at=now)

    def returned(self, amount: float) -> TokenBucket:
        return replace(self, missing=max(0.0, self.missing - amount))


class FairBucket:
    """A token bucket that several readers share fairly. It is not thread-safe.

    A claim is tagged with the virtual time at which it would be done, `V + amount`, where V is the
    tag of the last claim that passed. Of the waiting claims, the claim with the lowest tag passes
    first. So readers that always have data to send get equal numbers of tokens, and a claim waits
    for a bounded number of other claims. Source: S. J. Golestani, A Self-Clocked Fair Queueing
    Scheme for Broadband Applications (1994).

    A reader that does not claim again within `PATIENCE_S` is forgotten. Until then, its claim holds
    up the claims behind it.
    """

    PATIENCE_S = 0.25

    def __init__(self, bucket: TokenBucket) -> None:
        self._bucket = bucket
        self._waiting: dict[str, _WaitingReader] = {}
        self._virtual = 0.0

    def claim(self, reader: str, amount: float, now: float) -> bool:
        """Remove tokens for a reader. Return False if it must wait for its turn, or for tokens."""
        self._waiting = {
            r: claim for r, claim in self._waiting.items() if now - claim.asked <= self.PATIENCE_S
        }
        before = self._waiting.get(reader)
        start = self._virtual if before is None else before.start
        own = self._waiting[reader] = _WaitingReader(start, start + amount, now)
        if any(claim.tag < own.tag for claim in self._waiting.values()):
            return False
        bucket = self._bucket.taken(amount, now)
        if bucket is None:
            return False
        del self._waiting[reader]
        self._bucket, self._virtual = bucket, max(self._virtual, own.tag)
        return True

    def forget_reader(self, reader: str) -> None:
        """Drop the claim of a reader that has ended, so that no other reader waits for it."""
        self._waiting.pop(reader, None)

    def give_back(self, amount: float) -> None:
        self._bucket = self._bucket.returned(amount)


class _WaitingReader(NamedTuple):
    start: float
    tag: float
    asked: float


class ServingBudget:
    """The part of the serving budget that requests have used. Not thread-safe."""

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._tolerance_s = burst_s / share
        self._due = -math.inf

    def charge(self, cost_s: float, now: float) -> float:
        """Record a request's processor time. Return the seconds to wait before the next request."""
        self._due = max(self._due, now) + cost_s / self._share
        return max(0.0, self._due - now - self._tolerance_s)
