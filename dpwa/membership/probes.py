"""Probes: members that this node asks for others, who have not heard from them for a while."""

from __future__ import annotations

from dataclasses import dataclass

from dpwa.membership.member_list import MemberList
from dpwa.node.serving.service import Reply
from dpwa.node.threads import NodeHandle
from dpwa.wire.members import ProbeAnswer, ProbeRequest

MOST_PROBES = 16  # at once; whoever asks for more is asking others, too
MOST_OF_ONE = 8  # of these for the same member
HEARD_WITHIN_S = 1.0  # such a member need not be asked
ANSWER_WITHIN_S = 2.0


@dataclass(frozen=True)
class _Probe:
    sender: bytes
    request: ProbeRequest
    reply: Reply
    heard_after: float
    expires: float


class Probes:
    """The probes under way; of the RxThread.

    Args:
        member_list: of this node.
        node_handle: by which members are asked.
    """

    def __init__(self, member_list: MemberList, node_handle: NodeHandle) -> None:
        self._member_list = member_list
        self._node_handle = node_handle
        self._probes: list[_Probe] = []

    def start(self, sender: bytes, request: ProbeRequest, reply: Reply) -> None:
        """Ask a member, unless it was heard from just now; one that is none is not asked.

        Args:
            sender: who wants to know; it has at most `MOST_OF_ONE` asked at once, and none twice.
            request: of whom.
            reply: to the sender.
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
            self._probes.append(_Probe(sender, request, reply, now, now + ANSWER_WITHIN_S))
            self._node_handle.tell(target, *self._member_list.roster(target, asks=True))

    def go_on(self) -> bool:
        """Say who has answered; return whether others may still do so."""
        now, probes, self._probes = self._member_list.now(), self._probes, []
        for probe in probes:
            if self._member_list.heard_at(probe.request.target) >= probe.heard_after:
                probe.reply(_answer(probe.request))
            elif now < probe.expires:
                self._probes.append(probe)
        return bool(self._probes)

    def _has_room(self, sender: bytes, target: str) -> bool:
        own = [probe.request.target for probe in self._probes if probe.sender == sender]
        return len(self._probes) < MOST_PROBES and len(own) < MOST_OF_ONE and target not in own


def _answer(request: ProbeRequest) -> ProbeAnswer:
    return ProbeAnswer(
        request=request.request, target=request.target, incarnation=request.incarnation
    )
