"""`dpwa status`: ask every node of a configuration how it is."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import typer

from dpwa.cli import exit_codes
from dpwa.cli.asking import AsOption, JsonOption, RunOption, TimeoutOption

if TYPE_CHECKING:
    from rich.table import Table

    from dpwa.config import Config
    from dpwa.node.query import StatusAnswer
    from dpwa.types import JsonObject

LEAST_WIDTH = 80
# What a node keeps in memory; what it maps is counted where it belongs, at its peer.
MEMORY_PARTS = ("slot_bytes", "lost_bytes", "receive_bytes", "held_bytes", "served_held_bytes")


def status(
    config: RunOption,
    timeout_ms: TimeoutOption = 2000,
    as_name: AsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask every node of a configuration for its clock, loss, scores, traffic and memory.

    With `join`, all members that the nodes know are asked as well. The more fetches from a peer
    succeed, the higher its score, up to 1000, and the more often it is asked. The version counts
    what a node has published. --json tells much more.

    Exits with 3 when a node cannot be reached.
    """
    from dpwa.config import load_config
    from dpwa.node.query import asking_keyring, query_cluster

    loaded = load_config(config)
    answers = query_cluster(loaded, timeout_ms / 1000, asking_keyring(loaded, as_name))
    if as_json:
        typer.echo(json.dumps({"nodes": [_row(name, a) for name, a in answers.items()]}))
    else:
        _show(answers, tells_leader=_follows_leaders(loaded))
    if any(answer.report is None for answer in answers.values()):
        raise typer.Exit(exit_codes.UNREACHABLE)


def _follows_leaders(config: Config) -> bool:
    """Tell whether leaders matter; elsewhere each node knows of a few losses at most."""
    from dpwa.algorithms import algorithm
    from dpwa.policy.interpolation import interpolation

    asks_leader = interpolation(config.interpolation).asks_leader
    return algorithm(config.algorithm).follows_leaders or asks_leader


def _row(name: str, answer: StatusAnswer) -> JsonObject:
    if answer.report is None:
        return {"name": name, "reachable": False, "problem": answer.problem}
    return {**answer.report, "name": name, "reachable": True}


def _show(answers: Mapping[str, StatusAnswer], *, tells_leader: bool) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.width = max(console.width, LEAST_WIDTH)  # the terminal wraps better than a table does
    reports = {name: a.report for name, a in answers.items() if a.report is not None}
    if reports:
        console.print(_table(reports))
    in_common = _in_common(reports.values(), tells_leader=tells_leader)
    if in_common:
        console.print(in_common, markup=False, soft_wrap=True)
    for name, answer in answers.items():
        if answer.report is None:
            console.print(f"{name}: {answer.problem}", markup=False, soft_wrap=True)


def _in_common(reports: Collection[JsonObject], *, tells_leader: bool) -> str:
    """Say what the nodes run, and whom they follow as the leader; they should agree."""
    from dpwa.wire.messages import printable

    news = [report.get("news") for report in reports]
    leaders = [item.get("leader") for item in news if isinstance(item, dict)]
    algorithms = [report.get("algorithm") for report in reports]
    parts = []
    for title, values in (("algorithm", algorithms), ("leader", leaders if tells_leader else [])):
        found = dict.fromkeys(str(value) for value in values if value is not None)
        if found:
            parts.append(f"{title} {printable(', '.join(found))}")
    return "; ".join(parts)


def _table(reports: Mapping[str, JsonObject]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from dpwa.wire.messages import printable

    table = Table(box=None, pad_edge=False, collapse_padding=True)  # to fit 80 columns
    table.add_column("node", overflow="fold")
    for heading in ("clock", "loss", "version", "merges", "sent", "received", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("peers (score)", overflow="fold")
    for name, report in reports.items():
        cells = (name, *_cells(report))
        table.add_row(*(Text(printable(cell)) for cell in cells))  # no markup, no colour
    return table


def _cells(report: JsonObject) -> list[str]:
    """Turn a report into cells; it is foreign, so nothing in it is sure to be there."""
    loss = "diverged" if report.get("diverged") else _number(report.get("loss"), "-")
    peers = report.get("peers")
    return [
        _number(report.get("clock")),
        loss,
        str(report.get("version", "?")),
        str(report.get("merges", "?")),
        _size(report.get("bytes_sent")),
        _size(report.get("bytes_received")),
        _size(_memory(report.get("memory"))),
        ", ".join(_peer(peer) for peer in peers) if isinstance(peers, list) else "?",
    ]


def _memory(parts: object) -> int | None:
    """Add up what a node keeps in memory, beside its model; `None` when it does not say."""
    if not isinstance(parts, dict):
        return None
    sizes = [size for name in MEMORY_PARTS if isinstance(size := parts.get(name), int)]
    return sum(sizes) if len(sizes) == len(MEMORY_PARTS) else None


def _number(value: object, otherwise: str = "?") -> str:
    if not isinstance(value, (int, float)):
        return otherwise
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _size(value: object) -> str:
    if not isinstance(value, int):
        return "?"
    size = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _peer(peer: object) -> str:
    if not isinstance(peer, dict):
        return "?"
    health = peer.get("health", "?")
    trouble = "" if health in ("alive", "unknown") else f", {str(health).replace('_', ' ')}"
    return f"{peer.get('name', '?')} ({peer.get('score', '?')}{trouble})"
