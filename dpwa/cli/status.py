"""`dpwa status` asks every node of a configuration for its status."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import exit_codes, screen
from dpwa.cli.query_options import AsOption, JsonOption, RunOption, TimeoutOption, run_of
from dpwa.policy.health import ABSENT, HAVE_ENDED, REFUSED
from dpwa.report.wording import number, size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dpwa.node.query import StatusAnswer
    from dpwa.node.report import NodeReport, PeerReport
    from dpwa.types import JsonObject

_NOT_THERE = tuple(health.value for health in ABSENT)  # nodes do not fetch from these
_ENDED = tuple(health.value for health in HAVE_ENDED)
_ABSENT = (*_NOT_THERE, "silent")
_REFUSED = tuple(health.value for health in REFUSED)


def status(
    config: RunOption = None,
    timeout_ms: TimeoutOption = 2000,
    as_name: AsOption = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="NAME",
            help="Ask only this node of the configuration, for example in a liveness probe.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the training clock, steps, loss, scores, traffic and memory of every node.

    If the run has `join`, the command also asks all members that the nodes know. A peer has a high
    score, up to 1000, if fetches from it succeed. Nodes fetch more often from a peer with a high
    score. If a peer does not answer, the table shows the time since its last message. The version
    is the number of snapshots that a node has published. Below the table are the algorithm and,
    under `together`, the nodes in sync. After that, the output lists the peers that a node refuses
    to merge, and the reasons. --json prints many more values.

    The exit code is 3 if a node cannot be reached, unless its peers report that it has finished or
    left.

    Examples:
        dpwa status
        dpwa status -c nodes.yaml
        dpwa status -c nodes.yaml --node w2 --timeout-ms 500
    """
    from dpwa.algorithms.base import follows_leaders
    from dpwa.config import load_config
    from dpwa.node.query import asking_keyring, query_cluster, query_status

    loaded = load_config(run_of(config))
    keyring = asking_keyring(loaded, as_name)
    if node is None:
        answers = query_cluster(loaded, timeout_ms / 1000, keyring)
    else:
        endpoint = loaded.node(node).connect_endpoint
        answers = query_status({node: endpoint}, timeout_ms / 1000, keyring=keyring)
    if as_json:
        typer.echo(json.dumps({"nodes": [_row(name, a) for name, a in answers.items()]}))
    else:
        console = screen.console()
        tells_leader = follows_leaders(loaded.algorithm, loaded.interpolation)
        console.print(_view(answers, console.width, tells_leader=tells_leader))
    if any(answer.report is None and not answer.has_ended for answer in answers.values()):
        raise typer.Exit(exit_codes.UNREACHABLE)


def _row(name: str, answer: StatusAnswer) -> JsonObject:
    if answer.report is None:
        return {"name": name, "reachable": False, "problem": answer.problem}
    return {**answer.told, "name": name, "reachable": True}


def _view(
    answers: Mapping[str, StatusAnswer], columns: int, *, tells_leader: bool
) -> RenderableType:
    from rich.console import Group

    from dpwa.node.query import between

    reports = {name: a.report for name, a in answers.items() if a.report is not None}
    parts: list[RenderableType] = [_table(reports, columns)] if reports else []
    in_common = _in_common(reports.values(), tells_leader=tells_leader)
    lines = [in_common] if in_common else []
    for name, answer in answers.items():
        if answer.report is None:
            lines.append(f"{name}: {answer.problem}{_heard_by_others(name, reports)}")
    lines += [finding.text for finding in between(reports, _REFUSED)]
    return Group(*parts, *map(screen.plain, lines))


def _in_common(reports: Collection[NodeReport], *, tells_leader: bool) -> str:
    """Return a line each for the algorithm, the leader, and the nodes in and out of sync."""
    from dpwa.wire.messages import printable

    leaders = [report.news.get("leader") for report in reports] if tells_leader else []
    algorithms = [report.algorithm for report in reports]
    paces = {report.name: report.pace for report in reports if report.pace}
    in_sync = [" ".join(pace.in_pace) or None for pace in paces.values()]
    out_of_sync = [
        f"{name} for {screen.age(pace.out_of_sync_s)}"
        for name, pace in paces.items()
        if pace.out_of_sync_s is not None
    ]
    parts = []
    for title, values in (
        ("algorithm", algorithms),
        ("leader", leaders),
        ("in sync", in_sync),
        ("out of sync", out_of_sync),
    ):
        found = dict.fromkeys(str(value) for value in values if value is not None)
        if found:
            parts.append(f"{title} {printable(', '.join(found))}")
    return "\n".join(parts)


def _table(reports: Mapping[str, NodeReport], columns: int) -> RenderableType:
    from dpwa.wire.messages import printable

    averages = any(report.pace for report in reports.values())
    counted = ("version", "merges", "rounds") if averages else ("version", "merges")
    is_mapped = any(report.gossip.mapped_bytes for report in reports.values())
    moved = ("sent", "received", "mapped") if is_mapped else ("sent", "received")
    headings = ("node", "clock", "steps", "loss", *counted, *moved, "memory")
    rows = [
        [name, *(_cells(report)[heading] for heading in (*headings[1:], "peers"))]
        for name, report in reports.items()
    ]
    rows = [list(map(printable, row)) for row in rows]
    numbers = range(1, len(headings))
    last = len(headings)
    return screen.table((*headings, "peers (score)"), rows, columns, right=numbers, text=[last])


def _cells(report: NodeReport) -> dict[str, str]:
    from dpwa.observe.figures import MEMORY_PARTS

    sizes = [report.memory[part] for part in MEMORY_PARTS if part in report.memory]
    return {
        "clock": _number(report.clock, "?"),
        "steps": str(report.gossip.steps),
        "loss": "diverged" if report.diverged else _number(report.loss, "-"),
        "version": str(report.version),
        "merges": str(report.merges),
        "rounds": str(report.pace.rounds) if report.pace else "-",
        "sent": size(report.bytes_sent),
        "received": size(report.bytes_received),
        "mapped": size(report.gossip.mapped_bytes),
        "memory": size(sum(sizes)) if len(sizes) == len(MEMORY_PARTS) else "?",
        "peers": ", ".join(map(_peer, report.peers)),
    }


def _number(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else number(value)


def _peer(peer: PeerReport) -> str:
    """Return a peer's name with the score and the problem, if the peer has them."""
    if peer.heard_s is None:
        return f"{peer.name} (no message yet)"
    remarks = [] if peer.health in _NOT_THERE else [str(peer.score)]
    if peer.health not in ("alive", "unknown"):
        remarks.append(peer.health.replace("_", " "))
    if peer.health in _ABSENT and not math.isnan(peer.heard_s):
        ago = f"{screen.age(peer.heard_s)} ago"
        if peer.health in _ENDED:
            return f"{peer.name} ({peer.health} {ago})"
        remarks.append(f"last message {ago}")
    return f"{peer.name} ({', '.join(remarks)})"


def _heard_by_others(name: str, reports: Mapping[str, NodeReport]) -> str:
    """Return a sentence with the time since any peer last received a message from a node."""
    told = [p.heard_s for report in reports.values() for p in report.peers if p.name == name]
    ages = [age for age in told if age is not None and not math.isnan(age)]
    if ages:
        return f". A peer last received a message from this node {screen.age(min(ages))} ago"
    return ". No peer has received a message from this node" if None in told else ""
