"""Names: to whom one is given, when another process had it before."""

from __future__ import annotations

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

    A member keeps its name. Whether it lives, a connection does not tell: that of a process that
    was killed stays up for some seconds if children of it hold the socket, or if its host is gone;
    and where there is none, that may be the link only. So it is suspected, and all ask it. The
    newcomer has to wait until it has contradicted, and lives, or the suspicion is over, and it
    does not.

    Args:
        circle: of this node.
        clock: what time is taken from.
    """

    def __init__(self, circle: Circle, clock: Clock) -> None:
        self._circle = circle
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
        """Tell whether a member lives for sure: it has contradicted a doubt."""
        now = self._clock.now()
        self._doubts = {name: each for name, each in self._doubts.items() if now < each.expires}
        doubt = self._doubts.setdefault(known.name, _Doubt(known, now + FOUND_OUT_WITHIN_S))
        return known.stamp > doubt.entry.stamp
