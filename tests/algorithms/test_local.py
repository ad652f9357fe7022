"""Local SGD on random pairs, and outer Nesterov steps, against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.swarms import Swarm, SwarmSettings

SEED = 47
SIZE = 3


def starts(nodes):
    return np.random.default_rng(SEED).normal(size=(nodes, SIZE))


def noise(rng):
    def train(worker):
        worker.model.array += rng.normal(size=SIZE)

    return train


def test_without_momentum_pairs_take_their_mean_every_period():
    rng, period = np.random.default_rng(SEED), 4
    swarm = Swarm("local", starts(2), SwarmSettings(SEED), period=period)
    swarm.round(noise(rng))
    for _ in range(3):
        for _ in range(period - 1):
            swarm.round(noise(rng))
        mean = swarm.x.mean(axis=0)
        swarm.round()
        assert swarm.x == pytest.approx(np.stack([mean, mean]), abs=1e-14)
        swarm.workers[0].model.array += 1.0  # else both would stay alike


def test_the_mean_is_of_what_both_have_published_and_steps_since_are_kept_whole():
    swarm = Swarm("local", starts(2), SwarmSettings(SEED), period=1)
    swarm.round()
    before = swarm.x
    steps = np.array([[1.0, 2.0, 3.0], [-4.0, 0.0, 5.0]])

    def train(worker):
        worker.model.array += steps[worker.number]

    swarm.round(train)
    assert swarm.x == pytest.approx(before.mean(axis=0) + steps, abs=1e-14)


def test_who_finds_no_partner_tries_again_in_the_next_round():
    swarm, merges = Swarm("local", starts(2), SwarmSettings(SEED), period=3), []
    first, second = swarm.workers
    for rounds in range(10):
        swarm.publish_snapshots(swarm.workers)
        swarm.ask([second] if rounds == 3 else swarm.workers)
        swarm.merge(swarm.workers)
        merges.append((len(first.merged), len(second.merged)))
    # From round 3 on one is due, and from then on every three rounds after its last merge.
    assert [ours for ours, _ in merges] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [theirs for _, theirs in merges] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.5), (0.5, 0.0), (1.5, 0.0)])
def test_outer_steps_are_those_of_torch(lr, momentum):
    """phi is the parameter, and D = phi - (x_i + x_j)/2 its gradient."""
    rng, period, nodes = np.random.default_rng(SEED), 2, 2
    swarm = Swarm(
        "local", starts(nodes), SwarmSettings(SEED), period=period, lr=lr, momentum=momentum
    )
    phi = [torch.nn.Parameter(torch.from_numpy(start.copy())) for start in starts(nodes)]
    nesterov = momentum > 0.0
    optimizers = [torch.optim.SGD([p], lr, momentum=momentum, nesterov=nesterov) for p in phi]
    swarm.round(noise(rng))
    for _ in range(6):
        for _ in range(period - 1):
            swarm.round(noise(rng))
        mean, published = torch.from_numpy(swarm.x.mean(axis=0)), swarm.x
        steps = rng.normal(size=(nodes, SIZE))

        def train(worker, steps=steps):
            worker.model.array += steps[worker.number]

        swarm.round(train)
        for parameter, optimizer in zip(phi, optimizers, strict=True):
            parameter.grad = parameter.detach() - mean
            optimizer.step()
        expected = np.stack([p.detach().numpy() for p in phi]) + steps
        assert swarm.x == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert not np.allclose(swarm.x, published)


@pytest.mark.parametrize(
    ("name", "options"),
    [("local", {}), ("local", {"lr": 0.7, "momentum": 0.9}), ("noloco", {}), ("elastic", {})],
)
def test_half_of_the_partners_buffers_are_taken(name, options):
    swarm = Swarm(name, starts(2), SwarmSettings(SEED), period=2, **options)
    swarm.workers[1].buffers.array[...] = 8.0
    for _ in range(3):
        swarm.round()
    assert [float(worker.buffers.array[0]) for worker in swarm.workers] == [4.0, 4.0]
