"""LSGD pulls every node toward the leader of its group, and toward the leader of all nodes."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from dpwa.algorithms.base import Algorithm, Ask, Received, Values, View, register_algorithm
from dpwa.types import Fraction, StrictModel, refusal

Period = Annotated[int, Field(ge=1)]


LOCAL_PERIOD, GLOBAL_PERIOD, NODES = 4, 16, 4  # the periods for up to this number of nodes


class LSGDOptions(StrictModel):
    """Options of `lsgd`. Periods are in updates of all N nodes together."""

    c1: Fraction = Field(
        default=0.1,
        description="fraction of the distance to the leader of the group that a node moves at the "
        "end of a local period",
    )
    c2: Fraction = Field(
        default=0.1,
        description="fraction of the distance to the leader of all nodes that a node moves at the "
        "end of a global period",
    )
    p1: Fraction = Field(
        default=0.1,
        description="strength of the pull toward the leader of the group. After each step, a node "
        "moves N*p1/local_period (at most p1) of its distance to the leader. N is the number of "
        "nodes",
    )
    p2: Fraction = Field(
        default=0.1,
        description="strength of the pull toward the leader of all nodes. After each step, a node "
        "moves N*p2/global_period (at most p2) of its distance to the leader. N is the number of "
        "nodes",
    )
    local_period: Period | None = Field(
        default=None,
        description="length of a local period, in updates of all nodes together. null means 4 if "
        "global_period is set. If both periods are null, local_period is the number of nodes, "
        "rounded up to a multiple of 4",
    )
    global_period: Period | None = Field(
        default=None,
        validate_default=True,
        description="length of a global period, in updates of all nodes together. The length must "
        "be a multiple of local_period. null means 16 if local_period is set. If both periods are "
        "null, global_period is 4 times local_period",
    )

    @field_validator("global_period")
    @classmethod
    def _is_a_multiple(cls, period: int | None, known: ValidationInfo) -> int | None:
        local = known.data.get("local_period")
        if period is None and local is None:
            return None
        period, local = period or GLOBAL_PERIOD, local or LOCAL_PERIOD
        if period % local:
            raise refusal(f"a multiple of local_period ({local})")
        return period

    def periods(self, nodes: int) -> tuple[int, int]:
        """Return the lengths of a local and a global period, in updates of all `nodes` nodes.

        Periods that are not set are 4k and 16k with k = ceil(N/4). So, for any N, each node jumps
        about as often per update of its own as one of four nodes does. If only one period is set,
        the other is 4 or 16.
        """
        if self.global_period is None:
            scale = max(1, math.ceil(nodes / NODES))
            return LOCAL_PERIOD * scale, GLOBAL_PERIOD * scale
        return self.local_period or LOCAL_PERIOD, self.global_period


@register_algorithm("lsgd")
class LSGD(Algorithm):
    """Leader stochastic gradient descent (LSGD) without a central server.

    When the updates of all N nodes together reach the next multiple of `local_period`, every node
    jumps toward the leader y of its group, x = (1-c1)*x + c1*y. At multiples of `global_period`, it
    then jumps toward the leader of all nodes, with c2. After every optimizer step, before it
    publishes, a node is pulled toward its last snapshots of these leaders, first the one of
    all nodes: x += p*N/period * (y - x). So the pull is about p over a period. There is no pull
    before the first jump. A leader is pulled toward its own parameters at the last jump that it
    led. With one group, or equal periods, there is only the global part. In every local period,
    buffers become the mean of the newest buffers that all nodes have published.

    Source: Teng et al., Leader Stochastic Gradient Descent for Distributed Training of Deep
    Learning Models (2019), and its program, whose periods count the updates of one node. The leader
    is the node with the lowest running mean of its loss.
    """

    options_model = LSGDOptions
    follows_leaders = True
    uses_rule = False
    repeats = True
    needs_whole = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._done = {False: 0, True: 0}  # passed periods, by whether the period is the global one
        self._lengths: dict[bool, int] = {}  # the lengths of the counted periods
        self._asked: dict[bool, str] = {}  # the leaders whose snapshots are requested
        self._seen: dict[bool, Values] = {}

    def publishes(self, view: View) -> Values | None:
        """Pull the model toward the last snapshots of the leaders, and return the model."""
        for is_global, period in reversed(self._periods(view)):
            if is_global in self._seen:
                pull = self.options.p2 if is_global else self.options.p1
                view.model.lerp_(self._seen[is_global], pull / _own_updates(view, period))
        return view.model

    def asks(self, view: View) -> Ask | None:
        """Ask the group's leader after a local period, the global leader after a global one."""
        self._asked = {}
        for is_global in self._passed(view):
            leader = view.leader(of_all=is_global)
            if leader == view.name:
                self._see(is_global, view.model)
            elif leader is not None:
                self._asked[is_global] = leader
        shortest = min(period for _, period in self._periods(view))
        self.averages_buffers = view.updates % round(_own_updates(view, shortest)) == 0
        asks = [Ask(leader) for leader in dict.fromkeys(self._asked.values())]
        self.more = tuple(asks[1:])
        return asks[0] if asks else None

    def merge(self, view: View, received: Received) -> float:  # noqa: ARG002
        """Move toward the leader, and store its snapshot for the pull after later steps.

        If the leader of the group is also the leader of all nodes, move twice.
        """
        factor = 0.0
        for is_global in [kind for kind, name in self._asked.items() if name == received.peer]:
            self._seen[is_global] = received.values(into=self._seen.get(is_global))
            c = self.options.c2 if is_global else self.options.c1
            factor += (1.0 - factor) * received.merge(c, buffers=0.0)
        return factor

    def _see(self, is_global: bool, leader: Values) -> None:
        if is_global in self._seen:
            self._seen[is_global].copy_(leader)
        else:
            self._seen[is_global] = leader.clone()

    def _passed(self, view: View) -> list[bool]:
        """Return the kinds of the periods that have just ended: `False` is local, `True` global."""
        total, passed = view.total_updates(), []
        for is_global, period in self._periods(view):
            periods, done = int(total // period), self._done[is_global]
            if (
                self._lengths.setdefault(is_global, period) != period
            ):  # there are more or fewer nodes
                self._lengths[is_global], self._done[is_global] = period, periods
                continue
            if periods > done:
                passed.append(is_global)
            # The total falls when a node leaves. A fall by less than a period is only a late
            # report.
            if periods > done or periods < done - 1:
                self._done[is_global] = periods
        return passed

    def _periods(self, view: View) -> list[tuple[bool, int]]:
        local_period, global_period = self.options.periods(len(view.peers) + 1)
        if view.has_groups() and local_period < global_period:
            return [(False, local_period), (True, global_period)]
        return [(True, global_period)]


def _own_updates(view: View, period: int) -> float:
    """Return one node's mean number of updates in a period of all nodes' updates, at least 1."""
    return max(1.0, period / (len(view.peers) + 1))
