"""What came out: the figures as one object for machines, as a table and a conclusion for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpwa.demo.progress import NARROW_COLUMNS
from dpwa.demo.records import History
from dpwa.types import StrictModel


class NodeResult(StrictModel):
    """How one node ended; accuracies are shares of the test set, 0 to 1."""

    name: str
    steps: int
    merges: int
    accuracy: float
    alone_accuracy: float


class DemoResult(StrictModel):
    """What `dpwa demo --json` prints."""

    nodes: tuple[NodeResult, ...]  # one entry per node that ended well
    mean_accuracy: float  # test accuracy with gossip
    mean_alone_accuracy: float  # test accuracy of the same training alone
    consensus_distance: float  # root mean square of the distances from the mean parameters
    seconds: float  # duration of the whole demo

    def gossip_won(self) -> bool:
        return self.mean_accuracy > self.mean_alone_accuracy


def load_weights(path: Path) -> NDArray[np.float64]:
    with np.load(path, allow_pickle=False) as arrays:
        return np.concatenate([arrays[name].ravel() for name in sorted(arrays)], dtype=np.float64)


def consensus_distance(vectors: Sequence[NDArray[np.float64]]) -> float:
    """Return sqrt(1/N * sum_i |x_i - mean|^2) of N parameter vectors of the same length."""
    stacked = np.stack(vectors)
    deviations = stacked - stacked.mean(axis=0)
    return float(np.sqrt(np.square(deviations).sum(axis=1).mean()))


def summarise(history: History, names: Sequence[str], out_dir: Path, seconds: float) -> DemoResult:
    """Return the result of the nodes that ended well, at least one."""
    nodes = tuple(_node_result(history, name) for name in names)
    return DemoResult(
        nodes=nodes,
        mean_accuracy=fmean(node.accuracy for node in nodes),
        mean_alone_accuracy=fmean(node.alone_accuracy for node in nodes),
        consensus_distance=consensus_distance(
            [load_weights(out_dir / f"{name}.npz") for name in names]
        ),
        seconds=round(seconds, 2),
    )


def conclusion(result: DemoResult) -> str:
    gain = result.mean_accuracy - result.mean_alone_accuracy
    figures = f"{result.mean_accuracy:.3f} with gossip, {result.mean_alone_accuracy:.3f} alone"
    if result.gossip_won():
        return f"Gossip won: mean test accuracy {figures} (+{gain:.3f})."
    return f"Gossip did not win: mean test accuracy {figures} ({gain:+.3f})."


def show_report(
    result: DemoResult, paths: Sequence[tuple[str, str]], *, is_result: bool = True
) -> None:
    """Print the table, the consensus distance, the files written, and the conclusion.

    `paths` are pairs of what a file is and where it lies. Without `is_result` all goes to standard
    error, beside JSON.
    """
    from rich.console import Console

    console = Console(stderr=not is_result, highlight=False)
    is_narrow = console.width < NARROW_COLUMNS
    console.print(_table(result, is_narrow=is_narrow))
    console.print(
        f"Consensus distance {result.consensus_distance:.2g} "
        "(root mean square distance from the mean parameters)",
        soft_wrap=True,
    )
    counted = "" if is_narrow else "; merges are those before"
    text = f"After its last step a node averaged with all others (finish){counted}."
    console.print(text, soft_wrap=True)
    for title, path in [*paths, ("Time", f"{result.seconds:.0f} s")]:
        console.print(f"{title:<16} {path}", markup=False, soft_wrap=True)
    style = "bold green" if result.gossip_won() else "bold red"
    console.print(conclusion(result), style=style, soft_wrap=True)


def print_json(result: DemoResult) -> None:
    sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    sys.stdout.flush()


def _node_result(history: History, name: str) -> NodeResult:
    end = history.of(name, "mixing")[-1]
    alone = history.of(name, "alone")[-1]
    return NodeResult(
        name=name,
        steps=end.step,
        merges=end.merges,
        accuracy=end.accuracy,
        alone_accuracy=alone.accuracy,
    )


def _table(result: DemoResult, *, is_narrow: bool) -> Any:
    from rich.table import Table

    name_width = max(len(node.name) for node in result.nodes)
    means = (f"{result.mean_accuracy:.3f}", f"{result.mean_alone_accuracy:.3f}")
    table = Table(title="Test accuracy of each node", title_justify="left", show_footer=True)
    table.add_column("node", footer="mean", no_wrap=True, min_width=name_width)
    table.add_column("steps", justify="right")
    if not is_narrow:
        table.add_column("merges", justify="right")
    table.add_column("gossip" if is_narrow else "with gossip", footer=means[0], justify="right")
    table.add_column("alone", footer=means[1], justify="right")
    for node in result.nodes:
        counts = (node.steps,) if is_narrow else (node.steps, node.merges)
        accuracies = (f"{node.accuracy:.3f}", f"{node.alone_accuracy:.3f}")
        table.add_row(node.name, *map(str, counts), *accuracies)
    return table
