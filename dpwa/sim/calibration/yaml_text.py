"""A calibrated scenario as a file that people read, and change."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from dpwa.sim.calibration.calibrate import Calibration

MOST_NAMES = 64

HEAD = """\
# A scenario for `dpwa sim`, fitted to a real run by `dpwa sim calibrate {folder}`.
# docs/simulator.md says how, and what it is good for.
"""
TASK = """\
# What is trained is not your model, but a task of the simulator: consensus, quadratic,
# factorisation or digits. With a target, such as {variance_ratio: 0.001} or {loss: 0.3},
# the simulation ends there, and tells when that was.
task: consensus
"""
_ABOUT = {
    "nodes": "as many as there were: {names}",
    "seconds": "as long as the run",
    "detail": "whole nodes, with every message",
    "model_mb": "megabytes of a snapshot",
    "compute": "steps in milliseconds of each node, in that order; jitter: sigma between steps",
    "costs": "what publishing and merging took, in milliseconds for each megabyte",
    "network": "between all nodes; waits that streams do not explain count as latency",
    "churn": "seconds from the first step of the first node to that of the last",
}
_SETTINGS = "# Settings of the run that are not the defaults.\n"


def yaml_text(calibration: Calibration, folder: str) -> str:
    """Return the file.

    Args:
        calibration: what it is made of.
        folder: of the run logs.
    """
    scenario = calibration.scenario
    parts = [HEAD.format(folder=folder), *map(_comment, calibration.remarks()), "\n"]
    parts += _own_keys(calibration, scenario)
    parts += ["\n", TASK]
    rest = {key: value for key, value in scenario.items() if key not in (*_ABOUT, "membership")}
    if rest:
        parts += ["\n", _SETTINGS, *(_line(key, value) for key, value in rest.items())]
    return "".join(parts)


def _own_keys(calibration: Calibration, scenario: dict[str, Any]) -> Iterator[str]:
    nodes = [node.name for node in calibration.run.nodes]
    more = ", ..." if len(nodes) > MOST_NAMES else ""
    for key, about in _ABOUT.items():
        if key in scenario:
            yield _comment(about.format(names=", ".join(nodes[:MOST_NAMES]) + more))
            yield _line(key, scenario[key])
    if "membership" in scenario:
        yield _line("membership", scenario["membership"])


def _comment(text: str) -> str:
    return textwrap.fill(text, 92, initial_indent="# ", subsequent_indent="# ") + "\n"


def _line(key: str, value: Any) -> str:
    text: str = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=1000, allow_unicode=True
    )
    flow = text.removesuffix("...\n").strip()
    return f"{key}: {flow}\n"
