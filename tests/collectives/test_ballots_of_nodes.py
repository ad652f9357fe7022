"""Ballots of whole nodes in virtual time: whatever happens in a collective, survivors agree."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from dpwa.errors import CollectiveTimeoutError, DpwaError, LeftBehindError, PeerLost
from dpwa.policy.ballots import LATE_S, STALLED_S

BEGINS_S = 5.0  # of virtual time: all nodes have met by then
OVER_S = 60.0
LATENCY_MS = 25.0
SHORT_STALL_S = 0.25  # and two messages stay below `LATE_S`
LONG_STALL_S = 4.5  # likewise, below `STALLED_S`
ROUND_S = 0.2  # of suspicions: beside the patience, a look at the clock and two messages


class OneCollective:
    """Nodes that call one collective, each at a moment of its own, while some die or stall.

    Args:
        seed: of all chance.
        stalls_s: lengths of stalls are drawn from one of these ranges; without any, nobody fails.
        latency_ms: of each message, which may take twice as long.
        timeouts_s: of the collective, one of these.
    """

    def __init__(self, seed, stalls_s=(), latency_ms=LATENCY_MS, timeouts_s=(0.2, 0.5, 1.0)):
        self._rng = rng = random.Random(seed)
        network = {"latency_ms": latency_ms, "jitter_ms": latency_ms}
        spec = run_spec(rng.randint(2, 5), seed=seed, seconds=1e6, network=network)
        self.run = ProgramRun(spec, self._call)
        self.timeout_s = rng.choice(timeouts_s)
        self.enters_s = {node.name: rng.uniform(0.0, 0.15) for node in self.run.nodes}
        self.killed, self.stalled_s, self.outcomes = set(), {}, {}
        self.context = f"seed {seed}"
        self.run.plan_events()
        if stalls_s:
            late = [name for name in self.enters_s if rng.random() < 0.1]
            self.enters_s.update({name: rng.uniform(0.0, 3 * self.timeout_s) for name in late})
            self._plan_faults(stalls_s)

    def _plan_faults(self, stalls_s):
        rng = self._rng
        for node in rng.sample(self.run.nodes, rng.randint(0, len(self.run.nodes))):
            at_s = BEGINS_S + rng.uniform(0.0, self.timeout_s + 0.5)
            if rng.random() < 0.5:
                self.killed.add(node.name)
                self.run.network.call_later(at_s, lambda node=node: self.run.kill(node))
            else:
                self.stall(node, at_s, rng.uniform(*rng.choice(stalls_s)))

    def stall(self, node, at_s, seconds):
        self.stalled_s[node.name] = seconds
        self.run.network.call_later(at_s, lambda: self.run.stall(node, seconds))

    def _call(self, node, runtime, connection):
        connection.barrier(timeout_s=BEGINS_S)
        runtime.sleep(BEGINS_S + self.enters_s[node.name] - runtime.now())
        called_s, error, total = runtime.now(), None, None
        try:
            value, count = connection.all_reduce(
                np.array([2.0**node.index]), timeout_s=self.timeout_s
            )
            total = int(value[0])
            assert (total.bit_count(), total >> node.index & 1) == (count, 1), self.context
        except DpwaError as raised:
            error = raised
        self.outcomes[node.name] = SimpleNamespace(
            name=node.name,
            total=total,
            error=error,
            lost=error.names if isinstance(error, PeerLost) else (),
            members=connection.members,
            took_s=runtime.now() - called_s,
        )
        runtime.sleep(OVER_S)

    def play(self):
        """Let it happen; check that nobody hangs, and that no pair that goes on differs."""
        self.run.network.run_until(BEGINS_S + OVER_S)
        self.run.end_run()
        living = self.enters_s.keys() - self.killed
        assert living <= self.outcomes.keys(), f"hang: {living - self.outcomes.keys()}, {self}"
        for one, other in itertools.combinations(self.outcomes.values(), 2):
            if one.name in other.members and other.name in one.members:
                assert (one.total, one.members) == (other.total, other.members), self
        return self

    def check_laws(self, longest_stall_s):
        """Check what holds for those who live, and have stalled for no longer than that."""
        well = [one for one in self.outcomes.values() if self._is_well(one, longest_stall_s)]
        assert len({(one.total, one.members) for one in well}) <= 1, self
        faults = len(self.killed) + len(self.stalled_s)
        patience_s = STALLED_S if self.stalled_s else LATE_S
        most_s = (1 + faults) * (patience_s + ROUND_S) + sum(self.stalled_s.values())
        for one in well:
            assert not isinstance(one.error, LeftBehindError), self
            assert not any(one.name in other.lost for other in well), self
            assert one.took_s <= self.timeout_s + most_s, self

    def _is_well(self, one, longest_stall_s):
        is_in_time = self.enters_s[one.name] < 0.15
        is_awake = self.stalled_s.get(one.name, 0.0) <= longest_stall_s
        return is_in_time and is_awake and one.name not in self.killed

    def __str__(self):
        return f"{self.context}, killed {self.killed}, stalled {self.stalled_s}: {self.outcomes}"


MORE = [pytest.param(range(12, 300), marks=pytest.mark.slow)]


@pytest.mark.parametrize("seeds", [range(12), *MORE])
def test_with_deaths_and_short_stalls_who_is_alive_goes_on_with_all_who_are(seeds):
    for seed in seeds:
        OneCollective(seed, [(0.0, SHORT_STALL_S)]).play().check_laws(SHORT_STALL_S)


@pytest.mark.parametrize("seeds", [range(12), *MORE])
def test_with_long_stalls_those_who_were_awake_go_on_together(seeds):
    for seed in seeds:
        OneCollective(seed, [(0.0, 0.5), (0.5, 3.0), (5.0, 7.0)]).play().check_laws(0.0)


@pytest.mark.parametrize("seeds", [range(12), *MORE])
def test_with_time_left_who_stalls_for_less_than_the_stalled_time_is_not_lost(seeds):
    for seed in seeds:
        stalls_s = [(0.0, SHORT_STALL_S), (0.0, LONG_STALL_S)]
        OneCollective(seed, stalls_s, timeouts_s=[10.0]).play().check_laws(LONG_STALL_S)


@pytest.mark.parametrize("seeds", [range(12), *MORE])
def test_whatever_messages_take_two_who_go_on_together_have_decided_the_same(seeds):
    for seed in seeds:
        OneCollective(seed, [(0.0, 3.0)], latency_ms=300.0).play()


def test_without_faults_all_have_the_sum_of_all():
    for seed in range(5):
        played = OneCollective(seed, timeouts_s=[1.0]).play()
        count = len(played.enters_s)
        assert [one.total for one in played.outcomes.values()] == [2**count - 1] * count, played


def test_when_all_stall_at_the_same_moment_nobody_is_lost():
    for seed in range(5):
        played = OneCollective(seed)
        for node in played.run.nodes:
            played.stall(node, BEGINS_S + 0.1, 6.0)
        for one in played.play().outcomes.values():
            assert one.error is None or isinstance(one.error, CollectiveTimeoutError), played
            assert len(one.members) == len(played.enters_s), played
