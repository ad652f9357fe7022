"""One simulated node, as its algorithm sees it, on numpy arrays."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from dpwa.algorithms import Algorithm, Ask
from dpwa.config import Config
from dpwa.data.arrays import ArrayValues
from dpwa.node.assembly import algorithm_of
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.interpolation import Interpolation, interpolation, merge_factor, mixed_clock
from dpwa.policy.leaders import LossReports, RunningLoss
from dpwa.policy.push_sum import Mass
from dpwa.policy.transactions import REMEMBER_S, Transactions
from dpwa.types import StrictModel, TrainingProgress

WHOLE = slice(None)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ArraySnapshot:
    """What a node has published; versions count from 1."""

    values: ArrayValues
    buffers: ArrayValues
    progress: TrainingProgress
    version: int


@dataclass(frozen=True)
class ArrayArrival:
    """A snapshot that has come to a node, with this one's own of the round."""

    peer: Participant
    snapshot: ArraySnapshot
    published: ArrayValues | None  # by this node in the round
    part: slice = field(default_factory=lambda: WHOLE)  # which parameters were fetched
    units: int = 0  # of push-sum mass that came with it


@dataclass
class ArrayReceived:
    """`dpwa.algorithms.Received`: an arrival with its factor."""

    peer: str
    factor: float
    published: ArrayValues
    snapshot: ArraySnapshot
    own: Participant
    part: slice
    ahead: float = 0.0  # all are streamed

    @property
    def standing(self) -> TrainingProgress:
        return self.snapshot.progress

    def merge(self, factor: float, *, delta: float = 0.0, buffers: float | None = None) -> float:
        own, part = self.own.model.array[self.part], self.part
        origin = delta * self.published.array[part] + (1.0 - delta) * own if delta else own
        own += factor * (self.snapshot.values.array[part] - origin)
        self.merge_buffers(factor if buffers is None else buffers)
        return factor

    def values(self, into: Any = None) -> Any:
        if into is None:
            return self.snapshot.values.clone()
        into.copy_(self.snapshot.values)
        return into

    def merge_buffers(self, factor: float) -> None:
        self.own.buffers.lerp_(self.snapshot.buffers, factor)


@dataclass(frozen=True)
class NodeRules:
    """What all nodes of a run go by."""

    make_algorithm: Callable[[], Algorithm]
    rule: Interpolation
    rule_options: StrictModel
    divergence_threshold: float
    fetch_probability: float
    keeps_local_step: bool
    loss_window: int
    forget_after_s: float  # how long news of leaders lasts
    minds_beginners: bool  # who is far behind takes over what others have; else all are merged

    @classmethod
    def of(cls, config: Config) -> NodeRules:
        return cls(
            make_algorithm=lambda: algorithm_of(config),
            rule=interpolation(config.interpolation),
            rule_options=config.options_of(config.interpolation),
            divergence_threshold=config.divergence_threshold,
            fetch_probability=config.fetch_probability,
            keeps_local_step=config.merge == "delta",
            loss_window=config.loss_window,
            forget_after_s=config.leader_silence_s,
            minds_beginners=True,
        )


class Others(Sequence[str]):
    """All names but one, without a copy of them."""

    def __init__(self, names: Sequence[str], own: int) -> None:
        self._names = names
        self._own = own

    def __len__(self) -> int:
        return len(self._names) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        return self._names[position + (position >= self._own)]


class Participant:
    """`dpwa.algorithms.View`: one node, with all that is its own.

    It begins at `array`, shape (D,), which has its parameters from now on.
    """

    keeps_history = False

    def __init__(
        self,
        number: int,
        names: Sequence[str],
        array: Floats,
        rules: NodeRules,
        *,
        group: str = "",
        seed: int = 0,
        now: Callable[[], float],
    ) -> None:
        self.name = names[number]
        self.number = number
        self.group = group
        self.peers: Sequence[str] = Others(names, number)
        self.model = ArrayValues(array)
        self.buffers = ArrayValues(np.zeros(1))  # the floating ones, here one number
        self.rng = random.Random(f"{seed}/{self.name}")
        self.fetch_probability = rules.fetch_probability
        self.keeps_local_step = rules.keeps_local_step
        self.asks_leader = rules.rule.asks_leader
        self.asked: list[Ask] = []  # if `keeps_history`
        self.merged: list[tuple[str, float]] = []  # peers and factors, if `keeps_history`
        self.merges = 0  # how many changed something
        self.loss: float | None = None  # of its last step
        self.clock = 0.0  # interpolated at each merge, like the parameters
        self.updates = 0  # with the one under way; never interpolated
        self._rules = rules
        self._now = now
        self._incarnation = 0
        self.begin()

    def begin(self) -> None:
        """Begin as a new process does, with the parameters as they are."""
        rules = self._rules
        self._incarnation += 1
        self.algorithm = rules.make_algorithm()
        self.follows = self.algorithm.follows_leaders or self.asks_leader
        self.reports = LossReports(self.name, self.group, self._incarnation, rules.forget_after_s)
        self.transactions = Transactions(self.name, is_exclusive=True, remember_s=REMEMBER_S)
        self.mass = Mass()
        self.snapshot: ArraySnapshot | None = None
        self.published: ArrayValues | None = None  # in this round
        self.inbox: list[ArrayArrival] = []
        self._mean_loss = RunningLoss(rules.loss_window)

    @property
    def x(self) -> Floats:
        return self.model.array

    @property
    def newest(self) -> ArraySnapshot:
        """The snapshot that others read; LookupError if nothing was published yet."""
        if self.snapshot is None:
            raise LookupError(f"{self.name} has published nothing yet")
        return self.snapshot

    def leader(self, *, of_all: bool = True) -> str | None:
        """Return the node with the lowest running loss, of all or of the own group."""
        best = self.reports.leader(self._now(), None if of_all else self.group)
        return None if best is None else best.node

    def has_groups(self) -> bool:
        """Tell whether the nodes belong to more than one group, as far as is known."""
        return self.reports.has_groups(self._now())

    def total_updates(self) -> float:
        """Return how many updates all have made together, as far as the news goes."""
        return self.reports.total_updates(self._now(), len(self.peers) + 1)

    def publish(self) -> None:
        """Do what `update_send` does first."""
        self.updates += 1
        self.clock += 1.0
        if self.follows:
            self._mean_loss.add(self.loss)
            self.reports.tell(self._mean_loss.mean, self.updates, self._now())
        values = self.algorithm.publishes(self)
        self.published = None if values is None else cast(ArrayValues, values).clone()
        if self.published is not None:
            progress = TrainingProgress(self.clock, self.loss)
            buffers = self.buffers.clone()
            self.snapshot = ArraySnapshot(self.published, buffers, progress, self.updates)
            self.mass.published()

    def asks(self) -> list[Ask]:
        """Return whom the algorithm wants to ask now, one after the other."""
        ask = self.algorithm.asks(self)
        asks = [] if ask is None else [ask, *self.algorithm.more]
        if self.keeps_history:
            self.asked += asks
        return asks

    def merge(self) -> None:
        """Do what `update_wait` does: end the step, and merge what has come."""
        self.algorithm.after_step(self)
        for arrival in self.inbox:
            self._merge(arrival)
        self.inbox.clear()

    def take_over(self, donor: Participant) -> None:
        """Go on from where another node is, as a new process."""
        self.model.copy_(donor.model)
        self.buffers.copy_(donor.buffers)
        self.clock = donor.clock
        self.begin()

    def _merge(self, arrival: ArrayArrival) -> None:
        theirs, factor = arrival.snapshot.progress, self._factor(arrival)
        if self._rules.minds_beginners and not arrival.units:
            if is_far_behind(theirs.clock, self.clock):
                return
            is_refused = self.algorithm.uses_rule and factor == 0.0
            if is_far_behind(self.clock, theirs.clock) and not is_refused:
                self._jump_to(arrival)
                return
        published = self.model if arrival.published is None else arrival.published
        received = ArrayReceived(
            arrival.peer.name,
            factor,
            published,
            arrival.snapshot,
            self,
            arrival.part,
        )
        factor = self.algorithm.merge(self, received)
        share = 1.0 if arrival.part == WHOLE else len(self.x[arrival.part]) / len(self.x)
        self.clock = mixed_clock(self.clock, theirs.clock, factor * share)
        self._count(arrival.peer.name, factor)

    def _jump_to(self, arrival: ArrayArrival) -> None:
        """Take all of who is far ahead, and begin anew with the algorithm."""
        self.model.copy_(arrival.snapshot.values)
        self.clock = arrival.snapshot.progress.clock
        self.algorithm = self._rules.make_algorithm()
        self._count(arrival.peer.name, 1.0)

    def _factor(self, arrival: ArrayArrival) -> float:
        """Return the factor to merge with; mass that has come counts as received."""
        if arrival.units:
            factor = self.mass.factor(arrival.units)
            self.mass.received(arrival.units)
            return factor
        own = TrainingProgress(self.clock, self.loss)
        rules = self._rules
        return merge_factor(
            rules.rule,
            rules.rule_options,
            own,
            arrival.snapshot.progress,
            rules.divergence_threshold,
        )

    def _count(self, peer: str, factor: float) -> None:
        self.merges += factor > 0.0
        if self.keeps_history:
            self.merged.append((peer, factor))
