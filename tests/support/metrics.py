"""All metrics of Prometheus, as a node tells them of which everything is known."""

from dpwa.node.report import (
    GossipReport,
    HistogramReport,
    MembershipReport,
    NodeReport,
    PaceReport,
)
from dpwa.observe.figures import MEMORY_PARTS
from dpwa.observe.prometheus import metrics_of


def all_metrics():
    histogram = HistogramReport((1.0,), (0, 0))
    report = NodeReport(
        loss=1.0,
        clock=1.0,
        refused={"forged": 0},
        memory=dict.fromkeys(MEMORY_PARTS, 0),
        membership=MembershipReport(),
        pace=PaceReport(out_of_sync_s=1.0),
        gossip=GossipReport(consensus_distance=1.0, waits=histogram, staleness=histogram),
    )
    return [*metrics_of(report, {"w2": (0, 0, 0)})]


def name_of(metric):
    """Its name on the page of Prometheus, without the endings of a histogram."""
    return metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")
