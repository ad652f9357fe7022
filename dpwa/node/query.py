"""Asking nodes how they are, from outside of the gossip."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import zmq

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.errors import ProtocolError
from dpwa.transport.link import LinkState, PeerLink
from dpwa.types import Frame, JsonObject
from dpwa.wire.messages import AskStatus, Status, decode, unpack

REQUEST = 1


@dataclass(frozen=True)
class StatusAnswer:
    """What came of asking one node: its report, or the problem in words."""

    report: JsonObject | None
    problem: str = ""


def query_status(
    endpoints: Mapping[str, str], timeout_s: float, clock: Clock | None = None
) -> dict[str, StatusAnswer]:
    """Ask all nodes at once; return an answer for each name within `timeout_s` seconds.

    Args:
        endpoints: where each node listens, by name.
        timeout_s: how long to wait for the slowest.
        clock: what the time is taken from.
    """
    deadline = Deadline(clock or SystemClock(), timeout_s)
    with zmq.Context() as context:
        links = [PeerLink(context, name, endpoint) for name, endpoint in endpoints.items()]
        try:
            return _ask_all(links, deadline)
        finally:
            for link in links:
                link.close()


def _ask_all(links: list[PeerLink], deadline: Deadline) -> dict[str, StatusAnswer]:
    answers: dict[str, StatusAnswer] = {}
    poller = zmq.Poller()
    for link in links:
        poller.register(link.socket, zmq.POLLIN)
        poller.register(link.monitor, zmq.POLLIN)
    while len(answers) < len(links) and not deadline.expired():
        ready = dict(poller.poll(int(deadline.remaining_s() * 1000) + 1))
        for link in links:
            if link.peer not in answers and not ready.keys().isdisjoint(
                {link.socket, link.monitor}
            ):
                answer = _follow(link)
                if answer is not None:
                    answers[link.peer] = answer
    silent = {link.peer: StatusAnswer(None, _silence(link)) for link in links}
    return {**silent, **answers}


def _follow(link: PeerLink) -> StatusAnswer | None:
    """Send the question when the link comes up; return the answer when it is there."""
    for state in link.update():
        if state is LinkState.UP:
            link.send(AskStatus(request=REQUEST))
        elif state is LinkState.DOWN:
            return StatusAnswer(None, "not reachable: connection refused or lost, or unknown host")
    frames = link.receive()
    return None if frames is None else _read(frames)


def _read(frames: list[Frame]) -> StatusAnswer:
    try:
        message, payload = decode(frames)
        if not isinstance(message, Status):
            return StatusAnswer(None, f"answered with {message.type!r} instead of its status")
        report = unpack(payload)
    except ProtocolError as error:
        return StatusAnswer(None, str(error))
    if not isinstance(report, dict) or not _is_plain(report):
        return StatusAnswer(None, "answered with something that is no status")
    return StatusAnswer(report)


def _is_plain(report: JsonObject) -> bool:
    """Tell whether a report can be printed as JSON."""
    try:
        json.dumps(report, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _silence(link: PeerLink) -> str:
    if link.state is LinkState.UP:
        return "connected, but no answer in time"
    return "not reachable: no answer in time"
