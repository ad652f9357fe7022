"""Names: to whom one is given, when another process had it before."""

from __future__ import annotations

from dataclasses import dataclass

from dpwa.membership.member_list import MemberList
from dpwa.policy.members.states import MemberEntry, MemberStatus
from dpwa.wire.members import JoinRequest, Refusal

HEARD_WITHIN_S = 1.0  # or it is suspected
FOUND_OUT_WITHIN_S = 10.0  # more than a suspicion takes


@dataclass(frozen=True)
class _Doubt:
    entry: MemberEntry
    began: float
    expires: float


class Names:
    """Tells newcomers whether they may have their names; on one thread.

    A member keeps its name. Whether it lives, a connection does not tell: that of a process that
    was killed stays up for some seconds if children of it hold the socket, or if its host is gone;
    and where there is none, that may be the link only. So the newcomer has to wait until the member
    is heard from, and lives; or else it is suspected, some ask it, and it contradicts, or does not.

    Args:
        member_list: of this node.
    """

    def __init__(self, member_list: MemberList) -> None:
        self._member_list = member_list
        self._doubts: dict[str, _Doubt] = {}

    def refusal(self, message: JoinRequest) -> tuple[Refusal, str] | None:
        """Say why a newcomer cannot have its name, or not yet; `None` if it can."""
        own, known = self._member_list.own, self._member_list.entry(message.name)
        if message.name == own.name and message.incarnation != own.incarnation:
            return "name", f"the name {own.name} is taken, by the node at {own.endpoint}"
        if known is None or not known.status.is_member or known.endpoint == message.endpoint:
            return None
        if known.status is MemberStatus.ALIVE and self._lives(known):
            return "name", f"the name {known.name} is taken, by the living node at {known.endpoint}"
        reason = "had the name {} a moment ago; whether it has ended is being found out"
        return "busy", f"the node at {known.endpoint} {reason.format(known.name)}"

    def _lives(self, known: MemberEntry) -> bool:
        """Tell whether a member was heard from, or has contradicted, since somebody else came."""
        now = self._member_list.now()
        self._doubts = {name: each for name, each in self._doubts.items() if now < each.expires}
        new = _Doubt(known, now, now + FOUND_OUT_WITHIN_S)
        doubt = self._doubts.setdefault(known.name, new)
        if known.stamp > doubt.entry.stamp or self._member_list.heard_at(known.name) > doubt.began:
            return True
        if now - doubt.began >= HEARD_WITHIN_S:
            self._member_list.doubt(known.name)
        return False
