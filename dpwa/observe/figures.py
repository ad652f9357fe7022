"""The list of numbers (figures) that a node reports, for histories, run logs, metrics and views."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dpwa.node.report import NodeReport, PeerReport


@dataclass(frozen=True)
class FigureSpec:
    """One number that a node reports about itself.

    Attributes:
        name: name of the figure, with its unit at the end if it has a unit.
        kind: a `counter` only grows while a process lives. A `gauge` may change in any way.
        text: description of the figure.
    """

    name: str
    kind: Literal["counter", "gauge"]
    text: str


FIGURES = (
    FigureSpec("steps", "counter", "training steps (updates) since the process started"),
    FigureSpec("merges", "counter", "merges that changed something"),
    FigureSpec("rounds", "counter", "rounds of `together` in which the node averaged gradients"),
    FigureSpec("train_s", "counter", "seconds spent on everything except gossip"),
    FigureSpec("publish_s", "counter", "seconds spent on publishing snapshots"),
    FigureSpec(
        "wait_s",
        "counter",
        "seconds spent waiting for snapshots of peers, or for rounds of `together` with gradients "
        "on the CPU",
    ),
    FigureSpec("merge_s", "counter", "seconds spent on merging"),
    FigureSpec(
        "step_changes_s2",
        "counter",
        "sum of the squared differences in seconds between each step and the previous step",
    ),
    FigureSpec(
        "fetches",
        "counter",
        "requests for snapshots whose answer time was measured, without queued requests",
    ),
    FigureSpec(
        "answer_s", "counter", "sum of the seconds from each of the `fetches` to its answer"
    ),
    FigureSpec("streams", "counter", "streams of snapshots that were complete, or that timed out"),
    FigureSpec("stream_s", "counter", "sum of the seconds that the `streams` took"),
    FigureSpec(
        "sent_bytes",
        "counter",
        "bytes of snapshots, of values in collectives and of other payload sent to peers, "
        "without mapped bytes and answers to monitoring",
    ),
    FigureSpec(
        "received_bytes",
        "counter",
        "bytes of snapshots, of values in collectives and of other payload received from peers, "
        "without mapped bytes",
    ),
    FigureSpec(
        "merged_bytes",
        "counter",
        "bytes of peers' merged snapshots and of their values in collectives (also the "
        "gradients of `together`), mapped or received",
    ),
    FigureSpec(
        "mapped_bytes",
        "counter",
        "the part of `merged_bytes` that was read from the memory of peers on the same host",
    ),
    FigureSpec(
        "staleness_sum",
        "counter",
        "sum of the updates by which merged snapshots were behind. A snapshot that is ahead "
        "counts as 0",
    ),
    FigureSpec(
        "skipped", "counter", "snapshots that were not published, because readers held every slot"
    ),
    FigureSpec("refused", "counter", "refused messages and connections"),
    FigureSpec(
        "clock", "gauge", "training clock. An update adds 1, and a merge interpolates the clocks"
    ),
    FigureSpec("version", "gauge", "version of the newest published snapshot"),
    FigureSpec("loss", "gauge", "training loss. Infinite once the node has diverged"),
    FigureSpec(
        "consensus_distance",
        "gauge",
        "distance from the parameters of the last merged peer. 0 while in sync (`together`)",
    ),
    FigureSpec(
        "in_sync",
        "gauge",
        "number of nodes in sync, including this node (`together`). 0 if this node is out of sync",
    ),
    FigureSpec("live_peers", "gauge", "known peers that are considered alive"),
    FigureSpec("memory_bytes", "gauge", "memory of snapshots and codecs"),
)
NAMES = tuple(figure.name for figure in FIGURES)
INDEX = {name: index for index, name in enumerate(NAMES)}
COUNTERS = tuple(figure.name for figure in FIGURES if figure.kind == "counter")

# The figures that a node has of each peer.
OTHER_NAMES = ("clock", "version", "loss", "staleness")

# After this time, a new node may replace a node that is gone, because runs may have many names.
GONE_S = 60.0

MEMORY_PARTS = ("slot_bytes", "lost_bytes", "receive_bytes")


def figures_of(report: NodeReport) -> tuple[float, ...]:
    """Return the figures of a node, in the order of `FIGURES`. An unknown figure is NaN."""
    gossip, pace = report.gossip, report.pace
    values: dict[str, float | None] = {
        "steps": gossip.steps,
        "merges": report.merges,
        "rounds": None if pace is None else pace.rounds,
        "train_s": gossip.train_s,
        "publish_s": gossip.publish_s,
        "wait_s": gossip.wait_s,
        "merge_s": gossip.merge_s,
        "step_changes_s2": gossip.step_changes_s2,
        "fetches": gossip.fetches,
        "answer_s": gossip.answer_s,
        "streams": gossip.streams,
        "stream_s": gossip.stream_s,
        "sent_bytes": report.bytes_sent,
        "received_bytes": report.bytes_received,
        "merged_bytes": gossip.merged_bytes + gossip.taken_bytes,
        "mapped_bytes": gossip.mapped_bytes,
        "staleness_sum": gossip.staleness.sum,
        "skipped": report.rounds_skipped,
        "refused": sum(report.refusals.values()),
        "clock": report.clock,
        "version": report.version,
        "loss": math.inf if report.diverged else report.loss,
        "consensus_distance": report.consensus_distance,
        "in_sync": None if pace is None else pace.size,
        "live_peers": sum(peer.is_alive for peer in report.peers),
        "memory_bytes": sum(report.memory[part] for part in MEMORY_PARTS),
    }
    return _known(values[name] for name in NAMES)


def figures_of_peer(peer: PeerReport) -> tuple[float, ...]:
    """Return the figures of a peer in a node's report, ordered as `OTHER_NAMES`. Unknown: NaN."""
    return _known(getattr(peer, name) for name in OTHER_NAMES)


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)


PREFIX = "dpwa/"
_SECONDS = ("train_s", "publish_s", "wait_s", "merge_s")


def scalars(report: NodeReport) -> dict[str, float]:
    """Return all known figures. The key of a figure is `dpwa/` and its name.

    There are two more figures. `dpwa/wait_share` is the share of the time so far that the training
    thread has waited for peers. `dpwa/staleness` is the number of updates by which the last merged
    snapshot was behind. It is negative if the snapshot was ahead.
    """
    values = figures_of(report)
    found = dict(zip(NAMES, values, strict=True))
    spent = sum(values[INDEX[part]] for part in _SECONDS)
    found["wait_share"] = found["wait_s"] / spent if spent else 0.0
    merged = [(p.merged_s, p.staleness) for p in report.peers if p.staleness is not None]
    if merged:
        found["staleness"] = min(merged)[1]
    return {PREFIX + name: value for name, value in found.items() if not math.isnan(value)}
