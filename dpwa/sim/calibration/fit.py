"""What is fitted to the logs of a real run: what computing takes, and how the links are.

    step of node i    mean seconds of training in a step, without gossip: t_i. The simulator draws
                      steps from a log-normal distribution, whose median is t_i exp(-sigma^2 / 2)
    jitter            sigma^2 = ln(1 + v), v the variance of steps by the square of their mean
    publish, merge    seconds of it, by megabytes that were published or merged
    latency           half of the seconds from a request to its answer
    bandwidth         payload by the seconds in which it was streamed

Streams share links, so the last two are only where `refine` begins. Where nodes keep to
`max_upload_mbps`, it begins with links that are much faster, and makes them slower if need be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpwa.sim.calibration.observed import ObservedRun

BITS_PER_MB = 8e6 / 1e6  # megabits in a megabyte
COUNTED_BY = {"answer_s": "fetches", "stream_s": "streams"}  # seconds that are added up
FAR_ABOVE = 10.0  # times `max_upload_mbps`, where that alone may be what streams take


@dataclass(frozen=True)
class FittedLinks:
    """The links of all nodes.

    Attributes:
        latency_ms: from one node to another, one way.
        mbps: megabits per second that a node sends, and receives.
    """

    latency_ms: float
    mbps: float


@dataclass(frozen=True)
class Fit:
    """Parameters of a scenario.

    Attributes:
        steps_ms: of each node, in the order of the observed ones.
        jitter: sigma of the steps of one node.
        publish_ms_per_mb, merge_ms_per_mb: of a node's own work.
        model_mb: megabytes of a snapshot; `None`: nothing was merged, so nobody knows.
        links: `None`: nothing was streamed.
    """

    steps_ms: tuple[float, ...]
    jitter: float
    publish_ms_per_mb: float
    merge_ms_per_mb: float
    model_mb: float | None
    links: FittedLinks | None


def fit(run: ObservedRun) -> Fit:
    """Return the parameters that the figures of a run say at once."""
    variance = sum(n.grown["steps"] * n.jitter_s2 / n.step_s**2 for n in run.nodes)
    jitter = math.sqrt(math.log1p(variance / run.total("steps")))
    median_of_mean = math.exp(-(jitter**2) / 2.0)
    megabytes = _model_mb(run)
    published_mb = run.total("steps") * (megabytes or 0.0)
    merged_mb = run.total("merges") * (megabytes or 0.0)
    return Fit(
        steps_ms=tuple(1000.0 * node.step_s * median_of_mean for node in run.nodes),
        jitter=jitter,
        publish_ms_per_mb=1000.0 * run.total("publish_s") / published_mb if published_mb else 0.0,
        merge_ms_per_mb=1000.0 * run.total("merge_s") / merged_mb if merged_mb else 0.0,
        model_mb=megabytes,
        links=_links(run),
    )


def _model_mb(run: ObservedRun) -> float | None:
    """Return the size of a snapshot, of which a merge takes a `fraction`."""
    if not run.total("merges"):
        return None
    fraction = float(run.settings.get("fraction", 1.0))
    shards = math.ceil(1.0 / fraction)
    return shards * run.total("merged_bytes") / run.total("merges") / 1e6


def _links(run: ObservedRun) -> FittedLinks | None:
    if not run.total("streams") or not run.total("stream_s") or not run.total("received_bytes"):
        return None
    latency_s = (mean_s(run, "answer_s") or 0.0) / 2.0
    megabytes = run.total("received_bytes") / 1e6
    mbps = BITS_PER_MB * megabytes / run.total("stream_s")
    limit = run.settings.get("max_upload_mbps")
    return FittedLinks(1000.0 * latency_s, mbps if limit is None else max(mbps, FAR_ABOVE * limit))


def mean_s(run: ObservedRun, figure: str) -> float | None:
    """Return the mean seconds of answers (`answer_s`) or streams (`stream_s`); `None`: no such."""
    count = run.total(COUNTED_BY[figure])
    return run.total(figure) / count if count else None


def between_nodes(run: ObservedRun, figure: str) -> tuple[float, float] | None:
    """Return the least and the most that such took a node in the mean, see `mean_s`."""
    counted_by = COUNTED_BY[figure]
    means = [n.grown[figure] / n.grown[counted_by] for n in run.nodes if n.grown[counted_by]]
    return (min(means), max(means)) if means else None
