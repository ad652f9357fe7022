"""LSGD: every worker is pulled toward the leader of its group, and toward the leader of all."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from dpwa.algorithms.base import Algorithm, Ask, Received, Values, View, register_algorithm
from dpwa.types import Fraction, StrictModel, refusal

Period = Annotated[int, Field(ge=1)]


LOCAL_PERIOD, GLOBAL_PERIOD, NODES = 4, 16, 4  # periods for up to so many nodes


class LSGDOptions(StrictModel):
    """Options of `lsgd`; periods are in updates of all workers together."""

    c1: Fraction = Field(default=0.1, description="how far to jump to the leader of the group")
    c2: Fraction = Field(default=0.1, description="how far to jump to the leader of all")
    p1: Fraction = Field(default=0.1, description="pull toward it, spread over a local period")
    p2: Fraction = Field(default=0.1, description="the same for the leader of all")
    local_period: Period | None = Field(
        default=None,
        description="updates of all nodes between jumps to the local leader; null = 4, and with "
        "more than 4 nodes as many as there are nodes, rounded up to a multiple of 4",
    )
    global_period: Period | None = Field(
        default=None,
        validate_default=True,
        description="the same for the global one; a multiple of local_period; null = 4 times that",
    )

    @field_validator("global_period")
    @classmethod
    def _is_a_multiple(cls, period: int | None, known: ValidationInfo) -> int | None:
        local = known.data.get("local_period")
        if period is None and local is None:
            return None
        period, local = period or GLOBAL_PERIOD, local or LOCAL_PERIOD
        if period % local:
            raise refusal(f"a multiple of local_period, {local}")
        return period

    def periods(self, nodes: int) -> tuple[int, int]:
        """Return the local and the global period among so many nodes.

        Those that are not set are 4k and 16k with k = ceil(N/4), so that whatever N is, each node
        jumps about as often per update of its own as one of four does. If one of them is set, the
        other is 4 or 16.
        """
        if self.global_period is None:
            scale = max(1, math.ceil(nodes / NODES))
            return LOCAL_PERIOD * scale, GLOBAL_PERIOD * scale
        return self.local_period or LOCAL_PERIOD, self.global_period


@register_algorithm("lsgd")
class LSGD(Algorithm):
    """Leader stochastic gradient descent, without a server that decides.

    When the updates of all workers together reach another multiple of `local_period`, every worker
    jumps toward the leader of its group, x = (1-c1)*x + c1*y; at multiples of `global_period`
    toward the leader of all, with c2. After every optimizer step it is pulled by p1 / local_period
    and p2 / global_period toward the snapshots of these leaders that it saw last, never before the
    first one. With one group, or equal periods, there is the global part only. Buffers are averaged
    at every jump. A leader is not pulled toward its own past.

    Source: Teng et al., Leader Stochastic Gradient Descent for Distributed Training of Deep
    Learning Models (2019). The leader is the node with the lowest running mean of its loss.
    """

    options_model = LSGDOptions
    follows_leaders = True
    keeps = True
    uses_rule = False
    repeats = True
    needs_whole = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._done = {False: 0, True: 0}  # periods passed; keys: whether it is the global one
        self._lengths: dict[bool, int] = {}  # of the periods that were counted
        self._due: bool | None = None  # which leader is asked for
        self._seen: dict[bool, Values] = {}

    def asks(self, view: View) -> Ask | None:
        """Ask a leader if a period has passed, the global one first."""
        self._due = self._passed(view)
        if self._due is None:
            return None
        leader = view.leader(of_all=self._due)
        if leader == view.name:
            self._seen.pop(self._due, None)
        return None if leader in (None, view.name) else Ask(leader)

    def merge(self, view: View, received: Received) -> float:  # noqa: ARG002
        """Jump toward the leader, and remember it."""
        is_global = bool(self._due)
        self._seen[is_global] = received.values(into=self._seen.get(is_global))
        return received.merge(self.options.c2 if is_global else self.options.c1, buffers=0.5)

    def after_step(self, view: View) -> None:
        """Pull toward the leaders that were seen last."""
        o = self.options
        local_period, global_period = o.periods(len(view.peers) + 1)
        for is_global, leader in self._seen.items():
            pull = o.p2 / global_period if is_global else o.p1 / local_period
            view.model.lerp_(leader, pull)

    def _passed(self, view: View) -> bool | None:
        total, due = view.total_updates(), None
        for is_global, period in self._periods(view):
            periods, done = int(total // period), self._done[is_global]
            if (
                self._lengths.setdefault(is_global, period) != period
            ):  # there are more or fewer nodes
                self._lengths[is_global], self._done[is_global] = period, periods
                continue
            if periods > done:
                due = is_global
            # The total falls when a node leaves; by less than a period, it is only news jittering.
            if periods > done or periods < done - 1:
                self._done[is_global] = periods
        return due

    def _periods(self, view: View) -> list[tuple[bool, int]]:
        local_period, global_period = self.options.periods(len(view.peers) + 1)
        if view.has_groups():
            return [(False, local_period), (True, global_period)]
        return [(True, global_period)]
