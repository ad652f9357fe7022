"""Names: to whom one is given, when another process had it before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpwa.clock import Clock
from dpwa.membership.circle import Circle
from dpwa.policy.member_states import Entry, Status
from dpwa.wire.members import JoinRequest, Refusal

FOUND_OUT_WITHIN_S = 10.0  # more than a suspicion takes


@dataclass(frozen=True)
class _Doubt:
    entry: Entry
    expires: float


class Names:
    """Tells newcomers whether they may have their names; on one thread.

    A member keeps its name. If this node has no connection to it, that may be the link only: then
    it is suspected, so that all others ask it, and the newcomer has to wait until it has
    contradicted, and lives, or the suspicion is over, and it does not.

    Args:
        circle: of this node.
        reaches: tells whether there is a connection to a member.
        clock: what time is taken from.
    """

    def __init__(self, circle: Circle, reaches: Callable[[str], bool], clock: Clock) -> None:
        self._circle = circle
        self._reaches = reaches
        self._clock = clock
        self._doubts: dict[str, _Doubt] = {}

    def refusal(self, message: JoinRequest) -> tuple[Refusal, str] | None:
        """Say why a newcomer cannot have its name, or not yet; `None` if it can."""
        own, known = self._circle.own, self._circle.entry(message.name)
        if message.name == own.name and message.incarnation != own.incarnation:
            return "name", f"the name {own.name} is taken, by the node at {own.endpoint}"
        if known is None or not known.status.is_member or known.endpoint == message.endpoint:
            return None
        if known.status is Status.ALIVE and self._is_certain(known):
            return "name", f"the name {known.name} is taken, by the living node at {known.endpoint}"
        self._circle.doubt(known.name)
        reason = "had the name {} a moment ago; whether it has ended is being found out"
        return "busy", f"the node at {known.endpoint} {reason.format(known.name)}"

    def _is_certain(self, known: Entry) -> bool:
        """Tell whether a member lives for sure: it is connected, or has contradicted a doubt."""
        if self._reaches(known.name):
            return True
        now = self._clock.now()
        self._doubts = {name: each for name, each in self._doubts.items() if now < each.expires}
        doubt = self._doubts.setdefault(known.name, _Doubt(known, now + FOUND_OUT_WITHIN_S))
        return known.stamp > doubt.entry.stamp
