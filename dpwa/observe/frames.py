"""Reads run logs into pandas DataFrames, for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpwa.errors import from_extra
from dpwa.observe.figures import NAMES
from dpwa.observe.run_log_contents import Run
from dpwa.observe.run_log_reader import MAX_SAMPLES, OF_PEERS, read_run

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class RunFrames:
    """The logs of a run as pandas DataFrames.

    Attributes:
        nodes: a row for each node: `node`, `began`, `last` (times), `ended` (whether its log has an
            `end` line), `processes`, `samples` (number in its files), `best_loss` (lowest loss).
        samples: a row for each sample: `node`, `time`, `process` (0, or more after restarts), and
            all figures of docs/watch.md. Counters continue after a restart.
        events: a row for each event: `node` (which noticed it), `time`, `kind`, `about`, `text`.
        peers: a row for each node and each of its peers: `node`, `peer`, `merges`, `rounds`,
            `merged_bytes`, `received_bytes`, `sent_bytes`, `mapped_bytes`, `health` (at the end).
        remarks: descriptions of the parts that could not be read.
    """

    nodes: DataFrame
    samples: DataFrame
    events: DataFrame
    peers: DataFrame
    remarks: tuple[str, ...]


def load(folder: str | Path, run: int | None = None, most_samples: int = MAX_SAMPLES) -> RunFrames:
    """Read a run directory into pandas DataFrames.

    Args:
        folder: the folder into which nodes have written with `run_log`.
        run: number of the run, from 1, if the folder has several. `None`: the newest.
        most_samples: maximum number of samples of each node. If there are more, the samples are
            thinned, evenly over time.

    Raises:
        UserError: pandas is missing, the folder cannot be read, or has no run logs that this
            version can read.
    """
    with from_extra("notebook", "dpwa.observe.load needs pandas [DPWA-E286]"):
        import pandas as pd
    read = read_run(folder, run, most_samples=most_samples)
    return RunFrames(
        nodes=_frame(pd, _nodes(read), "began", "last"),
        samples=_samples(pd, read),
        events=_frame(pd, _events(read), "time"),
        peers=_frame(pd, _peers(read)),
        remarks=read.remarks,
    )


def _frame(pd: Any, columns: dict[str, list[Any]], *times: str) -> DataFrame:
    frame = pd.DataFrame(columns)
    for name in times:
        frame[name] = pd.to_datetime(frame[name], unit="s", utc=True)
    return frame


def _nodes(run: Run) -> dict[str, list[Any]]:
    logs = list(run.nodes.values())
    return {
        "node": [log.name for log in logs],
        "began": [log.began for log in logs],
        "last": [log.last for log in logs],
        "ended": [log.ended for log in logs],
        "processes": [len(log.processes) for log in logs],
        "samples": [log.sample_count for log in logs],
        "best_loss": [log.best.loss if log.best else float("nan") for log in logs],
    }


def _samples(pd: Any, run: Run) -> DataFrame:
    frames = [
        pd.DataFrame(
            {
                "node": log.name,
                "time": pd.to_datetime(log.times, unit="s", utc=True),
                "process": log.process,
                **{name: log.figure(name) for name in NAMES},
            }
        )
        for log in run.nodes.values()
    ]
    return pd.concat(frames, ignore_index=True)


def _events(run: Run) -> dict[str, list[Any]]:
    events = [event for log in run.nodes.values() for event in log.events]
    events.sort(key=lambda event: event.time)
    return {
        name: [getattr(event, name) for event in events]
        for name in ("node", "time", "kind", "about", "text")
    }


def _peers(run: Run) -> dict[str, list[Any]]:
    pairs = [
        (node, peer, exchanged)
        for node, log in run.nodes.items()
        for peer, exchanged in log.exchanged.items()
    ]
    counts = [*OF_PEERS.values(), "health"]
    return {
        "node": [node for node, _, _ in pairs],
        "peer": [peer for _, peer, _ in pairs],
        **{name: [getattr(e, name) for _, _, e in pairs] for name in counts},
    }
