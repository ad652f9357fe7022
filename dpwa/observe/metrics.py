"""Metrics: the one list of what monitoring gets of a node, and how it is read from a report.

Names and labels are as Prometheus has them; docs/metrics.md has a table.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpwa.node.report import HistogramReport, NodeReport, PeerReport
from dpwa.observe.figures import FIGURES, INDEX, MEMORY_PARTS, figures_of
from dpwa.policy.health import Health
from dpwa.policy.members.states import MemberStatus

if TYPE_CHECKING:
    from dpwa.node.node import Node

MOST_PEERS = 64  # with a name of their own
OTHER = "other"  # all others, added up

_ACTIVITIES = ("train", "publish", "wait", "merge")
_PEER_COUNTERS = ("bytes_received", "bytes_sent", "merges")

Labels = tuple[str, ...]  # values of labels


@dataclass(frozen=True)
class Reading:
    """What a node said of itself at one moment.

    Attributes:
        report: of the node.
        figures: of the report.
        peers: what was counted of each peer, in the order of `_PEER_COUNTERS`.
    """

    report: NodeReport
    figures: tuple[float, ...]
    peers: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: without prefix, unit and suffix.
        kind: as Prometheus has it.
        unit: base unit, in words; empty for what has none.
        text: what it is.
        read: finds its values, and those of their labels.
        labels: names of the labels.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str
    read: Callable[[Reading], Iterable[tuple[Labels, float | None]]]
    labels: Labels = ()

    @property
    def family(self) -> str:
        """Its name in Prometheus, to which a counter adds `_total`."""
        return _family(self.name, self.unit)

    def points(self, reading: Reading) -> list[tuple[Labels, float]]:
        """Return the values that are known, each with the values of its labels."""
        return [
            (labels, value)
            for labels, value in self.read(reading)
            if value is not None and not math.isnan(value)
        ]


@dataclass(frozen=True)
class HistogramMetric:
    """A metric that counts values by upper bounds.

    Attributes:
        name, unit, text: as of a `Metric`.
        key: of the histogram, among what the report tells of the gossip.
    """

    name: str
    unit: str
    text: str
    key: str

    @property
    def family(self) -> str:
        """Its name in Prometheus."""
        return _family(self.name, self.unit)

    def histogram(self, reading: Reading) -> HistogramReport:
        """Return what was counted."""
        found: HistogramReport = getattr(reading.report.gossip, self.key)
        return found


def _family(name: str, unit: str) -> str:
    return f"dpwa_{name}_{unit}" if unit else f"dpwa_{name}"


def _figure(figure: str, unit: str = "", name: str = "") -> Metric:
    """Return the metric that is one of the figures of a node."""
    index = INDEX[figure]
    found = FIGURES[index]
    return Metric(
        name or figure, found.kind, unit, found.text, lambda reading: [((), reading.figures[index])]
    )


def _activity_seconds(reading: Reading) -> Iterator[tuple[Labels, float]]:
    for activity in _ACTIVITIES:
        yield (activity,), reading.figures[INDEX[f"{activity}_s"]]


def _of_peers(counter: str) -> Callable[[Reading], Iterator[tuple[Labels, float]]]:
    index = _PEER_COUNTERS.index(counter)

    def read(reading: Reading) -> Iterator[tuple[Labels, float]]:
        for name, counts in reading.peers.items():
            yield (name,), counts[index]

    return read


def _peers_by_state(reading: Reading) -> Iterator[tuple[Labels, float]]:
    counts = Counter(peer.health for peer in reading.report.peers)
    for health in Health:
        yield (health.value,), counts[health.value]


def _members_by_status(reading: Reading) -> Iterator[tuple[Labels, float]]:
    if reading.report.membership is not None:
        counts = Counter(member.status for member in reading.report.members)
        for status in MemberStatus:
            yield (status.name.lower(),), counts[status.name.lower()]


def _quarantined(reading: Reading) -> Iterator[tuple[Labels, float]]:
    yield (), sum(peer.quarantined for peer in reading.report.peers)


def _refused(reading: Reading) -> Iterator[tuple[Labels, float]]:
    for reason, count in reading.report.refusals.items():
        yield (reason,), count


def _checkpoints(reading: Reading) -> Iterator[tuple[Labels, float]]:
    yield (), reading.report.checkpoints.get("written", 0)


def _memory(reading: Reading) -> Iterator[tuple[Labels, float]]:
    for part in MEMORY_PARTS:
        yield (part.removesuffix("_bytes"),), reading.report.memory[part]


def _node_info(reading: Reading) -> Iterator[tuple[Labels, float]]:
    report = reading.report
    yield (report.name, str(report.algorithm), str(report.topology), report.group), 1


def _build_info(reading: Reading) -> Iterator[tuple[Labels, float]]:
    torch = sys.modules.get("torch")
    version = "" if torch is None else str(torch.__version__)
    yield (reading.report.dpwa, str(reading.report.protocol), version), 1


METRICS = (
    _figure("steps"),
    _figure("merges"),
    Metric(
        "activity",
        "counter",
        "seconds",
        "seconds of the training thread, by what it did",
        _activity_seconds,
        ("activity",),
    ),
    _figure("loss"),
    _figure("clock", "updates"),
    _figure("version", name="snapshot_version"),
    _figure("consensus_distance"),
    Metric(
        "received",
        "counter",
        "bytes",
        "bytes of payload received of each peer; what is mapped is not",
        _of_peers("bytes_received"),
        ("peer",),
    ),
    Metric(
        "sent",
        "counter",
        "bytes",
        "bytes of snapshots sent to each peer; what peers map is not sent",
        _of_peers("bytes_sent"),
        ("peer",),
    ),
    _figure("merged_bytes", "bytes", "merged"),
    Metric(
        "peer_merges",
        "counter",
        "",
        "snapshots of each peer that were merged",
        _of_peers("merges"),
        ("peer",),
    ),
    Metric(
        "peers", "gauge", "", "peers in view, by what is known of them", _peers_by_state, ("state",)
    ),
    Metric("quarantined_peers", "gauge", "", "peers that are left alone for now", _quarantined),
    Metric(
        "members",
        "gauge",
        "",
        "with join: members, this node among them",
        _members_by_status,
        ("status",),
    ),
    Metric(
        "refused",
        "counter",
        "",
        "messages and connections that were refused, by reason",
        _refused,
        ("reason",),
    ),
    _figure("skipped", name="skipped_snapshots"),
    Metric("checkpoints", "counter", "", "checkpoints that were written", _checkpoints),
    Metric(
        "memory",
        "gauge",
        "bytes",
        "memory that snapshots and codecs take, by use",
        _memory,
        ("use",),
    ),
    Metric(
        "node_info",
        "gauge",
        "",
        "always 1: which node this is",
        _node_info,
        ("node", "algorithm", "topology", "group"),
    ),
    Metric(
        "build_info",
        "gauge",
        "",
        "always 1: what it runs",
        _build_info,
        ("version", "protocol", "torch"),
    ),
)
HISTOGRAMS = (
    HistogramMetric("wait", "seconds", "how long updates waited for a snapshot", "waits"),
    HistogramMetric(
        "staleness",
        "updates",
        "how many updates merged snapshots were behind; those that were ahead count as 0",
        "staleness",
    ),
)


class PeerCounters:
    """What was counted of each peer, of which only so many have a name; for any thread.

    A peer has a name of its own if there was room for one when it came into view, and keeps it as
    long as it is there. What all others are counted for is added up, and never falls.

    Args:
        most: names at once.
    """

    def __init__(self, most: int = MOST_PEERS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._named: set[str] = set()
        self._unnamed: dict[str, tuple[int, ...]] = {}  # what was counted of them before
        self._others: tuple[int, ...] = ()

    def take(self, peers: Iterable[PeerReport]) -> dict[str, tuple[int, ...]]:
        """Return the counters of each peer in view, and of all without a name under `OTHER`."""
        found = {peer.name: tuple(getattr(peer, key) for key in _PEER_COUNTERS) for peer in peers}
        with self._lock:
            before, self._unnamed = self._unnamed, {}
            self._named &= found.keys()
            for name in found:
                if name not in before and name != OTHER and len(self._named) < self._most:
                    self._named.add(name)
            for name in found.keys() - self._named:
                self._unnamed[name] = found[name]
                self._add(found[name], before.get(name))
            rows = {name: found[name] for name in found if name in self._named}
            return {**rows, OTHER: self._others} if self._others else rows

    def _add(self, now: tuple[int, ...], before: tuple[int, ...] | None) -> None:
        was = before or (0,) * len(now)
        # Who was out of view for a moment has begun again at 0.
        grown = [new - old if new >= old else new for new, old in zip(now, was, strict=True)]
        others = self._others or (0,) * len(now)
        self._others = tuple(map(sum, zip(others, grown, strict=True)))


class NodeMetrics:
    """Reads the metrics of one node; it does not keep the node alive.

    Args:
        node: which one.
    """

    def __init__(self, node: Node) -> None:
        self._condition = node.weak_condition
        self._peers = PeerCounters()

    def read(self) -> Reading | None:
        """Read them now; `None` once the node is gone."""
        report = self._condition()
        if report is None:
            return None
        return Reading(report, figures_of(report), self._peers.take(report.peers))
