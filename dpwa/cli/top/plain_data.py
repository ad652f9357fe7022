"""What `dpwa top --json` prints: all that is known of a run, without NaN and infinity."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from dpwa.observe.events import RunEvent
from dpwa.observe.rows import NodeRow
from dpwa.observe.run_view import RunView
from dpwa.types import JsonObject


def plain_data(view: RunView, rows: Iterable[NodeRow], events: Iterable[RunEvent]) -> JsonObject:
    """Return one JSON object; a number that is NaN or infinite is `None`.

    Args:
        view: of the run.
        rows: of its nodes.
        events: those that are told.
    """
    endpoints = {node.name: node.endpoint for node in view.nodes}
    found: JsonObject = _finite(
        {
            "time": view.time,
            "through": view.through,
            "nodes": [{**asdict(row), "endpoint": endpoints[row.name]} for row in rows],
            "events": [asdict(event) for event in events],
        }
    )
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
