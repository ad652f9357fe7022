"""Every node goes at its own pace, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpwa.algorithms import Ask, Terms
from dpwa.sim.churn import NodeChange, NodeChangeKind
from dpwa.sim.conditions import Conditions
from dpwa.sim.rules.fetches import AsyncFetch, Exchanges, Fetches
from dpwa.sim.rules.fleet import Fleet, no_search_for_cycles
from dpwa.sim.rules.participant import Participant
from dpwa.sim.rules.wire_sizes import WireSizes
from dpwa.sim.samples import Moment, RunRecorder
from dpwa.sim.scenario import RunSpec
from dpwa.sim.tasks import TrainingTask
from dpwa.virtual_network import VirtualNetwork

LEAST_STEP_S = 1e-6  # time passes, however fast nodes are
LOOKS_PER_ROUND = 4  # at whether the target is reached
ASK_AFTER = 256  # updates of all nodes: whether to go on


@dataclass(eq=False)
class _Round:
    node: Participant
    process: int
    step_ends_s: float
    asks: list[Ask]  # that are still to be made
    fetch: AsyncFetch | None = None
    has_stepped: bool = False


class AsynchronousRun:
    """All nodes of a run; they begin at `x`, shape (N, D).

    A node publishes and asks, takes its step, waits for what it has asked for if that has not come,
    merges, and begins again.
    """

    def __init__(
        self,
        spec: RunSpec,
        conditions: Conditions,
        task: TrainingTask,
        sizes: WireSizes,
        x: NDArray[np.float64],
    ) -> None:
        self._network = VirtualNetwork(spec.scenario.seed)
        clock = self._network.clock
        self.fleet = Fleet(spec, conditions, task, x, clock.now)
        self._conditions = conditions
        kind = type(self.fleet.participants[0].algorithm)
        fetches = Exchanges if kind.terms is Terms.EXCHANGE else Fetches
        self._fetches = fetches(spec.config, conditions, self.fleet, sizes, self._network)
        self._changes: Iterator[NodeChange] = conditions.events()
        self._next = next(self._changes, None)
        self._still_to_start = len(x)
        self._training: set[int] = set()  # living nodes that have not taken all their steps
        self._rounds = math.inf
        self._looks_at = math.inf  # updates of all nodes
        self._updates = 0
        self._is_over = False

    def run(self, recorder: RunRecorder, rounds: float, seconds: float) -> Moment:
        """Let time pass until all have taken so many rounds, or the recorder has enough."""
        self._recorder, self._rounds = recorder, rounds
        with no_search_for_cycles():
            for time_s, cut_off in self._conditions.partition_changes():
                if cut_off is not None:
                    self._network.call_later(time_s, self._fetches.streams.cut)
            self._next_change()
            self._network.run_until(0.0)
            self._look(is_due=True)
            if not self._is_over:
                self._network.run_until(seconds)
        self._fetches.streams.stop_all()
        self._network.forget_all()
        return self.fleet.moment(self._network.clock.now())

    def _next_change(self) -> None:
        if self._next is not None:
            moment = self._next.time_s
            delay_s = moment - self._network.clock.now()
            self._network.call_later(delay_s, lambda: self._change_nodes(moment))

    def _change_nodes(self, until_s: float) -> None:
        """Let nodes start and end; those that start together see each other from the beginning."""
        if self._is_over:
            return
        starting: dict[int, Participant | None] = {}
        while self._next is not None and self._next.time_s <= until_s:
            self._change(self._next, starting)
            self._next = next(self._changes, None)
        for number, donor in starting.items():
            self._start(self.fleet.participants[number], donor)
        self._next_change()
        self._look(is_due=False)
        self._stop_if_all_is_done()

    def _change(self, change: NodeChange, starting: dict[int, Participant | None]) -> None:
        fleet, node = self.fleet, self.fleet.participants[change.node]
        donor = fleet.change(change)
        if change.kind is NodeChangeKind.START:
            self._still_to_start -= 1
        if change.kind is NodeChangeKind.RETURN:
            for book in fleet.books:
                book.look_again(fleet.incarnations)
        if fleet.is_alive[change.node]:
            if node.updates < self._rounds:
                self._training.add(node.number)
            starting[node.number] = donor
        else:
            starting.pop(node.number, None)
            self._training.discard(node.number)
            self._fetches.streams.end_of(node.number)
            for parted in fleet.books if change.kind is NodeChangeKind.LEAVE else ():
                parted.down(node.name, fleet.incarnations[node.number])

    def _start(self, node: Participant, donor: Participant | None) -> None:
        process = self.fleet.incarnations[node.number]
        if donor is None:
            self.fleet.trains[node.number] = True
            self._begin(node, process)
            return

        def come(_: float) -> None:
            if self._is_same(node, process):
                self.fleet.take_over(node.number, donor)
                self._begin(node, process)

        def look_for_another(_: bool) -> None:
            if self._is_same(node, process):
                self._start(node, self.fleet.donor_for(node.number))

        self._fetches.streams.begin(donor.number, node.number, come, look_for_another)

    def _is_same(self, node: Participant, process: int) -> bool:
        """Tell whether a process is still there, and the run is not over."""
        is_there = self.fleet.is_alive[node.number]
        return bool(
            not self._is_over and is_there and self.fleet.incarnations[node.number] == process
        )

    def _begin(self, node: Participant, process: int) -> None:
        if node.number not in self._training:
            return
        now, number = self._network.clock.now(), node.number
        node.publish()
        self._fetches.has_published(node)
        if node.follows:
            self._pass_on_news(node)
        asks = node.asks()
        step_s = self._conditions.step_s(number, int(self.fleet.updates[number]), now)
        step_s = max(LEAST_STEP_S, step_s + self._conditions.own_work_s)
        round_ = _Round(node, process, now + step_s, asks)
        self._ask_next(round_)
        self._network.call_later(step_s, lambda: self._stepped(round_, step_s))

    def _ask_next(self, round_: _Round) -> None:
        if round_.asks:
            ask = round_.asks.pop(0)
            round_.fetch = self._fetches.begin(round_.node, ask, lambda: self._fetched(round_))

    def _pass_on_news(self, node: Participant) -> None:
        alive = self.fleet.alive
        other = alive[self.fleet.rng.randrange(len(alive))]
        if other is not node and self._conditions.reachable(
            node.number, other.number, self._network.clock.now()
        ):
            self._fetches.later(node.number, other.number, lambda: self._fetches.hear(node, other))

    def _stepped(self, round_: _Round, step_s: float) -> None:
        number = round_.node.number
        if self._is_same(round_.node, round_.process):
            self.fleet.step(np.array([number]))
            self.fleet.trained_s[number] += step_s
            round_.has_stepped = True
            if round_.fetch is None or round_.fetch.is_over:
                self._finish(round_)

    def _fetched(self, round_: _Round) -> None:
        if round_.has_stepped and self._is_same(round_.node, round_.process):
            self._finish(round_)

    def _finish(self, round_: _Round) -> None:
        """Merge what has come, and go on; unless there is more to ask for."""
        if round_.asks:
            self._ask_next(round_)
            return
        node, round_.fetch = round_.node, None  # that knows of the round: no cycle is to remain
        self.fleet.waited_s[node.number] += self._network.clock.now() - round_.step_ends_s
        node.merge()
        self._updates += 1
        if node.updates >= self._rounds:
            self._training.discard(node.number)
        self._look(is_due=False)
        self._stop_if_all_is_done()
        if not self._is_over:
            self._begin(node, round_.process)

    def _look(self, *, is_due: bool) -> None:
        """Show the run to the recorder, now and then."""
        if self._is_over:
            return
        if not is_due and self._updates < self._looks_at:
            if self._updates % ASK_AFTER == 0 and not self._recorder.is_wanted():
                self._stop()
            return
        self._looks_at = self._updates + max(1, self.fleet.living // LOOKS_PER_ROUND)
        if not self._recorder.observe(self.fleet.moment(self._network.clock.now())):
            self._stop()

    def _stop_if_all_is_done(self) -> None:
        is_done = not self._training and (not self._still_to_start or self._next is None)
        if is_done and (self.fleet.living or self._next is None):
            self._stop()

    def _stop(self) -> None:
        self._is_over = True
        self._network.stop()
