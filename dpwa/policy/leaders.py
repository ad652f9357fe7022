"""Leaders. All nodes know them without a coordinator.

Each node reports its running mean loss, and forwards the reports of other nodes with every message
to a peer, as in an epidemic. If every node pulls from one random other node in each round, all
nodes know the leader after log2 N + O(log log N) rounds. On average, this takes 6.1, 9.0, 11.5 and
13.8 rounds at N = 16, 64, 256 and 1024. If both nodes of a contact send, 4.2, 6.0, 7.6 and 9.2
rounds are enough. The leader of a set is the node with the lowest running mean of its loss, as in
LSGD (Teng et al., 2019). Sources: A. Demers et al., Epidemic Algorithms for Replicated Database
Maintenance (1987); R. Karp et al., Randomized Rumor Spreading (2000).

Reports of a node are ordered by (incarnation, version), and the maximum counts. So order,
duplicates and delays of messages make no difference. The version is the number of the node's
updates. The incarnation is the time at which the node's process started, so that reports of a
restarted node are newer than all earlier reports. If the clock of its host was set back meanwhile,
the restarted node is ignored until its old report has expired.

Each node counts the age of a report on its own clock, so clocks are never compared. The time on the
wire is not counted. With c contacts per second and t seconds on the wire, a report may outlast its
time by a factor of at most about 1 + e*c*t (e = 2.72, the speed of the fastest of all paths).

The running mean is the sum of the last `window` measured losses, divided by their number. So a slow
worker, whose window is half filled, does not look twice as good as it is. In LSGD, the window is
called averaging size.

The sum is an exact integer, in units of the smallest float above 0, so the mean never drifts,
however long the run is.

>>> loss = RunningLoss(window=3)
>>> for value in (9.0, 3.0, None, 2.0, 1.0):
...     loss.add_loss(value)
>>> loss.mean
2.0
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Collection, Iterable
from heapq import nlargest, nsmallest
from operator import attrgetter
from typing import NamedTuple

from dpwa.errors import UserError
from dpwa.policy.beginners import LEAD, bears_out, is_far_behind


# A frozen dataclass would take three times as long to create, and each message has 32 reports.
class LossReport(NamedTuple):
    node: str
    group: str
    loss: float | None  # running mean; `None`: the node has no loss, so it cannot be the leader
    # start time of its process, such as Unix time in ms; a later process has a higher number
    incarnation: int
    version: int  # number of updates of this process; each version has one loss
    age_s: float  # seconds since the node made the report


class _Heard(NamedTuple):
    """A stored loss report. The leader's report is the smallest, by loss and then by name."""

    loss: float  # inf if the node has no loss
    node: str
    group: str
    incarnation: int
    version: int
    said_at: float  # time of the report, on this node's clock

    def report(self, now: float) -> LossReport:
        loss, node, group, incarnation, version, said_at = self
        known = loss if loss < math.inf else None
        return LossReport(node, group, known, incarnation, version, now - said_at)


class _DeadLeader(NamedTuple):
    incarnation: float  # the last incarnation that is dead
    until: float


SAID_AGAIN_AFTER = 0.25  # share of the time after which a report expires

_newness = attrgetter("incarnation", "version")


class LossReports:
    """The loss reports of this node and of other nodes. Not thread-safe. `now` never decreases.

    Reports older than `forget_after_s` are ignored, so a node that is silent for so long cannot be
    the leader. At most `most` other nodes are stored, and the oldest reports are dropped first.
    """

    def __init__(
        self, own: str, group: str, incarnation: int, forget_after_s: float, most: int = 4096
    ) -> None:
        self._own = own
        self._group = group
        self._incarnation = incarnation
        self._forget_after_s = forget_after_s
        self._most = most
        self._said: _Heard | None = None
        self._heard: dict[str, _Heard] = {}
        self._of_itself: dict[str, _Heard] = {}  # the reports that peers sent of themselves
        self._forgotten: dict[str, _DeadLeader] = {}

    def report_own_loss(self, loss: float | None, version: int, now: float) -> None:
        """Report the loss of this node. Each call makes the report new again."""
        said = LossReport(self._own, self._group, loss, self._incarnation, version, age_s=0.0)
        self._said = _heard(said, now)

    def receive_reports(self, reports: Iterable[LossReport], now: float, sender: str = "") -> None:
        """Store the new reports of a peer. `sender` is its name if this node has asked the peer.

        Reports of this node itself are ignored. So are expired reports, reports with an invalid
        age, and reports of an ended process (see `forget_node`).
        """
        self._drop_aged(now)
        for report in reports:
            if self._is_welcome(report, now):
                heard = _heard(report, now)
                self._take(heard, now)
                if heard.node == sender:
                    self._of_itself[sender] = heard
        excess = len(self._heard) - self._most
        for oldest in nsmallest(excess, self._heard.values(), key=attrgetter("said_at")):
            del self._heard[oldest.node]

    def forget_node(self, node: str, now: float) -> None:
        """Drop the report about an ended or removed node, and ignore copies from other nodes.

        Until all these reports have expired, only reports of a later process of the node count. If
        no report was known, no report counts.
        """
        self._forgotten = {name: kept for name, kept in self._forgotten.items() if now < kept.until}
        earlier = self._forgotten.pop(node, _DeadLeader(math.inf, now))
        heard = self._heard.pop(node, None)
        self._of_itself.pop(node, None)
        incarnation = earlier.incarnation if heard is None else heard.incarnation
        self._forgotten[node] = _DeadLeader(incarnation, now + self._forget_after_s)
        if len(self._forgotten) > self._most:
            del self._forgotten[next(iter(self._forgotten))]

    def select_reports(
        self, now: float, rng: random.Random, most: int = 32
    ) -> tuple[LossReport, ...]:
        """Choose unexpired reports to forward to a peer, at most one report about each node.

        The first are this node itself, the two best nodes of its group, the two best of all nodes,
        and the best of every other group. So contacts between groups spread the leaders of groups
        as fast as the leader of all. Random other reports fill the rest.
        """
        fresh = self._fresh(now)
        first = {heard.node: heard for heard in self._first(fresh, rng)}
        rest = [heard for heard in fresh if heard.node not in first]
        room = max(0, most - len(first))
        chosen = [*first.values(), *rng.sample(rest, min(room, len(rest)))]
        return tuple([heard.report(now) for heard in chosen[:most]])

    def leader(
        self, now: float, group: str | None = None, among: Collection[str] | None = None
    ) -> LossReport | None:
        """Return the report with the lowest recent loss, or `None`. Ties go by name."""
        ranked = (heard for heard in self._fresh(now) if heard.loss < math.inf)
        members = (heard for heard in ranked if group is None or heard.group == group)
        best = min((h for h in members if among is None or h.node in among), default=None)
        return None if best is None else best.report(now)

    def welcome(self, node: str) -> None:
        """Accept reports about a forgotten node again, because the node has returned."""
        self._forgotten.pop(node, None)

    def total_updates(self, now: float, nodes: int, among: Collection[str] | None = None) -> float:
        """Estimate the total updates of `nodes` nodes: mean of the reported updates * node count.

        A node without a report counts as the mean of the other nodes. The estimate may fall, for
        example when a node is forgotten. If more than `nodes` nodes are known, these are counted.
        """
        versions = [
            heard.version for heard in self._current(now) if among is None or heard.node in among
        ]
        if self._said is not None:
            versions.append(self._said.version)  # certain, however old
        return sum(versions) * max(nodes, len(versions)) / max(1, len(versions))

    def is_beginner(self, clock: float, now: float) -> bool:
        """Return whether a node with clock `clock` is far behind other nodes that report a loss.

        A single report that is far ahead of all other reports does not count.
        """
        oldest = now - self._forget_after_s
        said = self._of_itself.values()
        updates = [h.version for h in said if h.said_at > oldest and h.loss < math.inf]
        first, second = (*nlargest(2, updates), 0, 0)[:2]
        is_contradicted = second >= LEAD and not bears_out(second, first)
        return is_far_behind(clock, second if is_contradicted else first)

    def has_groups(self, now: float, among: Collection[str] | None = None) -> bool:
        """Return whether another node is in a different group. `among` are the nodes that count."""
        return any(
            heard.group != self._group and (among is None or heard.node in among)
            for heard in self._current(now)
        )

    def known(self, now: float) -> tuple[LossReport, ...]:
        """Return all reports that are not expired, including this node's, sorted by name."""
        known = (heard.report(now) for heard in self._fresh(now))
        return tuple(sorted(known, key=attrgetter("node")))

    def _first(self, fresh: list[_Heard], rng: random.Random) -> list[_Heard]:
        """Return the reports that `select_reports` puts first, in order. A node may occur twice."""
        ranked = sorted(heard for heard in fresh if heard.loss < math.inf)
        own = [heard for heard in fresh[:1] if heard.node == self._own]
        own_group = [heard for heard in ranked if heard.group == self._group]
        best_of_group = {heard.group: heard for heard in reversed(ranked)}
        best_of_groups = list(best_of_group.values())
        rng.shuffle(best_of_groups)  # so that each group has its turn if there is too little room
        return [*own, *own_group[:2], *ranked[:2], *best_of_groups]

    def _take(self, news: _Heard, now: float) -> None:
        """Store `news` if the stored report about the same node is older, or has expired.

        A report seems younger by its time on the wire each time that a node forwards it. So an
        equal report counts only if it is younger by more than that.
        """
        old = self._heard.get(news.node)
        if old is None:
            is_new = True
        elif (old.incarnation, old.version) == (news.incarnation, news.version):
            is_new = news.said_at - old.said_at > SAID_AGAIN_AFTER * self._forget_after_s
        else:
            has_aged_out = old.said_at <= now - self._forget_after_s
            is_new = has_aged_out or _newness(news) > _newness(old)
        if is_new:
            self._heard[news.node] = news

    def _is_welcome(self, report: LossReport, now: float) -> bool:
        if report.node == self._own or not 0.0 <= report.age_s < self._forget_after_s:
            return False
        kept = self._forgotten.get(report.node)
        return kept is None or now >= kept.until or report.incarnation > kept.incarnation

    def _fresh(self, now: float) -> list[_Heard]:
        """Return all reports that have not expired. This node's report is first."""
        others = self._current(now)
        if self._said is None or now - self._said.said_at >= self._forget_after_s:
            return others
        return [self._said, *others]

    def _current(self, now: float) -> list[_Heard]:
        """Return the unexpired reports about other nodes."""
        oldest = now - self._forget_after_s
        return [heard for heard in self._heard.values() if heard.said_at > oldest]

    def _drop_aged(self, now: float) -> None:
        """Drop reports at twice the age at which they expire. Until then, peers may resend them."""
        oldest = now - 2 * self._forget_after_s
        for said in (self._heard, self._of_itself):
            for name in [name for name, heard in said.items() if heard.said_at <= oldest]:
                del said[name]


def _heard(report: LossReport, now: float) -> _Heard:
    loss = math.inf if report.loss is None else report.loss
    if not math.isfinite(loss):
        loss = math.inf
    said_at = now - report.age_s
    return _Heard(loss, report.node, report.group, report.incarnation, report.version, said_at)


_UNIT_BITS = 1074  # every finite float is a whole number of 2**-1074


class RunningLoss:
    """The mean of the last `window` measured losses. `UserError` for a window below 1."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise UserError(
                f"the window of a running loss is {window}, but must be at least 1 [DPWA-E121]"
            )
        self._window = window
        self._losses: deque[float] = deque(maxlen=window)
        self._total = 0  # sum of the finite losses, in units
        self._infinite = 0

    def add_loss(self, loss: float | None) -> None:
        """Add a loss, and drop the oldest loss if the window was full. `None` is ignored."""
        if loss is None:
            return
        units, infinite = _in_units(loss)
        if len(self._losses) == self._window:
            old_units, old_infinite = _in_units(self._losses[0])
            units, infinite = units - old_units, infinite - old_infinite
        # Both change in one step, so that an interrupt cannot come in between.
        self._total, self._infinite = self._total + units, self._infinite + infinite
        self._losses.append(loss)

    @property
    def mean(self) -> float | None:
        """The correctly rounded mean. `None`: no loss was measured. `inf`: a loss is not finite."""
        if not self._losses:
            return None
        if self._infinite:
            return math.inf
        return self._total / (len(self._losses) << _UNIT_BITS)


def _in_units(loss: float) -> tuple[int, int]:
    if not math.isfinite(loss):
        return 0, 1
    numerator, denominator = loss.as_integer_ratio()  # the denominator is a power of 2
    return numerator << (_UNIT_BITS + 1 - denominator.bit_length()), 0
