"""Elastic averaging by gossip: its formula, EASGD in the mean, and what keeps it stable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.swarms import Swarm, SwarmSettings

from dpwa.algorithms.elastic import ElasticOptions
from dpwa.config import load_config
from dpwa.errors import ConfigError
from dpwa.policy.elastic import elastic_limit, elastic_round
from dpwa.policy.topology import topology

SEED = 67
SIZE = 3
SEEDS = st.integers(0, 2**32 - 1)
one_peer = topology("one_peer_exponential")
PERMUTING = SwarmSettings(SEED, topology=one_peer, topology_options=one_peer.options())


def starts(nodes, seed=SEED):
    return np.random.default_rng(seed).normal(size=(nodes, SIZE))


def centers_of(swarm):
    return np.stack([worker.algorithm.center.array for worker in swarm.workers])


class Reference:
    """One node with plain arrays, where a peer's center always comes before an elastic step."""

    def __init__(self, start, alpha, beta):
        self.alpha, self.beta = alpha, beta
        self.x, self.c = start.copy(), start.copy()
        self.published = self.before = None

    def publish(self):
        self.published, self.before = self.c.copy(), None

    def move(self):
        self.before = self.x.copy()
        self._move()

    def mix(self, peer):
        self.c = (self.published + peer) / 2
        if self.before is not None:
            self.x = self.before
            self._move()

    def _move(self):
        gap = self.x - self.c
        self.x, self.c = self.x - self.alpha * gap, self.c + self.beta * gap


@given(st.integers(1, 4), st.integers(2, 5), st.floats(0.05, 0.95), st.floats(0.0, 0.6), SEEDS)
@settings(max_examples=40)
def test_it_is_the_formula_with_local_steps_meanwhile_and_partners_missed(
    period, nodes, beta, missed, seed
):
    rng = np.random.default_rng(seed)
    swarm = Swarm("elastic", starts(nodes, seed), SwarmSettings(seed), period=period, beta=beta)
    nodes_by_formula = [Reference(start, beta / nodes, beta) for start in starts(nodes, seed)]
    published = list(starts(nodes, seed))
    is_due, counts = [False] * nodes, [0] * nodes
    for _ in range(14):
        done = [len(worker.merged) for worker in swarm.workers]
        swarm.publish_snapshots(swarm.workers)
        for i, node in enumerate(nodes_by_formula):
            assert (swarm.workers[i].published is not None) == (is_due[i] or swarm.now == 0.0)
            node.publish()
            if is_due[i]:
                published[i] = node.published
        swarm.ask([worker for worker in swarm.workers if rng.random() >= missed])
        for i, worker in enumerate(swarm.workers):
            step = rng.normal(size=SIZE)
            worker.model.array += step
            nodes_by_formula[i].x += step
        swarm.merge(swarm.workers)
        for i, (worker, node) in enumerate(zip(swarm.workers, nodes_by_formula, strict=True)):
            counts[i] += 1
            has_moved = counts[i] == period
            if has_moved:
                node.move()
                counts[i] = 0
            if len(worker.merged) > done[i]:
                assert is_due[i]
                node.mix(published[int(worker.merged[-1][0][1:])])
                is_due[i] = False
            is_due[i] = is_due[i] or has_moved
        assert swarm.x == pytest.approx(np.stack([n.x for n in nodes_by_formula]), abs=1e-11)
        expected = np.stack([n.c for n in nodes_by_formula])
        assert centers_of(swarm) == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize("beta", [0.43, 0.9])
def test_in_the_mean_it_is_synchronous_easgd(beta, period):
    """Exactly, as everybody is heard by one; parameters and copies of the center differ, though."""
    rng, nodes = np.random.default_rng(SEED), 8
    swarm = Swarm("elastic", starts(nodes), PERMUTING, period=period, beta=beta)
    xs, center = starts(nodes), starts(nodes).mean(axis=0)
    for number in range(1, 40):
        steps = rng.normal(size=(nodes, SIZE))

        def train(worker, steps=steps):
            worker.model.array += steps[worker.number]

        swarm.round(train)
        xs = xs + steps
        if number % period == 0:
            xs, center = elastic_round(xs, center, beta / nodes)
        assert swarm.x.mean(axis=0) == pytest.approx(xs.mean(axis=0), abs=1e-12)
        assert centers_of(swarm).mean(axis=0) == pytest.approx(center, abs=1e-12)
    assert centers_of(swarm).std(axis=0).min() > 0.01


@pytest.mark.parametrize("name", ["elastic", "noloco"])
def test_it_publishes_and_asks_after_every_period_only(name):
    swarm = Swarm(name, np.ones((4, 1)), PERMUTING, period=5)
    asked, published = [], []
    for rounds in range(17):
        swarm.round()
        if len(swarm.workers[0].asked) > len(asked):
            asked.append(rounds)
        if swarm.workers[0].published is not None:
            published.append(rounds)
    assert asked == [5, 10, 15]
    assert published == [0, *asked]


@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.floats(0.01, 0.999),
    st.sampled_from(["random", "ring", "star"]),
    SEEDS,
)
@settings(max_examples=40)
def test_without_gradients_nothing_leaves_the_range_it_began_in(period, nodes, beta, name, seed):
    """At any pace: every round is of some nodes only, and many miss what they have asked for."""
    rng, kind = np.random.default_rng(seed), topology(name)
    if nodes < 2:
        nodes, name, kind = 2, "random", topology("random")
    drawn = SwarmSettings(seed, topology=kind, topology_options=kind.options())
    swarm = Swarm("elastic", starts(nodes, seed), drawn, period=period, beta=beta)
    swarm.publish_snapshots(swarm.workers)
    for worker in swarm.workers:
        worker.model.array += rng.normal(size=SIZE)
    low = np.minimum(swarm.x, centers_of(swarm)).min(axis=0) - 1e-12
    high = np.maximum(swarm.x, centers_of(swarm)).max(axis=0) + 1e-12
    for _ in range(20):
        some = [worker for worker in swarm.workers if rng.random() < 0.7]
        swarm.publish_snapshots(some)
        swarm.ask([worker for worker in some if rng.random() < 0.7])
        swarm.merge(some)
        for values in (swarm.x, centers_of(swarm)):
            assert (low <= values).all()
            assert (values <= high).all()


@pytest.mark.parametrize("nodes", [2, 3, 5, 8])
def test_two_nodes_that_ask_each_other_in_every_step_come_together(nodes):
    """Where a peer's center would be added to one that has moved since, two drew apart."""
    swarm = Swarm("elastic", starts(nodes), SwarmSettings(SEED), period=1)
    for _ in range(60 * nodes):  # alpha falls with N
        swarm.round()
    assert swarm.x.std(axis=0).max() < 1e-6
    assert centers_of(swarm).std(axis=0).max() < 1e-6


@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("nodes", [4, 8])
def test_centers_agree_and_reach_the_minimum_of_a_noisy_quadratic(nodes, period):
    """Pulls from random peers; in the mean, parameters and center are a linear process.

    With z = (x, c) - minimum and steps x -= lr*(x - minimum) + noise, its stationary covariance S
    solves S = M S M' + Q over a period. Each center goes half of the way to a random one, which
    moves their mean by less than the last term says, with their spread as measured.
    """
    print(f"seed {SEED}")
    rng, lr, noise, beta = np.random.default_rng(SEED), 0.1, 0.5, 0.9
    minimum = np.array([3.0, -2.0, 1.0])
    far = 100.0 * starts(nodes)
    swarm = Swarm("elastic", far, SwarmSettings(SEED), period=period, beta=beta)

    def train(worker):
        worker.model.array -= lr * (worker.x - minimum) + noise * rng.normal(size=SIZE)

    centers, parameters = [], []
    for number in range(800 * period):
        swarm.round(train)
        if number >= 400 * period:
            centers.append(centers_of(swarm))
            parameters.append(swarm.x)
    centers, parameters = np.stack(centers), np.stack(parameters)
    spread, drift = centers.std(axis=1).mean(), parameters.std(axis=1).mean()
    step = np.array([[1 - lr, 0.0], [0.0, 1.0]])
    pull = np.array([[1 - beta / nodes, beta / nodes], [beta, 1 - beta]])
    covariance = np.zeros((2, 2))
    for _ in range(4000):
        for _ in range(period):
            covariance = step @ covariance @ step.T + np.diag([noise**2 / nodes, 0.0])
        covariance = pull @ covariance @ pull.T
        covariance[1, 1] += (0.5 * spread) ** 2 * 2 / nodes
    error = np.sqrt(covariance[1, 1])
    alone = noise / np.sqrt(1 - (1 - lr) ** 2)  # how far a node is from the minimum by itself
    found = np.abs(centers[-1].mean(axis=0) - minimum).max()
    print(f"N={nodes} H={period}: mean {found:.3f} from the minimum, error {error:.3f}")
    print(f"spread of centers {spread:.3f}, of parameters {drift:.3f}, alone {alone:.3f}")
    assert found < 5 * error
    assert max(spread, drift) < alone
    assert np.abs(centers[-1] - minimum).max() < 5 * np.hypot(error, spread)


def test_beyond_the_limit_the_last_of_all_nodes_would_diverge_so_it_is_refused():
    assert elastic_limit(nodes=1) == 1.0
    assert ElasticOptions(beta=0.999).beta == 0.999
    nodes = [{"name": "w1", "port": 1}, {"name": "w2", "port": 2}]
    for beta in (1.0, 1.5):
        with pytest.raises(ConfigError, match=r"elastic\.beta: expected a number below 1, because"):
            load_config(
                {"nodes": nodes, "algorithm": "elastic", "elastic": {"beta": beta}}, environ={}
            )
    for beta in (0.0, -0.1):
        with pytest.raises(ConfigError, match=r"elastic\.beta: expected a number above 0"):
            load_config({"nodes": nodes, "elastic": {"beta": beta}}, environ={})
