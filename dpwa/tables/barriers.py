"""Barriers for the members of a group: a late member is not excluded.

Every member counts the barriers that it has passed, and reports whether it waits in a barrier. A
member passes a barrier when all other members wait in this barrier or have passed it. So a member
that was away catches up. A collective of the group would exclude late members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpwa.tables.channels import Item
from dpwa.tables.directory import Told
from dpwa.wire.tables import TableArrived

ASK_AGAIN_S = 0.5  # between reports of a waiting member, which also find stopped members


class Barriers:
    def __init__(self, own: str, say_to_all: Callable[[Item], None]) -> None:
        self._own = own
        self._say_to_all = say_to_all
        self._has_part = False
        self._members: dict[str, tuple[int, bool]] = {}
        self._told_at = 0.0
        self.passed = 0  # the number of barriers that this node has passed
        self.is_waiting = False

    @property
    def known(self) -> int | None:
        """The number of barriers passed, or `None` before this node's first membership view."""
        return self.passed if self._has_part else None

    def missed(self, told: Mapping[str, Told]) -> int:
        """Return the number of barriers that the other nodes have passed without this node."""
        newest = max(one.passed or 0 for one in told.values())
        return max(0, newest - self.passed - self.is_waiting)

    def begin_view(self, told: Mapping[str, Told]) -> None:
        """Start a new membership view. `told` has the reports of all members, by name."""
        newest = max(one.passed or 0 for one in told.values())
        if not self._has_part:
            self.passed, self._has_part = newest, True
        self._members = {
            name: (newest if one.passed is None else one.passed, one.is_waiting)
            for name, one in told.items()
            if name != self._own
        }

    def record_passed(self, name: str, passed: int, *, is_waiting: bool) -> None:
        self._members[name] = passed, is_waiting

    def arrive(self, now: float) -> None:
        if not self.is_waiting:
            self.is_waiting, self._told_at = True, now - ASK_AGAIN_S

    def give_up(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            self._tell()

    def advance(self, now: float) -> bool:
        """Report that this node waits in a barrier. Return whether it has passed the barrier."""
        if not self.is_waiting:
            return False
        if now - self._told_at >= ASK_AGAIN_S:
            self._told_at = now
            self._tell()
        here = self.passed
        states = self._members.values()
        if not all(passed > here or (passed == here and waits) for passed, waits in states):
            return False
        self.passed, self.is_waiting = here + 1, False
        self._tell()
        return True

    def absent(self) -> list[str]:
        """Return the members that have not yet reached this node's barrier. Thread-safe."""
        here, states = self.passed, list(self._members.items())
        return [name for name, state in states if state < (here, True)]

    def _tell(self) -> None:
        fields = {"passed": self.passed, "is_waiting": self.is_waiting}
        self._say_to_all(Item(TableArrived, fields))
