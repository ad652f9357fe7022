"""Symmetric exchange and push-sum of whole nodes that stall, are cut off, and end: sums stay."""

import math
import random
from functools import partial

import numpy as np
import pytest
from support.simulated_nodes import ProgramRun
from support.simulations import run_spec

from dpwa.policy import beginners
from dpwa.policy.push_sum import UNIT
from dpwa.sim.nodes.training import ArrayTraining

NODES = 4
TIMEOUT_S = 1.0
STEP_S = 0.3  # slow enough that they still differ when something happens
FAULTS_S = 8.0
LONGEST_FAULT_S = 4.0
SETTLES_S = 20.0
ROUNDED = 2e-6  # snapshots of simulated nodes are in single precision; it cancels in exchanges


class Exchanges(ProgramRun):
    """Nodes that exchange, and train nothing; all may pause, after which n0 ends."""

    def __init__(self, algorithm, seed, pause_s=math.inf):
        self.rng = rng = random.Random(seed)
        settings = {"algorithm": algorithm, "initial_state": "own", "timeout_ms": TIMEOUT_S * 1000}
        network = {"latency_ms": rng.uniform(0.2, 60.0), "jitter_ms": 20.0, "loss": 0.02}
        spec = run_spec(NODES, settings, seed=seed, seconds=1e6, network=network)
        super().__init__(spec, self._exchange)
        self._pause_s = pause_s
        self.waits_s = {}  # the longest of each node

    def play(self):
        """Return what the parameters add up to before, and what all have come to."""
        before = self.parameters.sum(axis=0)
        self.plan_events()
        self.until_over(FAULTS_S + LONGEST_FAULT_S + SETTLES_S + LONGEST_FAULT_S)
        self.end_run()
        return before, [self.results[node.name] for node in self.nodes]

    def _exchange(self, node, runtime, connection):
        training = ArrayTraining(connection, self.parameters[node.index], self._scaled)
        goes_on_s = self._pause_s + LONGEST_FAULT_S
        end_s = FAULTS_S + LONGEST_FAULT_S
        while runtime.now() < min(end_s + SETTLES_S, goes_on_s if node.index == 0 else math.inf):
            if not self._pause_s < runtime.now() < goes_on_s and runtime.now() < end_s:
                training.update_send(None)
            runtime.sleep(STEP_S)
            began = runtime.now()
            training.update_wait(None)
            longest_s = self.waits_s.get(node.name, 0.0)
            self.waits_s[node.name] = max(longest_s, runtime.now() - began)
        return connection.node.report()["transactions"]


@pytest.fixture(autouse=True)
def nobody_is_a_beginner(monkeypatch):
    """Who is ten rounds behind and takes over would not keep the sum."""
    monkeypatch.setattr(beginners, "LEAD", math.inf)


def with_faults(algorithm, seed):
    """Make a run in which two nodes stall, and twice some are cut off; return it and the others."""
    run = Exchanges(algorithm, seed)
    rng, network = run.rng, run.network
    stalling = rng.sample(run.nodes, 2)
    for node in stalling:
        seconds = rng.uniform(0.3, LONGEST_FAULT_S)
        network.call_later(rng.uniform(0.5, FAULTS_S), partial(run.stall, node, seconds))
    for _ in range(2):
        cut = {node.name for node in rng.sample(run.nodes, rng.randint(1, NODES - 1))}
        at_s = rng.uniform(0.5, FAULTS_S)
        network.call_later(at_s, partial(network.partition, cut))
        network.call_later(at_s + rng.uniform(0.2, LONGEST_FAULT_S), network.heal)
    return run, {node.name for node in run.nodes if node not in stalling}


@pytest.mark.parametrize(("algorithm", "error"), [("symmetric", 1e-9), ("push_sum", ROUNDED)])
def test_stalls_and_cuts_in_the_middle_of_transactions_change_no_sum(algorithm, error):
    committed = aborted = 0
    for seed in range(4):
        print(f"seed {seed}")
        run, steady = with_faults(algorithm, seed)
        before, ended = run.play()
        weights = np.array([transactions.get("units", UNIT) / UNIT for transactions in ended])
        np.testing.assert_allclose(weights @ run.parameters, before, rtol=0.0, atol=error)
        assert weights.sum() == NODES
        assert not any(transactions.get("units_in_flight", 0) for transactions in ended)
        assert not any(
            transactions["unresolved"] + transactions["given_up"] for transactions in ended
        )
        assert max(run.waits_s[name] for name in steady) <= TIMEOUT_S + 0.05
        committed += sum(transactions["committed"] for transactions in ended)
        aborted += sum(transactions["aborted"] for transactions in ended)
    assert committed > 100
    assert aborted > 10  # or this test shows nothing


def test_who_ends_takes_only_its_own_mass_along():
    run = Exchanges("push_sum", 7, pause_s=3.0)
    _, ended = run.play()
    assert ended[0]["units"] != UNIT
    assert sum(transactions["units"] for transactions in ended) == NODES * UNIT
    assert not any(transactions["units_in_flight"] for transactions in ended)


@pytest.mark.parametrize("algorithm", ["symmetric", "push_sum"])
def test_no_round_waits_for_a_deadline_while_all_are_well(algorithm):
    run = Exchanges(algorithm, 7)
    run.play()
    assert max(run.waits_s.values()) < TIMEOUT_S / 2


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_nodes_whose_steps_take_equally_long_do_not_exchange_in_the_same_pairs_for_good(seed):
    """Two that have just exchanged are free at the same moment, when all others are not."""

    def exchange(node, runtime, connection):
        training = ArrayTraining(connection, run.parameters[node.index], run._scaled)
        runtime.sleep(random.Random(f"{seed}/{node.index}").uniform(0.0, STEP_S))
        while runtime.now() < 40 * STEP_S:
            training.update_send(None)
            runtime.sleep(STEP_S)
            training.update_wait(None)

    settings = {"algorithm": "symmetric", "initial_state": "own"}
    run = ProgramRun(run_spec(8, settings, seed=seed, seconds=1e6), exchange)
    before = run.parameters.var(axis=0).sum()
    run.plan_events()
    run.until_over(60.0)
    run.end_run()
    assert run.parameters.var(axis=0).sum() < 1e-3 * before
