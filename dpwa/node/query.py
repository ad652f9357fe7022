"""Ask running nodes for a status report, from a process that is not a node."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import zmq

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.config import Config
from dpwa.config.endpoints import Seed, ipc_path, is_label, split_tcp
from dpwa.errors import UserError
from dpwa.node.report import NodeReport, read_report
from dpwa.policy.health import HAVE_ENDED, IN_WORDS, Health
from dpwa.runtime import SYSTEM
from dpwa.transport.calls import Calls, NoAnswer, Question
from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import KeyFolder
from dpwa.types import Frame, JsonObject
from dpwa.wire.messages import AskStatus, Message, Status, printable, unpack

REQUEST = 1
MAX_CONNECTIONS = 128  # at once
WAITING_S = 0.1  # until a place may be free for another connection
MAX_TURNS = 3  # how often newly found members are asked


@dataclass(frozen=True)
class StatusAnswer:
    """The report of a node, or the reason why there is none."""

    report: NodeReport | None
    problem: str = ""
    has_ended: bool = False  # on purpose, as its peers report; then `problem` says how
    # the node's wall clock minus this machine's, without the time of the answer; `None`: unknown
    ahead_s: float | None = None
    told: JsonObject = field(default_factory=dict)  # the report as it came, for `--json`


NOT_ASKED = StatusAnswer(None, "was not asked, because too many other nodes did not answer in time")


def asking_keyring(config: Config, name: str | None = None) -> Keyring | None:
    """Return the keys for asking the nodes, or `None` if the configuration needs none.

    `name` is the owner of the secret key, by default the first owner in the folder. Raises
    `UserError` if there is no secret key, or if other users can access its file.
    """
    if config.security == "none":
        return None
    folder = KeyFolder(config.keys)
    owners = [name] if name is not None else folder.owners()
    if not owners:
        raise UserError(
            f"{folder.path}: this folder has no secret key, so this process cannot ask the nodes. "
            f"Make a key with `dpwa keys new` [DPWA-E102]"
        )
    return Keyring(folder, owners[0], config.allow)


def places_to_ask(config: Config) -> tuple[Seed, ...]:
    """Return the addresses of a configuration's nodes. Raises `UserError` if there are none."""
    listed = [Seed(node.connect_endpoint, node.name) for node in config.nodes]
    places = {seed.endpoint: seed for seed in [*config.seeds, *listed]}
    told = config.advertise or config.listen
    if not places and told:  # the first node of a run that others join
        host = told.replace("://*:", "://localhost:").replace("://0.0.0.0:", "://localhost:")
        return (Seed(host),)
    if not places:
        raise UserError(
            "there is no node to ask. Set `nodes`, `join` or `listen` in the configuration "
            "[DPWA-E054]"
        )
    return tuple(places.values())


def query_cluster(
    config: Config, timeout_s: float, keyring: Keyring | None = None
) -> dict[str, StatusAnswer]:
    """Ask all configured nodes, and the living members that they report. Return answers by name.

    An address in `join` counts as a separate node only if no other node is found there. There are
    at most three turns, and each takes at most `timeout_s` seconds. Raises `UserError`
    if the configuration names no node.
    """
    listed = {node.name for node in config.nodes}
    todo = {place.name or place.endpoint: place.endpoint for place in places_to_ask(config)}
    found = dict[str, StatusAnswer]()
    for _ in range(MAX_TURNS):
        for name, answer in query_status(todo, timeout_s, keyring=keyring).items():
            own = answer.report.name if answer.report is not None else "?"
            found[name if own == "?" or name in listed else own] = answer
        members = members_of(found.values(), "alive", "suspect")
        todo = {name: where for name, where in members.items() if name not in found}
        if not todo:
            break
    return {**found, **_ended(found)}


def _ended(answers: Mapping[str, StatusAnswer]) -> dict[str, StatusAnswer]:
    """Return how the nodes that do not answer have ended, as other nodes report."""
    told = [peer for a in answers.values() if a.report is not None for peer in a.report.peers]
    found = dict[str, StatusAnswer]()
    for health in reversed(HAVE_ENDED):  # the last match wins
        for peer in (peer for peer in told if peer.health == health.value):
            if peer.name in answers and answers[peer.name].report is None:
                why = f": {printable(peer.problem)}" if peer.problem else ""
                found[peer.name] = StatusAnswer(None, f"{IN_WORDS[health]}{why}", has_ended=True)
    return found


def members_of(answers: Iterable[StatusAnswer], *statuses: str) -> dict[str, str]:
    """Return the endpoints of the members that nodes report, by name.

    `statuses` are the wanted statuses: `alive`, `suspect`, `dead` or `left`.
    """
    reports = [answer.report for answer in answers if answer.report is not None]
    return {
        member.name: member.endpoint
        for report in reports
        for member in report.members
        if member.status in statuses and (split_tcp(member.endpoint) or ipc_path(member.endpoint))
    }


def query_status(
    endpoints: Mapping[str, str],
    timeout_s: float,
    clock: Clock | None = None,
    keyring: Keyring | None = None,
) -> dict[str, StatusAnswer]:
    """Ask all nodes at once, and return an answer for each name within `timeout_s` seconds."""
    clock = clock or SystemClock()
    deadline = Deadline(clock, timeout_s)
    answers: dict[str, StatusAnswer] = {}
    calls, poller = Calls(keyring, clock, MAX_CONNECTIONS), zmq.Poller()
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
    told = unpack(payload)
    if not isinstance(told, dict) or not _is_plain(told):
        return StatusAnswer(None, "answered with data that are not a status")
    report = read_report(told)
    ahead_s = None if report.time is None else report.time - time.time()
    return StatusAnswer(report, ahead_s=ahead_s, told=told)


def _is_plain(report: JsonObject) -> bool:
    """Tell whether a report can be printed as JSON."""
    try:
        json.dumps(report, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


MAX_SKEW_S = 5.0
CONNECTED_AFTER_S = 5.0  # time to connect to nodes that started a little later

_WELL = (Health.UNKNOWN, Health.ALIVE, Health.FINISHED, Health.LEFT)
_PROBLEMS = {health.value: text for health, text in IN_WORDS.items() if health not in _WELL}

_REFUSALS = {
    "unknown_key": "{n} connections because of their keys. Their key is not allowed here, or the "
    "other side has an old key of this node. Compare `dpwa keys list` on both machines",
    "protocol": "{n} connections that used keys where none are expected, used none where keys are "
    "required, or came from a program that is no node. Compare `security` in all configurations",
    "broken_off": "{n} connections that closed before they were accepted, or took too long",
}


@dataclass(frozen=True)
class Finding:
    """A problem that `dpwa doctor` found."""

    node: str
    text: str  # one sentence that begins with the node's name
    is_unreachable: bool = False  # whether a connection is missing


def diagnose(answers: Mapping[str, StatusAnswer]) -> list[Finding]:
    """Return all problems without duplicates. `answers` has all nodes that should be running."""
    reports = {name: a.report for name, a in answers.items() if a.report is not None}
    found = [
        Finding(name, f"{name}: {answer.problem}", is_unreachable=True)
        for name, answer in answers.items()
        if answer.report is None and not answer.has_ended
    ]
    absent = {finding.node for finding in found}
    found += _names(reports)
    said = between(reports)
    found += [each for each in said if not each.is_unreachable or each.node not in absent]
    told = {name: _told(report) for name, report in reports.items()}
    for what in dict.fromkeys(each for values in told.values() for each in values):
        found += _odd_ones(what, {name: values.get(what) for name, values in told.items()})
    found += _views(reports)
    found += _clocks(answers)
    found += _strangers(reports)
    return list(dict.fromkeys(found))


def _names(reports: Mapping[str, NodeReport]) -> Iterator[Finding]:
    """Yield nodes that answer at a wrong address, name clashes, and problems that nodes report."""
    for name, report in reports.items():
        if report.name != name and is_label(name):
            text = f"{name}: {printable(report.name)} answers at the address of {name}"
            yield Finding(name, text, is_unreachable=True)
        for sentence in report.clashes:
            yield Finding(name, f"{printable(report.name)}: {printable(sentence)}")
        for part in (report.checkpoints, *report.sections.values()):
            match part:
                case {"problem": str(problem)} if problem:
                    yield Finding(name, f"{name}: {printable(problem)}")


def between(
    reports: Mapping[str, NodeReport], healths: Collection[str] = _PROBLEMS
) -> Iterator[Finding]:
    """Yield the problems of peers with a health in `healths`. Equal problems are joined to one."""
    told = dict[tuple[str, str, str, str], list[str]]()
    for name, report in reports.items():
        for peer in report.peers:
            is_lost = peer.problem and report.uptime_s > CONNECTED_AFTER_S  # e.g. in a barrier
            health = "unreachable" if peer.health == "unknown" and is_lost else peer.health
            if health in healths:
                what = printable(peer.name), printable(peer.endpoint), health, peer.problem
                told.setdefault(what, []).append(name)
    for (other, where, health, problem), names in told.items():
        say = "says" if len(names) == 1 else "say"
        text = f"{other} at {where}: {', '.join(names)} {say} that {other} {_PROBLEMS[health]}"
        text += f": {printable(problem)}" if problem else ""
        yield Finding(other, text, is_unreachable=health in ("silent", "unreachable"))


def _told(report: NodeReport) -> JsonObject:
    """Return values that all nodes should share, by name. `None`: the node reported no value."""
    versions = {"protocol version": report.protocol, "dpwa": report.dpwa, **report.versions}
    settings = {"algorithm": report.algorithm, **report.settings}
    return {**versions, **settings, "model": _model(report)}


def _odd_ones(what: str, values: Mapping[str, object]) -> Iterator[Finding]:
    """Yield the nodes whose value differs from that of the majority."""
    known = {name: value for name, value in values.items() if value is not None}
    counts = Counter(known.values())
    if len(counts) < 2:
        return
    usual, number = counts.most_common(1)[0]
    whose = next(name for name in known if known[name] == usual)
    others = "most others have" if number > 1 else f"{whose} has"
    for name, value in known.items():
        if value != usual:
            shown, other = printable(str(value)), printable(str(usual))
            yield Finding(name, f"{name} has {printable(what)} {shown}, {others} {other}")


def _model(report: NodeReport) -> str | None:
    match report.model:
        case {"fingerprint": str(fingerprint), "tensors": int(count)}:
            return f"{fingerprint[:8]} ({count} tensors)"
    return None


def _views(reports: Mapping[str, NodeReport]) -> Iterator[Finding]:
    """Yield the nodes that other nodes do not know, or consider dead."""
    for name, report in reports.items():
        states = {printable(member.name): printable(member.status) for member in report.members}
        for other in reports:
            status = states.get(other, "unknown")
            if report.membership is not None and other != name and status != "alive":
                text = f"{other} answers here, but the status of {other} on {name} is {status}"
                yield Finding(other, text)


def _clocks(answers: Mapping[str, StatusAnswer]) -> Iterator[Finding]:
    for name, answer in answers.items():
        ahead_s = answer.ahead_s
        if ahead_s is not None and abs(ahead_s) > MAX_SKEW_S:
            way = "ahead of" if ahead_s > 0 else "behind"
            text = f"{name}: its wall clock is {abs(ahead_s):.0f} s {way} the clock of this machine"
            yield Finding(name, text)


def _strangers(reports: Mapping[str, NodeReport]) -> Iterator[Finding]:
    """Yield the number of handshakes that nodes refused, with advice."""
    for name, report in reports.items():
        for reason, what in _REFUSALS.items():
            count = report.handshakes_refused.get(reason, 0)
            if count > 0:
                yield Finding(name, f"{name} has refused {what.format(n=count)}")
