"""PeerRecord: what a node knows of one peer."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from dpwa.data.peer_memory import PeerMemory
from dpwa.policy.beginners import can_have_grown
from dpwa.policy.deadlines import FetchTimes
from dpwa.policy.health import Health, Outcome
from dpwa.policy.link_estimates import LinkEstimate
from dpwa.types import JsonObject

MS_PER_S = 1e3
MBIT_PER_BYTE = 8e-6
_WELL = (Health.UNKNOWN, Health.ALIVE, Health.BEHIND)


@dataclass
class PeerRecord:
    """What is known of one peer; mutable, used under the lock of its table."""

    endpoint: str
    added: float
    health: Health = Health.UNKNOWN
    judged: float = -math.inf  # when a fetch last showed its health
    heard: float | None = None  # when anything last came of asking it; `None`: never
    spoke: float | None = None  # when it has last asked, which shows no way to it
    is_connected: bool = False
    memory: PeerMemory | None = None
    times: FetchTimes = field(default_factory=FetchTimes)
    link: LinkEstimate = field(default_factory=LinkEstimate)
    problem: str = ""  # why it is not connected
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    bytes_received: int = 0  # of payloads; what is mapped is not received
    bytes_sent: int = 0  # of snapshots
    silent_told: float = -math.inf  # when it was last said to be slow
    is_warned_of: bool = False  # until it is well again
    is_absent: bool = False  # as far as was seen when it was looked for
    was_let_go: bool = False  # the last connection, by this node
    was_asked_to_go: bool = False  # by the peer, which has too many connections
    clock: float = 0.0  # of its training, as it has told itself
    clock_told: float = -math.inf
    possible_clock: float = 0.0  # the last one that can have grown from that before
    possible_told: float = -math.inf

    def tells(self, clock: float, now: float) -> None:
        """Take note of what it says of its training clock."""
        self.clock, self.clock_told = clock, now
        if can_have_grown(self.possible_clock, clock, now - self.possible_told):
            self.possible_clock, self.possible_told = clock, now

    def begins_anew(self) -> None:
        """Forget its clock: it may be another process."""
        self.clock_told = self.possible_told = -math.inf

    @property
    def is_near(self) -> bool:
        """Whether there is a connection, which may stay."""
        return self.is_connected and not self.was_asked_to_go

    @property
    def expected_s(self) -> float | None:
        """What a fetch takes, `None` if that is not known; what can be mapped is not streamed."""
        return self.link.expected_s if self.memory is None else self.link.latency_s

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong with it, as far as is known."""
        return self.shown_health in _WELL

    @property
    def shown_health(self) -> Health:
        """Its health; a lost connection counts at once, even if nobody has asked it since."""
        is_lost = bool(self.problem) and not (self.heard is None and self.spoke is None)
        return Health.UNREACHABLE if is_lost and self.health in _WELL else self.health

    @property
    def place(self) -> str:
        """Where it was not found, in words; empty if it was."""
        if self.health is not Health.UNREACHABLE:
            return ""
        return self.problem or f"nothing answers at {self.endpoint}"

    def report(self, name: str, now: float) -> JsonObject:
        """Describe it in plain data; `heard_s` is how long ago it was last heard of."""
        return {
            "name": name,
            "endpoint": self.endpoint,
            "health": self.shown_health.value,
            "problem": self.problem,
            "heard_s": _ago_s(now, self.heard, self.spoke),
            "fetch_s": self.times.mean_s,
            "latency_ms": _times(self.link.latency_s, MS_PER_S),
            "bandwidth_mbps": _times(self.link.bytes_per_s, MBIT_PER_BYTE),
            "bytes_received": self.bytes_received,
            "bytes_sent": self.bytes_sent,
            "outcomes": {o.value: n for o, n in self.outcomes.items()},
        }


def _ago_s(now: float, *times: float | None) -> float | None:
    known = [time for time in times if time is not None]
    return round(now - max(known), 1) if known else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
