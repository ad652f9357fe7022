"""What simulated runs leave in a folder: samples, nodes, events and figures."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from dpwa.sim.samples import NodeFigures, Sample
from dpwa.sim.sweep import SimulatedRun
from dpwa.types import JsonObject

SAMPLES, NODES, EVENTS, SUMMARY = "samples.csv", "nodes.csv", "events.jsonl", "summary.json"


def run_as_object(run: SimulatedRun) -> JsonObject:
    """Return the figures of a run, and the settings by which it differs from others."""
    figures = run.figures.to_json() if run.figures else {"error": run.error}
    return {"settings": dict(run.planned.settings), **figures}


def write_results(runs: Sequence[SimulatedRun], document: JsonObject, folder: Path) -> list[Path]:
    """Write all but the pictures into a folder, which is made; return the files.

    In each of them `run` is the number of the run in the document, from 0.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ended = [(index, run.outcome) for index, run in enumerate(runs) if run.outcome]
    samples = ((index, sample) for index, outcome in ended for sample in outcome.samples)
    nodes = ((index, node) for index, outcome in ended for node in outcome.nodes)
    _write_table(folder / SAMPLES, [field.name for field in fields(Sample)], samples)
    _write_table(folder / NODES, [field.name for field in fields(NodeFigures)], nodes)
    with (folder / EVENTS).open("w", encoding="utf-8") as file:
        for index, outcome in ended:
            for time_s, text in outcome.events:
                file.write(json.dumps({"run": index, "time_s": time_s, "event": text}) + "\n")
    (folder / SUMMARY).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return [folder / name for name in (SAMPLES, NODES, EVENTS, SUMMARY)]


def _write_table(
    path: Path, columns: Sequence[str], rows: Iterable[tuple[int, Sample | NodeFigures]]
) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *columns])
        for index, row in rows:
            values = asdict(row)
            writer.writerow([index, *(values[column] for column in columns)])
