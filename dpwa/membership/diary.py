"""Diary: has the members written down that a node knows, for its next start."""

from __future__ import annotations

import math
from functools import partial

from dpwa.config.endpoints import Seed
from dpwa.membership.context import MembershipContext
from dpwa.membership.errands import Errands
from dpwa.membership.member_list import MemberList

SAVE_EVERY_S = 1.0
SAVED_WITHIN_S = 1.0
SAVING = "members"  # the errand


class Diary:
    """Keeps the file of remembered members; belongs to the TxThread.

    Args:
        member_list: of this node.
        context: of this node; without a memory nothing is written.
        errands: write the file, which may take long.
    """

    def __init__(
        self, member_list: MemberList, context: MembershipContext, errands: Errands
    ) -> None:
        self._member_list = member_list
        self._memory = context.memory
        self._clock = context.runtime
        self._errands = errands
        self._from_before = context.remembered
        self._saved_changes = 0
        self._saved_at = -math.inf

    def is_told(self) -> None:
        """Forget those of the last start: somebody who knows better has let this node in."""
        self._from_before = ()

    def keep(self) -> None:
        """Write down who is there, if that has changed; never more than once a second."""
        changes, now = self._member_list.changes, self._clock.now()
        if self._memory is None or changes == self._saved_changes:
            return
        if now - self._saved_at < SAVE_EVERY_S:
            return
        if self._errands.start(SAVING, partial(self._memory.write, self._members())):
            self._saved_changes, self._saved_at = changes, now

    def end(self) -> None:
        """Write down what has changed last."""
        self._errands.finish(SAVING, SAVED_WITHIN_S)
        if self._memory is not None and self._member_list.changes != self._saved_changes:
            self._memory.write(self._members())

    def _members(self) -> tuple[Seed, ...]:
        known = self._member_list.all_known()
        found = {entry.name: Seed(entry.endpoint, entry.name) for entry in known}
        for seed in self._from_before:
            found.setdefault(seed.name, seed)
        return tuple(found.values())
