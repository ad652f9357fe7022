"""Networks in simulated time that lose, repeat, delay and reorder messages."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count


@dataclass
class LossyNetwork:
    """Delivers in the order of arrival; every message and every copy has a delay of its own."""

    rng: object
    loss: float = 0.0  # probability that a message is lost
    duplication: float = 0.0  # probability that another copy is sent (and so on)
    delay_s: float = 0.0  # mean; the delays are exponential, cut at `MOST_DELAY_S`
    is_cut: bool = False  # nothing gets through at all
    under_way: list = field(default_factory=list)
    numbers: count = field(default_factory=count)

    MOST_DELAY_S = 20.0

    def send(self, now, receiver, message):
        while True:
            if not self.is_cut and self.rng.random() >= self.loss:
                delay = self.rng.expovariate(1 / self.delay_s) if self.delay_s else 0.0
                at = now + min(delay, self.MOST_DELAY_S)
                heapq.heappush(self.under_way, (at, next(self.numbers), receiver, message))
            if self.rng.random() >= self.duplication:
                return

    def mend(self):
        self.loss = self.duplication = self.delay_s = 0.0
        self.is_cut = False

    def due(self, now):
        """What arrives until now, and what is sent meanwhile and arrives until now."""
        while self.under_way and self.under_way[0][0] <= now:
            at, _, receiver, message = heapq.heappop(self.under_way)
            yield at, receiver, message


@dataclass
class HostileNetwork:
    """Keeps every message: whoever uses it says which one arrives, when, and how often."""

    sent: list = field(default_factory=list)
    fresh: list = field(default_factory=list)  # those that have not arrived yet

    def send(self, now, receiver, message):
        self.sent.append((receiver, message))
        self.fresh.append((receiver, message))
