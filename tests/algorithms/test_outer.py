"""Outer optimizers by gossip: laws of the formula, the limits, and torch's own Nesterov steps."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.swarms import Swarm, SwarmSettings

from dpwa.algorithms.outer import LocalOptions, OuterOptions, nesterov_limit

SEED = 47
SIZE = 3
OUTER = ("outer", {"period": 1, "plain_rounds": 0})
LOCAL = ("local", {"period": 1})
CURVATURES = np.array([0.05, 0.5, 1.0])  # of the quadratics, one for each value


def starts(nodes):
    return np.random.default_rng(SEED).normal(size=(nodes, SIZE))


def noise(rng):
    def train(worker):
        worker.model.array += rng.normal(size=SIZE)

    return train


def nesterov(lr, momentum):
    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr, momentum=momentum, nesterov=momentum > 0.0)

    return optimizer


def mean(bases):
    return np.tile(bases.mean(axis=0), (len(bases), 1))


# The order: on the complete graph, the outer step before the mix is torch's


def on_the_complete_graph(lr, momentum, order, rounds=8, nodes=4):
    """Yield what all nodes have after each round, and what torch has. Inner steps lead a share of
    the way to the minimum of a quadratic, which each node has of its own.
    """
    rng = np.random.default_rng(SEED)
    minima, first = rng.normal(size=(nodes, SIZE)), rng.normal(size=SIZE)
    theirs = torch.nn.Parameter(torch.from_numpy(first.copy()))
    optimizer = nesterov(lr, momentum)([theirs])
    b, m = np.tile(first, (nodes, 1)), np.zeros((nodes, SIZE))
    for _ in range(rounds):
        x = b + CURVATURES * (minima - b)
        d = b - x
        m = momentum * m + d
        step = lr * (d + momentum * m)
        b = b - step
        b = mean(b) if order == "step first" else mean(b + step) - step
        way = CURVATURES * (minima - theirs.detach().numpy())
        theirs.grad = torch.from_numpy(-way.mean(axis=0))
        optimizer.step()
        yield b, theirs.detach().numpy().copy()


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (0.7, 0.5), (1.0, 0.0)])
def test_the_outer_step_before_the_mix_is_that_of_torch_on_the_mean(lr, momentum):
    for ours, theirs in on_the_complete_graph(lr, momentum, "step first"):
        assert np.abs(ours - theirs).max() < 1e-14


def test_the_mix_before_the_outer_step_is_not():
    """This is why the order is fixed. It is no choice of the user."""
    parted = [
        np.abs(ours - theirs).max() for ours, theirs in on_the_complete_graph(0.7, 0.9, "mix first")
    ]
    assert parted[1] > 0.1
    assert parted[-1] > parted[1]


@pytest.mark.parametrize("name", ["local", "outer"])
@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.5), (0.5, 0.0), (1.5, 0.0)])
def test_two_nodes_take_outer_steps_of_torch_and_then_their_mean(name, lr, momentum):
    """b is the parameter, and b - x its gradient. Inner steps during the mix are kept whole."""
    rng, period = np.random.default_rng(SEED), 2
    plain = {"plain_rounds": 0} if name == "outer" else {}
    swarm = Swarm(
        name, starts(2), SwarmSettings(SEED), period=period, lr=lr, momentum=momentum, **plain
    )
    bases = [torch.nn.Parameter(torch.from_numpy(start.copy())) for start in starts(2)]
    optimizers = [nesterov(lr, momentum)([base]) for base in bases]
    swarm.round(noise(rng))
    for _ in range(6):
        for _ in range(period - 1):
            swarm.round(noise(rng))
        for base, optimizer, x in zip(bases, optimizers, swarm.x, strict=True):
            base.grad = base.detach() - torch.from_numpy(x)
            optimizer.step()
        mean = torch.stack([base.detach() for base in bases]).mean(dim=0)
        for base in bases:
            base.data.copy_(mean)
        steps = rng.normal(size=(2, SIZE))

        def train(worker, steps=steps):
            worker.model.array += steps[worker.number]

        swarm.round(train)
        assert swarm.x == pytest.approx(mean.numpy() + steps, rel=1e-12, abs=1e-12)


# Special cases


@pytest.mark.parametrize("name", ["local", "outer"])
def test_with_lr_1_and_no_momentum_pairs_take_their_mean_every_period(name):
    rng, period = np.random.default_rng(SEED), 4
    swarm = Swarm(name, starts(2), SwarmSettings(SEED), period=period, lr=1.0, momentum=0.0)
    swarm.round(noise(rng))
    for _ in range(3):
        for _ in range(period - 1):
            swarm.round(noise(rng))
        mean = swarm.x.mean(axis=0)
        swarm.round()
        assert swarm.x == pytest.approx(np.stack([mean, mean]), abs=1e-14)
        swarm.workers[0].model.array += 1.0  # else both would stay alike


def test_with_one_inner_step_it_is_gossip_sgd():
    """Each node steps, and then takes the mean with its partner, as `symmetric` does."""
    options = {"period": 1, "lr": 1.0, "momentum": 0.0, "plain_rounds": 0}
    outer = Swarm("outer", starts(6), SwarmSettings(SEED), **options)
    symmetric = Swarm("symmetric", starts(6), SwarmSettings(SEED))
    for swarm in (outer, symmetric):
        rng = np.random.default_rng(SEED)
        if swarm is outer:  # its first round only publishes
            swarm.publish_snapshots(swarm.workers)
            swarm.merge(swarm.workers)
            swarm.rng.seed(SEED)
        for _ in range(10):
            swarm.round()
            for worker in swarm.workers:
                worker.model.array += rng.normal(size=SIZE)
    assert outer.x == pytest.approx(symmetric.x, abs=1e-13)


def test_the_first_outer_steps_are_plain_means():
    options = {"period": 1, "lr": 0.7, "momentum": 0.5}
    plain = Swarm("outer", starts(2), SwarmSettings(SEED), **options, plain_rounds=2)
    swarm = Swarm("outer", starts(2), SwarmSettings(SEED), **options, plain_rounds=0)
    for each in (plain, swarm):
        each.round(noise(np.random.default_rng(SEED)))
    before = plain.x
    for _ in range(2):
        plain.round()
        assert plain.x == pytest.approx(before.mean(axis=0) + np.zeros_like(before), abs=1e-14)
    swarm.round()
    assert np.abs(swarm.x - before.mean(axis=0)).max() > 0.01
    # The third outer step has the learning rate and a momentum that begins at zero.
    b = plain.x
    plain.workers[0].model.array += 1.0
    plain.workers[1].model.array += 1.0
    plain.round()
    assert plain.x == pytest.approx(b + 0.7 * (1.0 + 0.5), abs=1e-14)


# Mixes


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_mixes_of_pairs_never_move_the_mean_of_the_bases(nodes, period, seed):
    rng = np.random.default_rng(seed)
    options = {"period": period, "plain_rounds": 1}
    swarm = Swarm("outer", rng.normal(size=(nodes, SIZE)), SwarmSettings(seed), **options)
    for rounds in range(12):
        present = [w for w in swarm.workers if rounds == 0 or rng.random() < 0.8]
        swarm.publish_snapshots(present)
        bases = np.mean([w.algorithm.base.array for w in swarm.workers], axis=0)
        swarm.ask([w for w in present if rng.random() < 0.8])
        for worker in present:
            worker.model.array += rng.normal(size=SIZE)
        swarm.merge(swarm.workers)
        after = np.mean([w.algorithm.base.array for w in swarm.workers], axis=0)
        assert after == pytest.approx(bases, abs=1e-12)


@pytest.mark.parametrize(("name", "options"), [OUTER, LOCAL])
def test_the_mean_is_of_what_both_have_published_and_steps_since_are_kept_whole(name, options):
    swarm = Swarm(name, starts(2), SwarmSettings(SEED), **{**options, "lr": 1.0, "momentum": 0.0})
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
    # In round 3, one node cannot ask. It asks in round 4. Its outer steps go on as they were.
    assert [ours for ours, _ in merges] == [0, 0, 0, 0, 1, 1, 2, 2, 2, 3]
    assert [theirs for _, theirs in merges] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("local", {}),
        ("local", {"lr": 0.7, "momentum": 0.9}),
        ("noloco", {}),
        ("elastic", {}),
        ("outer", {}),
    ],
)
def test_half_of_the_partners_buffers_are_taken(name, options):
    swarm = Swarm(name, starts(2), SwarmSettings(SEED), period=2, **options)
    swarm.workers[1].buffers.array[...] = 8.0
    for _ in range(3):
        swarm.round()
    assert [float(worker.buffers.array[0]) for worker in swarm.workers] == [4.0, 4.0]


def test_a_period_in_seconds_gives_slow_nodes_as_many_outer_steps():
    """Of two nodes, one takes ten times as many inner steps in the same time."""
    swarm = Swarm("outer", starts(2), SwarmSettings(SEED), period_s=20.0, period=1)
    fast, slow = swarm.workers
    for rounds in range(211):
        present = [fast, slow] if rounds % 10 == 0 else [fast]
        swarm.round(noise(np.random.default_rng(rounds)), present)
    assert fast.updates == 211
    assert slow.updates == 22
    assert fast.algorithm._rounds == slow.algorithm._rounds == 10


# Limits


@given(st.floats(0.0, 0.99))
def test_outer_steps_diverge_exactly_from_the_limit_on(momentum):
    """If the inner steps reach a minimum at 0, the pseudo-gradient is the base itself."""

    def radius(lr):
        step = [[1 - lr * (1 + momentum), -lr * momentum**2], [1.0, momentum]]
        return np.abs(np.linalg.eigvals(np.array(step))).max()

    limit = nesterov_limit(momentum)
    assert radius(limit) == pytest.approx(1.0, abs=1e-9)
    assert radius(0.99 * limit) < 1.0 < radius(1.01 * limit)


@given(st.floats(0.0, 0.95), st.floats(0.01, 0.999), st.floats(0.0, 1.0))
def test_below_the_limit_mixes_of_random_pairs_keep_the_nodes_together(momentum, share, way):
    """In mean square. Inner steps go `way` of the way to the minimum; partners are independent."""
    lr = share * nesterov_limit(momentum)
    a, b = 1 - lr * way * (1 + momentum), -lr * momentum**2
    moments = np.array(  # of base and momentum: E ee, E em, E mm
        [
            [a * a / 2, a * b, b * b / 2],
            [a * way / 2, (a * momentum + b * way) / 2, b * momentum / 2],
            [way**2, 2 * way * momentum, momentum**2],
        ]
    )
    assert np.abs(np.linalg.eigvals(moments)).max() < 1.0


@pytest.mark.parametrize("options", [LocalOptions, OuterOptions])
def test_outer_steps_that_diverge_are_refused(options):
    assert options(lr=0.7, momentum=0.9).lr == 0.7
    with pytest.raises(ValidationError, match=r"below 1\.357, the limit for momentum 0\.9"):
        options(lr=1.4, momentum=0.9)


def test_a_long_outer_step_is_warned_of_with_the_change_to_make(caplog):
    with caplog.at_level(logging.WARNING, "dpwa.algorithms"):
        Swarm("outer", starts(1), lr=0.7, momentum=0.5)
        assert not caplog.records
        Swarm("outer", starts(1), lr=0.7, momentum=0.9)
    assert "7 times as far" in caplog.text
    assert "set momentum to at most 0.65" in caplog.text
