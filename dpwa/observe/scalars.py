"""The figures of a node as loggers of training loops take them: flat, by name."""

from __future__ import annotations

import math

from dpwa.observe.figures import INDEX, NAMES, figures_of
from dpwa.types import JsonObject

PREFIX = "dpwa/"
_SECONDS = ("train_s", "publish_s", "wait_s", "merge_s")


def scalars(report: JsonObject) -> dict[str, float]:
    """Return all figures that are known, each under `dpwa/` and its name.

    Beside those of `FIGURES` there are `dpwa/wait_share`, the share of the time so far that the
    training thread has waited for peers, and `dpwa/staleness`, by how many updates the snapshot
    that was merged last was behind (negative: ahead).

    Args:
        report: what `Node.report` returned.
    """
    values = figures_of(report)
    found = dict(zip(NAMES, values, strict=True))
    spent = sum(values[INDEX[part]] for part in _SECONDS)
    found["wait_share"] = found["wait_s"] / spent if spent else 0.0
    merged = [peer for peer in report["peers"] if peer["merges"]]
    if merged:
        found["staleness"] = min(merged, key=lambda peer: peer["merged_s"])["staleness"]
    return {PREFIX + name: value for name, value in found.items() if not math.isnan(value)}
