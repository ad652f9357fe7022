"""Asking nodes how they are, from outside of the gossip."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import zmq

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.config import Config
from dpwa.config.endpoints import Seed, ipc_path, split_tcp
from dpwa.errors import UserError
from dpwa.runtime import SYSTEM
from dpwa.transport.calls import Calls, NoAnswer, Question
from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import KeyFolder
from dpwa.types import Frame, JsonObject
from dpwa.wire.messages import AskStatus, Message, Status, unpack

REQUEST = 1
MOST_AT_ONCE = 128  # connections
WAITING_S = 0.1  # for one of those that are asked to make room for another
MOST_TURNS = 3  # of asking those that others have spoken of


@dataclass(frozen=True)
class StatusAnswer:
    """What came of asking one node: its report, or the problem in words.

    Attributes:
        report: what it says of itself.
        problem: why there is none.
        ahead_s: by how much its wall clock is ahead of this machine's, give or take the time that
            the answer took; `None` if it does not say.
    """

    report: JsonObject | None
    problem: str = ""
    ahead_s: float | None = None


NOT_ASKED = StatusAnswer(None, "not asked: too many others have not answered in time")


def asking_keyring(config: Config, name: str | None = None) -> Keyring | None:
    """Return the keys with which to ask the nodes of a configuration; `None` if it needs none.

    Args:
        config: of the nodes.
        name: whose secret key to use; the first one in the folder of the keys if left out.

    Raises:
        UserError: there is no such key, or others can read or write its file.
    """
    if config.security == "none":
        return None
    folder = KeyFolder(config.keys)
    owners = [name] if name is not None else folder.owners()
    if not owners:
        raise UserError(f"{folder.path}: no secret key to ask the nodes with (see `dpwa keys new`)")
    return Keyring(folder, owners[0], config.allow)


def places_to_ask(config: Config) -> tuple[Seed, ...]:
    """Return where nodes of a configuration should be.

    Raises:
        UserError: it tells of none.
    """
    listed = [Seed(node.connect_endpoint, node.name) for node in config.nodes]
    places = {seed.endpoint: seed for seed in [*config.seeds, *listed]}
    told = config.advertise or config.listen
    if not places and told:  # of the one that begins alone
        host = told.replace("://*:", "://localhost:").replace("://0.0.0.0:", "://localhost:")
        return (Seed(host),)
    if not places:
        raise UserError("the configuration tells of no node to ask: no nodes, join or listen")
    return tuple(places.values())


def query_cluster(
    config: Config, timeout_s: float, keyring: Keyring | None = None
) -> dict[str, StatusAnswer]:
    """Ask all nodes of a configuration, and all members that they know; by name.

    An address to ask at counts as a node of its own only if nobody else is found to be there.

    Args:
        config: of the nodes.
        timeout_s: how long to wait for the slowest, in each of at most three turns.
        keyring: with whose keys to ask, see `asking_keyring`.

    Raises:
        UserError: it tells of none.
    """
    listed = {node.name for node in config.nodes}
    todo = {place.name or place.endpoint: place.endpoint for place in places_to_ask(config)}
    found = dict[str, StatusAnswer]()
    for _ in range(MOST_TURNS):
        for name, answer in query_status(todo, timeout_s, keyring=keyring).items():
            own = (answer.report or {}).get("name")
            found[own if isinstance(own, str) and name not in listed else name] = answer
        members = members_of((a.report for a in found.values()), "alive", "suspect")
        todo = {name: where for name, where in members.items() if name not in found}
        if not todo:
            break
    return found


def members_of(reports: Iterable[JsonObject | None], *statuses: str) -> dict[str, str]:
    """Return where the members are that reports speak of; they are foreign, so all may be amiss.

    Args:
        reports: what nodes say of themselves.
        statuses: of the members that are meant: `alive`, `suspect`, `dead` or `left`.
    """
    found = {}
    for report in reports:
        membership = (report or {}).get("membership")
        entries = membership.get("members") if isinstance(membership, dict) else None
        for entry in entries if isinstance(entries, list) else []:
            match entry:
                case {"name": str(name), "endpoint": str(where), "status": str(status)}:
                    if status in statuses and (split_tcp(where) or ipc_path(where)):
                        found[name] = where
    return found


def query_status(
    endpoints: Mapping[str, str],
    timeout_s: float,
    clock: Clock | None = None,
    keyring: Keyring | None = None,
) -> dict[str, StatusAnswer]:
    """Ask all nodes at once; return an answer for each name within `timeout_s` seconds.

    Args:
        endpoints: where each node listens, by name.
        timeout_s: how long to wait for the slowest.
        clock: what the time is taken from.
        keyring: with whose keys to ask, see `asking_keyring`.
    """
    clock = clock or SystemClock()
    deadline = Deadline(clock, timeout_s)
    answers: dict[str, StatusAnswer] = {}
    calls, poller = Calls(keyring, clock, MOST_AT_ONCE), zmq.Poller()
    names = {where: [n for n, w in endpoints.items() if w == where] for where in endpoints.values()}
    with SYSTEM.zmq_context() as zmq_context:
        calls.open(zmq_context, poller)
        waiting = [_question(names[where], where, answers, deadline) for where in names]
        try:
            while True:
                waiting = [question for question in waiting if not calls.start(question)]
                calls.go_on()
                if len(answers) == len(endpoints) or deadline.expired():
                    break
                patience_s = min(deadline.remaining_s(), WAITING_S if waiting else math.inf)
                poller.poll(int(patience_s * 1000) + 1)
            calls.give_up()
        finally:
            calls.close()
    return {name: answers.get(name, NOT_ASKED) for name in endpoints}


def _question(
    names: list[str], endpoint: str, answers: dict[str, StatusAnswer], deadline: Deadline
) -> Question:
    """Return the question at one address, the answer of which is that of all these names."""

    def answered(message: Message, payload: Frame) -> None:
        answers.update(dict.fromkeys(names, _read(message, payload)))

    def failed(failure: NoAnswer) -> None:
        problem = failure.problem if failure.is_reached else f"not reachable: {failure.problem}"
        answers.update(dict.fromkeys(names, StatusAnswer(None, problem)))

    def message() -> tuple[Message, None]:
        return AskStatus(request=REQUEST), None

    return Question(names[0], endpoint, message, answered, failed, deadline.remaining_s())


def _read(message: Message, payload: Frame) -> StatusAnswer:
    if not isinstance(message, Status):
        return StatusAnswer(None, f"answered with {message.type!r} instead of its status")
    report = unpack(payload)
    if not isinstance(report, dict) or not _is_plain(report):
        return StatusAnswer(None, "answered with something that is no status")
    said = report.get("time")
    return StatusAnswer(report, ahead_s=said - time.time() if isinstance(said, float) else None)


def _is_plain(report: JsonObject) -> bool:
    """Tell whether a report can be printed as JSON."""
    try:
        json.dumps(report, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
