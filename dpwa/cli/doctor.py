"""`dpwa doctor`: say which node cannot reach which, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from dpwa.cli import exit_codes
from dpwa.cli.asking import AsOption, JsonOption, RunOption, TimeoutOption

if TYPE_CHECKING:
    from dpwa.node.diagnosis import Finding
    from dpwa.node.query import StatusAnswer


def doctor(
    config: RunOption,
    timeout_ms: TimeoutOption = 3000,
    as_name: AsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask every node which others it cannot reach, and explain what is wrong.

    It tells what is refused, silent or unknown, wrong keys, other protocol versions, models and
    algorithms, views that differ and clocks that are off. It asks from this machine, so what it
    cannot reach itself may still be fine between the nodes.

    Exits with 3 when a connection is missing, with 1 when something else is wrong.
    """
    from dpwa.config import load_config
    from dpwa.node.diagnosis import diagnose
    from dpwa.node.query import asking_keyring, query_cluster

    loaded = load_config(config)
    answers = query_cluster(loaded, timeout_ms / 1000, asking_keyring(loaded, as_name))
    findings = diagnose(answers)
    if as_json:
        rows = [{"node": f.node, "problem": f.text} for f in findings]
        missed = _taken_for_dead(answers)
        typer.echo(json.dumps({"nodes": list(answers), "problems": rows, "taken_for_dead": missed}))
    else:
        _show(answers, findings)
    if any(finding.is_unreachable for finding in findings):
        raise typer.Exit(exit_codes.UNREACHABLE)
    if findings:
        raise typer.Exit(exit_codes.FAILURE)


def _show(answers: Mapping[str, StatusAnswer], findings: list[Finding]) -> None:
    reached = [name for name, answer in answers.items() if answer.report is not None]
    for finding in findings:
        typer.echo(f"! {finding.text}")
    for name, where in _taken_for_dead(answers).items():
        typer.echo(f"{name} was at {where}, and is taken for dead")
    wrong = f"{len(findings)} problem{'s' * (len(findings) != 1)}" if findings else "all is well"
    typer.echo(f"{len(reached)} of {len(answers)} nodes answer; {wrong}")


def _taken_for_dead(answers: Mapping[str, StatusAnswer]) -> dict[str, str]:
    """Return where members were that others remember and that do not answer, by name.

    None of them is a problem that is sure: they may have ended for good.
    """
    from dpwa.node.query import members_of
    from dpwa.wire.messages import printable

    dead = members_of((answer.report for answer in answers.values()), "dead")
    return {printable(n): printable(where) for n, where in dead.items() if n not in answers}
