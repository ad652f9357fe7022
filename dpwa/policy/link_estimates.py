"""Estimates of a link's latency and rate, and their effect on the choice of peers.

From each fetch that streams, a node learns two numbers about the link to that peer:

    latency    seconds from the request to the header that answers it: the round trip,
               and the time that the peer needs to find its snapshot
    rate       payload bytes after that header, divided by their seconds

Each is smoothed with the gain 1/8 of TCP's round-trip time (RFC 6298, section 2). The rate is the
quotient of the smoothed bytes and the smoothed seconds, so a long stream counts for more. Streams
below `FEWEST_BYTES` show no rate, because they fit into the buffers of the network.

A fetch is expected to take `latency + bytes / rate`, with the usual bytes of this peer's streams.
If this time is known, a peer that takes longer than

    T = min(max(2 * median, FLOOR_S), budget)

is a candidate with probability `max(T / expected, MIN_SHARE)`. All other peers are always
candidates. So a slow peer costs a node, probability times duration, no more than a peer that takes
T. Peers within a factor of two of each other are picked equally often, as the laws of gossip
require. Every peer is still picked from time to time, so that models mix everywhere, and the node
notices a link that has become fast. Below `FLOOR_S`, no peer is slow, because a loaded machine may
not run a process for so long. The median is the lower one, so that one of two peers can be slow.
The rule is dpwa's own.

>>> link = LinkEstimate().answered(0.2).streamed(1_000_000, 0.4)
>>> link.bytes_per_s
2500000.0
>>> round(link.expected_s, 3)
0.6
>>> shares({"near": 0.1, "far": 0.6}, budget_s=2.5)
{'far': 0.333...}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median_low

from dpwa.policy.deadlines import FLOOR_S

GAIN = 1 / 8
FEWEST_BYTES = 64 * 1024
FAR_ABOVE = 2.0  # a slow peer takes more than this many times the median
MIN_SHARE = 1 / 16


@dataclass(frozen=True)
class LinkEstimate:
    """Smoothed latency and rate of the link to one peer. Every change returns a new value."""

    latency_s: float | None = None  # `None` before the first answer
    stream_bytes: float = 0.0  # smoothed bytes of a stream; 0 before the first stream
    stream_s: float = 0.0

    def answered(self, latency_s: float) -> LinkEstimate:
        if self.latency_s is None:
            return replace(self, latency_s=latency_s)
        return replace(self, latency_s=_smoothed(self.latency_s, latency_s))

    def streamed(self, nbytes: int, elapsed_s: float) -> LinkEstimate:
        if nbytes < FEWEST_BYTES or elapsed_s <= 0:
            return self
        if not self.stream_bytes:
            return replace(self, stream_bytes=float(nbytes), stream_s=elapsed_s)
        return replace(
            self,
            stream_bytes=_smoothed(self.stream_bytes, nbytes),
            stream_s=_smoothed(self.stream_s, elapsed_s),
        )

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes that arrive per second. `None` before the first stream that is long enough."""
        return self.stream_bytes / self.stream_s if self.stream_s else None

    @property
    def expected_s(self) -> float | None:
        """Expected seconds of a fetch. `None` before the first answer."""
        return None if self.latency_s is None else self.latency_s + self.stream_s


def shares(expected_s: Mapping[str, float], budget_s: float) -> dict[str, float]:
    """Return, for each slow peer, the probability that the next fetch may go to it."""
    if not expected_s:
        return {}
    usual_s = max(FAR_ABOVE * median_low(expected_s.values()), FLOOR_S)
    longest_s = min(usual_s, budget_s)
    return {
        peer: max(longest_s / seconds, MIN_SHARE)
        for peer, seconds in expected_s.items()
        if seconds > longest_s
    }


def _smoothed(mean: float, value: float) -> float:
    return mean + GAIN * (value - mean)
