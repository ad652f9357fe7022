"""`dpwa doctor` reports which nodes cannot reach each other, and why."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from dpwa.cli import exit_codes
from dpwa.cli.query_options import AsOption, JsonOption, RunOption, TimeoutOption, run_of
from dpwa.errors import UserError
from dpwa.report.wording import plural

if TYPE_CHECKING:
    from dpwa.config import Config
    from dpwa.discovery.interfaces import OwnHost
    from dpwa.node.query import Finding, StatusAnswer


def doctor(
    config: RunOption = None,
    timeout_ms: TimeoutOption = 3000,
    as_name: AsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask each node which peers it cannot reach, and explain the problems.

    The output lists nodes that refuse a connection, do not answer or are unknown. It also lists
    wrong keys, and names that two nodes use. The command also compares the nodes' settings, models,
    clocks, lists of members, and versions of dpwa, Python, torch and NVIDIA's driver. A node that
    this machine cannot reach may still be reachable for its peers. If nodes are on other hosts, the
    output has the address at which they reach this machine, and how this address was found.

    The exit code is 3 if a connection is missing, and 1 if there is any other problem.

    Examples:
        dpwa doctor
        dpwa doctor -c nodes.yaml
        dpwa doctor -c nodes.yaml --timeout-ms 10000 --json
    """
    from dpwa.config import load_config
    from dpwa.discovery.interfaces import named_host
    from dpwa.node.query import Finding, asking_keyring, diagnose, query_cluster

    loaded = load_config(run_of(config))
    answers = query_cluster(loaded, timeout_ms / 1000, asking_keyring(loaded, as_name))
    with ThreadPoolExecutor(64) as tried:
        explained = partial(_explained, loaded, timeout_ms / 1000)
        findings, own = list(tried.map(explained, diagnose(answers))), None
    try:
        own = _own_host(loaded, answers)
    except UserError as error:
        findings.append(Finding("", f"this machine: {error}"))
    if as_json:
        rows = [{"node": f.node, "problem": f.text} for f in findings]
        missed = _taken_for_dead(answers)
        here = None if own is None else {"host": own.host, "reason": own.reason}
        told = {"nodes": list(answers), "problems": rows, "taken_for_dead": missed}
        typer.echo(json.dumps({**told, "ended": _ended(answers), "this_machine": here}))
    else:
        if own is not None and not (own.is_loopback and named_host(os.environ) is None):
            typer.echo(f"peers reach this machine at {own.host}, {own.reason}")
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
        typer.echo(f"{name} was at {where}. Its peers consider it dead")
    for name, how in _ended(answers).items():
        typer.echo(f"{name} {how}")
    wrong = plural(len(findings), "problem") if findings else "no problems"
    typer.echo(f"{len(reached)} of {len(answers)} nodes answer, {wrong}")


def _explained(config: Config, timeout_s: float, finding: Finding) -> Finding:
    """Try to connect to an unreachable node, and add the error of the socket to the finding."""
    places = {f"{n.name}: not reachable: no": (n.host, n.port) for n in config.nodes if n.port}
    place = next((places[text] for text in places if finding.text.startswith(text)), None)
    try:
        if place is not None:
            socket.create_connection(place, timeout_s).close()
    except OSError as error:
        return replace(finding, text=f"{finding.text}: {error.strerror or error}")
    return finding


def _own_host(config: Config, answers: Mapping[str, StatusAnswer]) -> OwnHost | None:
    """Return the address at which a node reaches this machine. A node that answers is preferred.

    The result is `None` if no node has a TCP address.

    Raises:
        UserError: the environment names a network interface that is missing or has no address.
    """
    from dpwa.config.endpoints import split_tcp
    from dpwa.discovery.interfaces import own_host
    from dpwa.node.query import NOT_ASKED

    places = {node.name: node.connect_endpoint for node in config.nodes}
    places |= {seed.name or seed.endpoint: seed.endpoint for seed in config.seeds}
    first = sorted(places, key=lambda name: answers.get(name, NOT_ASKED).report is None)
    addresses = (split_tcp(places[name]) for name in first)
    found = next((address for address in addresses if address is not None), None)
    return None if found is None else own_host(os.environ, found[0])


def _ended(answers: Mapping[str, StatusAnswer]) -> dict[str, str]:
    return {name: answer.problem for name, answer in answers.items() if answer.has_ended}


def _taken_for_dead(answers: Mapping[str, StatusAnswer]) -> dict[str, str]:
    """Return the last address of each member that its peers consider dead, by name.

    Such a member may have ended on purpose, so it does not count as a problem.
    """
    from dpwa.node.query import members_of
    from dpwa.wire.messages import printable

    dead = members_of(answers.values(), "dead")
    return {printable(n): printable(where) for n, where in dead.items() if n not in answers}
