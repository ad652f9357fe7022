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
from itertools import groupby
from typing import Any

from dpwa.config import Config, load_config
from dpwa.config.methods import KINDS, methods_in_use
from dpwa.config.schema import OF_REAL_RUNS
from dpwa.sim.calibration.observed import ObservedRun
from dpwa.sim.scenario import node_name

BITS_PER_MB = 8e6 / 1e6  # megabits in a megabyte
COUNTED_BY = {"answer_s": "fetches", "stream_s": "streams"}  # seconds that are added up
FAR_ABOVE = 10.0  # times `max_upload_mbps`, where that alone may be what streams take


@dataclass(frozen=True)
class FittedLinks:
    """The links of all nodes."""

    latency_ms: float  # from one node to another, one way
    mbps: float  # megabits per second that a node sends, and receives


@dataclass(frozen=True)
class Fit:
    """Parameters of a scenario."""

    steps_ms: tuple[float, ...]  # of each node, in the order of the observed ones
    jitter: float  # sigma of the steps of one node
    publish_ms_per_mb: float  # of a node's own work
    merge_ms_per_mb: float
    model_mb: float | None  # megabytes of a snapshot; `None`: nothing was merged, so nobody knows
    links: FittedLinks | None  # `None`: nothing was streamed


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
    """Return the least and the most of `mean_s` that a node had."""
    counted_by = COUNTED_BY[figure]
    means = [n.grown[figure] / n.grown[counted_by] for n in run.nodes if n.grown[counted_by]]
    return (min(means), max(means)) if means else None


LEAST_SPREAD_S = 0.5  # of starts: less is no matter
DIGITS = 4  # of what is fitted
FILE = "file"  # the topology, whose edges have names of nodes, and the key of its options
# Of the machine, or of the simulation.
_NOT_OF_SCENARIOS = {
    *(*OF_REAL_RUNS, "nodes", "seed", "transport", "log_level", "options", "links", FILE),
}

Settings = dict[str, Any]


def scenario_of(run: ObservedRun, fit: Fit) -> Settings:
    """Return a scenario, as plain values."""
    found: Settings = {"nodes": len(run.nodes), "seconds": rounded(run.seconds), "detail": "nodes"}
    if run.is_open:
        found["membership"] = "open"
    if fit.model_mb is not None:
        found["model_mb"] = rounded(fit.model_mb)
    found["compute"] = {
        "steps_ms": [rounded(step_ms) for step_ms in fit.steps_ms],
        "jitter": rounded(fit.jitter, 2),
    }
    found["costs"] = {
        "publish_ms_per_mb": rounded(fit.publish_ms_per_mb, 3),
        "merge_ms_per_mb": rounded(fit.merge_ms_per_mb, 3),
    }
    network = _network(run, fit)
    if network:
        found["network"] = network
    if run.start_spread_s >= LEAST_SPREAD_S:
        found["churn"] = {"start_spread_s": rounded(run.start_spread_s, 2)}
    return found | changed_settings(run)


def _network(run: ObservedRun, fit: Fit) -> Settings:
    found: Settings = {}
    if fit.links is not None:
        mbps, latency_ms = rounded(fit.links.mbps), rounded(fit.links.latency_ms, 3)
        found = {"latency_ms": latency_ms, "upload_mbps": mbps, "download_mbps": mbps}
    groups = [(name, len(list(nodes))) for name, nodes in groupby(n.group for n in run.nodes)]
    if len(groups) > 1 and all(name for name, _ in groups):
        found["sites"] = [{"name": name, "share": float(count)} for name, count in groups]
        if fit.links is not None:
            found["between_sites_latency_ms"] = rounded(fit.links.latency_ms, 3)
    return found


def changed_settings(run: ObservedRun) -> Settings:
    """Return the settings of a run that differ from the defaults, with options of methods.

    Raises ConfigError if there are some that this dpwa does not know, such as of a plugin.
    """
    told = {
        key: value
        for key, value in run.settings.items()
        if key not in _NOT_OF_SCENARIOS and (key, value) != ("topology", FILE)
    }
    nodes = [
        {"name": node_name(index), "host": "10.0.0.1", "port": 7000 + index}
        for index in range(len(run.nodes))
    ]
    config = load_config({"nodes": nodes, **told})
    found = {
        name: told[name]
        for name, field in Config.model_fields.items()
        if name in told and getattr(config, name) != field.get_default(call_default_factory=True)
    }
    options = {n: config.options_of(n).model_dump(mode="json") for n in dict(config.options)}
    return found | options


def untold_options(run: ObservedRun) -> list[str]:
    """Return the methods of a run, once they are registered, whose options its logs do not tell."""
    used = methods_in_use({kind.setting: run.settings.get(kind.setting) for kind in KINDS})
    return [name for name in used if name not in run.settings and name != FILE]


def rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
