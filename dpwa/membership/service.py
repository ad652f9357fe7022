"""The service with which a node answers membership messages, on its RxThread."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from dpwa.config.endpoints import Seed
from dpwa.membership.asking import ANSWER_WITHIN_S, Asking
from dpwa.membership.context import MembershipContext
from dpwa.membership.member_list import MemberList
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.serving.service import Reply, Service
from dpwa.policy.members.states import MemberEntry, MemberStatus
from dpwa.transport.addresses import is_local
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.members import (
    Here,
    JoinRequest,
    ProbeAnswer,
    ProbeRequest,
    Refusal,
    Roster,
    TurnedAway,
    Welcome,
    WhoIs,
)

log = logging.getLogger("dpwa.members")

MAX_WAITING = 16  # nodes that want to join, and are being called back
HEARD_WITHIN_S = 1.0  # after so much silence, a member is suspected, or probed for others
FOUND_OUT_WITHIN_S = 10.0  # longer than it takes until a suspect is dead
MAX_PROBES = 16  # at once; a node that asks for more probes also asks other helpers
MAX_PROBES_OF_ONE = 8  # at once for one sender
PROBE_WITHIN_S = 2.0


@dataclass
class _Waiting:
    request: int
    reply: Reply
    expires: float


class RosterService(Service):
    """Exchanges entries about members, and admits new nodes that answer at their endpoints."""

    handles = (Roster, JoinRequest, WhoIs, ProbeRequest)

    def __init__(
        self,
        member_list: MemberList,
        algorithm: str,
        context: MembershipContext,
        asking: Asking,
    ) -> None:
        self._member_list = member_list
        self._algorithm = algorithm
        self._context = context
        self._asking = asking
        self._names = Names(member_list)
        self._probes = Probes(member_list, context.tx)
        self._rx = context.rx
        self._clock = context.runtime
        self._waiting: dict[tuple[str, int], _Waiting] = {}

    def receive(
        self,
        sender: bytes,
        message: object,
        payload: Frame,
        reply: Reply,
    ) -> None:
        match message:
            case Roster():
                self._trade(message, payload, reply)
            case JoinRequest():
                self._consider(message, payload, reply)
            case WhoIs():
                own = self._member_list.own
                reply(Here(request=message.request, name=own.name, incarnation=own.incarnation))
            case ProbeRequest():
                self._probes.start(sender, message, reply)

    def _called_back(self, entry: MemberEntry, news: tuple[MemberEntry, ...], problem: str) -> None:
        """Admit a node that answered at its endpoint, or reject the node if there was a problem."""
        waiting = self._waiting.pop((entry.name, entry.incarnation), None)
        if not problem:
            self._member_list.believe(entry)
            self._member_list.receive_entries(news)
        if waiting is not None and problem:
            own = self._member_list.own.name
            log.info("%s: did not admit %s: %s", own, entry.name, problem)
            self._not_there(waiting.request, waiting.reply, entry.endpoint)
        elif waiting is not None:
            self._welcome(waiting.request, waiting.reply, entry.name)

    def tick(self, now: float) -> bool:
        """Report the results of probes to the members that requested the probes."""
        self._member_list.note_awake()  # the TxThread may be busy with messages for a long time
        self._waiting = {key: each for key, each in self._waiting.items() if each.expires > now}
        return self._probes.go_on()

    def _trade(self, message: Roster, payload: Frame, reply: Reply) -> None:
        news = self._news(payload)
        self._member_list.heard_from(message.name, message.incarnation)
        self._member_list.receive_entries(news)
        if message.asks:
            own = self._member_list.own
            answer = Roster(
                request=message.request,
                name=own.name,
                incarnation=own.incarnation,
                digest=self._member_list.digest(),
                asks=False,
            )
            reply(answer, self._member_list.pack_news(message.name, message.digest))

    def _consider(self, message: JoinRequest, payload: Frame, reply: Reply) -> None:
        news, own = self._news(payload), self._member_list.own
        known = self._member_list.entry(message.name)
        is_known = message.name == own.name or _is_member(message, known)
        if message.expects not in ("", own.name):
            reason = f"the node here is {own.name}, not {message.expects}"
            self._turn_away(message.request, reply, "stranger", reason)
        elif message.algorithm != self._algorithm:
            reason = f"{own.name} runs algorithm {self._algorithm}, not {message.algorithm}"
            self._turn_away(message.request, reply, "algorithm", reason)
        elif refusal := self._names.refusal(message):
            self._turn_away(message.request, reply, *refusal)
        elif not is_known and not self._context.may_call(message.endpoint, self._source):
            self._not_there(message.request, reply, message.endpoint)
        elif message.name != own.name and self._member_list.waits:
            reason = f"{own.name} is itself waiting to be admitted"
            self._turn_away(message.request, reply, "waiting", reason)
            # The other node may belong to a cluster.
            self._asking.ask_there(Seed(message.endpoint, message.name))
        elif is_known:
            self._member_list.receive_entries(news)
            self._welcome(message.request, reply, message.name)
        elif len(self._waiting) >= MAX_WAITING:
            reason = f"{MAX_WAITING} other nodes are waiting to be admitted"
            self._turn_away(message.request, reply, "busy", reason)
        else:
            self._wait(message, news, reply)

    def _wait(self, message: JoinRequest, news: tuple[MemberEntry, ...], reply: Reply) -> None:
        key = message.name, message.incarnation
        is_new = key not in self._waiting
        expires = self._clock.now() + ANSWER_WITHIN_S
        self._waiting[key] = _Waiting(message.request, reply, expires)
        if is_new:
            said = next((e for e in news if e.name == message.name), None)
            entry = MemberEntry(message.name, message.endpoint, message.incarnation)
            if said is not None and said.stamp > entry.stamp and _is_of(message, said):
                entry = said
            others = tuple(e for e in news if e.name != message.name)
            answer = partial(self._rx.call_soon, self._called_back, entry, others)
            self._asking.call_back(entry, answer)

    @property
    def _source(self) -> str:
        return self._context.rx.source

    def _news(self, payload: Frame) -> tuple[MemberEntry, ...]:
        return self._context.unpack_news(payload, is_local=is_local(self._source))

    def _not_there(self, request: int, reply: Reply, endpoint: str) -> None:
        """Refuse an unreachable node. All reasons are the same, so the node cannot scan ports."""
        reason = (
            f"{self._member_list.own.name} cannot connect to {endpoint}, the endpoint in the "
            "request. Without keys, the member only tries the address that sent the request"
        )
        self._turn_away(request, reply, "address", reason)

    def _welcome(self, request: int, reply: Reply, to: str) -> None:
        own = self._member_list.own
        welcome = Welcome(request=request, name=own.name, incarnation=own.incarnation)
        reply(welcome, self._member_list.pack_news(to, their_digest=b""))

    def _turn_away(self, request: int, reply: Reply, kind: Refusal, reason: str) -> None:
        name = self._member_list.own.name
        short = reason[: limits.MAX_REASON_CHARACTERS]
        reply(TurnedAway(request=request, name=name, kind=kind, reason=short))


def _is_member(message: JoinRequest, known: MemberEntry | None) -> bool:
    return known is not None and _is_of(message, known) and known.status.is_member


def _is_of(message: JoinRequest, entry: MemberEntry) -> bool:
    return (entry.incarnation, entry.endpoint) == (message.incarnation, message.endpoint)


@dataclass(frozen=True)
class _Doubt:
    entry: MemberEntry
    began: float


class Names:
    """Decides whether a joining node's name is free. It belongs to one thread.

    A member keeps its name while it lives. A connection does not show whether it lives. If a
    process was killed, its connection stays up for some seconds if its children hold the socket, or
    if its host is down. A missing connection may be a fault of the link only. So the new node must
    wait until the member sends a message, which shows that it lives. Otherwise the member is
    suspected, a few nodes ask it, and it refutes the suspicion or is dead.
    """

    def __init__(self, member_list: MemberList) -> None:
        self._member_list = member_list
        self._doubts: dict[str, _Doubt] = {}

    def refusal(self, message: JoinRequest) -> tuple[Refusal, str] | None:
        """Return the refusal if a new node's name is taken or still being checked, or `None`."""
        own, known = self._member_list.own, self._member_list.entry(message.name)
        if message.name == own.name and message.incarnation != own.incarnation:
            return "name", f"the name {own.name} is taken by the node at {own.endpoint}"
        if known is None or not known.status.is_member or known.endpoint == message.endpoint:
            return None
        if known.status is MemberStatus.ALIVE and self._lives(known):
            return "name", f"the name {known.name} is taken by the living node at {known.endpoint}"
        reason = "had the name {} a moment ago, and other nodes check whether it has ended"
        return "busy", f"the node at {known.endpoint} {reason.format(known.name)}"

    def _lives(self, known: MemberEntry) -> bool:
        """Return whether a member sent a message or a refutation since its name was requested."""
        now = self._member_list.now()
        self._doubts = {
            name: each
            for name, each in self._doubts.items()
            if now - each.began < FOUND_OUT_WITHIN_S
        }
        doubt = self._doubts.setdefault(known.name, _Doubt(known, now))
        if known.stamp > doubt.entry.stamp or self._member_list.heard_at(known.name) > doubt.began:
            return True
        if now - doubt.began >= HEARD_WITHIN_S:
            self._member_list.doubt(known.name)
        return False


@dataclass(frozen=True)
class _Probe:
    sender: bytes
    request: ProbeRequest
    reply: Reply
    began: float


class Probes:
    """The probes in progress. The object belongs to the RxThread."""

    def __init__(self, member_list: MemberList, tx: TxThread) -> None:
        self._member_list = member_list
        self._tx = tx
        self._probes: list[_Probe] = []

    def start(self, sender: bytes, request: ProbeRequest, reply: Reply) -> None:
        """Probe a member for another node. Answer at once if the member has just sent a message.

        For one sender, at most `MAX_PROBES_OF_ONE` members are asked at once, each once.
        """
        target = request.target
        entry = self._member_list.entry(target)
        if entry is None or entry.incarnation != request.incarnation:
            return
        if not entry.status.is_member:
            return
        now = self._member_list.now()
        if now - self._member_list.heard_at(target) <= HEARD_WITHIN_S:
            reply(_answer(request))
        elif self._has_room(sender, target):
            self._probes.append(_Probe(sender, request, reply, now))
            self._tx.send_message(target, *self._member_list.roster(target, asks=True))

    def go_on(self) -> bool:
        """Report answered probes to the nodes that requested them. Return whether probes remain."""
        now, probes, self._probes = self._member_list.now(), self._probes, []
        for probe in probes:
            if self._member_list.heard_at(probe.request.target) >= probe.began:
                probe.reply(_answer(probe.request))
            elif now - probe.began < PROBE_WITHIN_S:
                self._probes.append(probe)
        return bool(self._probes)

    def _has_room(self, sender: bytes, target: str) -> bool:
        own = [probe.request.target for probe in self._probes if probe.sender == sender]
        return len(self._probes) < MAX_PROBES and len(own) < MAX_PROBES_OF_ONE and target not in own


def _answer(request: ProbeRequest) -> ProbeAnswer:
    return ProbeAnswer(
        request=request.request, target=request.target, incarnation=request.incarnation
    )
