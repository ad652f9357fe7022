"""An optimizer whose step is also a step of gossip: all else must be as without it."""

import copy
import pickle

import pytest
import torch
from torch import nn

from dpwa.adapters.optimizer import GossipOptimizer, Optimizers
from dpwa.errors import UserError
from dpwa.types import loss_value


class FakeConnection:
    """Notes the losses it is given, and the parameters of that moment."""

    def __init__(self, net, lr_scale=1.0):
        self.net = net
        self.lr_scale = lr_scale
        self.losses = []
        self.seen = []

    def include_optimizer(self, optimizer):
        self.optimizer = optimizer

    def step(self, loss=None):
        self.losses.append(loss_value(loss))
        self.seen.append([p.detach().clone() for p in self.net.parameters()])
        return f"merge {len(self.losses)}"


def net_of():
    torch.manual_seed(3)
    return nn.Linear(4, 2)


def loss_of(net):
    return net(torch.linspace(-1, 1, 12).view(3, 4)).square().mean()


def train(net, optimizer, steps=3, scheduler=None):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


OPTIMIZERS = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    "fused SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, fused=True),
    "Adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.1),
    "lr in a tensor": lambda net: torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1)),
}
optimizers = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def twins(make, **settings):
    """A plain optimizer and a wrapped one, on equal modules."""
    one, two = net_of(), net_of()
    return one, make(one), two, GossipOptimizer(make(two), FakeConnection(two, **settings))


def assert_equal(one, two):
    for mine, theirs in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@optimizers
def test_training_is_as_without_it_and_gossip_follows_every_step(make):
    one, plain, two, wrapped = twins(make)
    assert isinstance(wrapped, torch.optim.Optimizer)
    for round_number in range(1, 4):
        train(one, plain, steps=1)
        train(two, wrapped, steps=1)
        assert_equal(one, two)
        assert wrapped.last_merge == f"merge {round_number}"
        for seen, parameter in zip(wrapped.conn.seen[-1], one.parameters(), strict=True):
            assert torch.equal(seen, parameter)  # what is published has made the step


def test_the_loss_is_that_of_the_call_else_of_the_closure_else_the_last_one_set():
    net = net_of()
    optimizer = GossipOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), FakeConnection(net))
    assert optimizer.last_merge is None
    optimizer.step()
    optimizer.loss = torch.tensor(0.5)
    optimizer.step()
    optimizer.step(lambda: torch.tensor(0.25))
    optimizer.step(lambda: torch.tensor(0.25), loss=0.125)
    optimizer.step(loss=0.0)
    optimizer.step()
    assert optimizer.conn.losses == [None, 0.5, 0.25, 0.125, 0.0, 0.5]


def test_lbfgs_evaluates_its_closure_as_often_as_it_likes_and_gossips_once():
    def closure_of(net, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(net)
            loss.backward()
            return loss

        return closure

    one, plain, two, wrapped = twins(lambda net: torch.optim.LBFGS(net.parameters(), max_iter=5))
    first = loss_of(one).item()
    expected = plain.step(closure_of(one, plain))
    assert torch.equal(wrapped.step(closure_of(two, wrapped)), expected)
    assert_equal(one, two)
    assert wrapped.conn.losses == [first]


def test_a_step_that_fails_is_not_gossiped():
    net = net_of()
    optimizer = GossipOptimizer(torch.optim.SGD(net.parameters()), FakeConnection(net))
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    assert optimizer.conn.losses == []


SCHEDULERS = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=9),
    "cosine after a warm-up": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2),
            torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
        ],
        milestones=[2],
    ),
}


@optimizers
@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_work_on_it_and_do_not_warn(make, schedule):
    one, plain, two, wrapped = twins(make)
    train(one, plain, 5, schedule(plain))
    train(two, wrapped, 5, schedule(wrapped))
    assert_equal(one, two)
    assert float(wrapped.param_groups[0]["lr"]) == float(plain.param_groups[0]["lr"]) != 0.1
    assert len(wrapped.conn.losses) == 5


def test_a_scheduler_of_the_wrapped_optimizer_works_on():
    net = net_of()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    train(net, GossipOptimizer(plain, FakeConnection(net)), 2, scheduler)
    assert plain.param_groups[0]["lr"] == 0.025


@optimizers
@pytest.mark.parametrize("enabled", [True, False])
def test_a_grad_scaler_unscales_gradients_as_without_it(make, enabled):
    one, plain, two, wrapped = twins(make)
    for net, optimizer in ((one, plain), (two, wrapped)):
        scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=1024.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(net)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        scaler.scale(loss_of(net)).backward()
        scaler.step(optimizer)
    assert_equal(one, two)
    assert len(wrapped.conn.losses) == 4


def test_a_step_that_a_scaler_skips_is_no_step_of_gossip_and_a_loss_passes_through():
    net = net_of()
    optimizer = GossipOptimizer(torch.optim.Adam(net.parameters()), FakeConnection(net))
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        (scaler.scale(loss_of(net)) * factor).backward()
        scaler.step(optimizer, loss=0.5)
        scaler.update()
    assert optimizer.conn.losses == [0.5, 0.5]


@optimizers
def test_its_state_is_that_of_the_plain_optimizer_both_ways(make):
    one, plain, two, wrapped = twins(make)
    train(two, wrapped)
    one.load_state_dict(two.state_dict())
    plain.load_state_dict(copy.deepcopy(wrapped.state_dict()))
    train(one, plain)
    train(two, wrapped)
    assert_equal(one, two)
    wrapped.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert wrapped.param_groups is wrapped.optimizer.param_groups
    assert wrapped.state is wrapped.optimizer.state
    train(one, plain)
    train(two, wrapped)
    assert_equal(one, two)


def test_all_else_is_the_wrapped_optimizers():
    net = net_of()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = GossipOptimizer(plain, FakeConnection(net))
    calls = []
    handles = [
        optimizer.register_step_pre_hook(lambda o, *_: calls.append(("before", o is plain))),
        plain.register_step_post_hook(lambda o, *_: calls.append(("after", o is plain))),
    ]
    train(net, optimizer, 1)
    assert calls == [("before", True), ("after", True)]
    for handle in handles:
        handle.remove()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.5})
    assert [group["lr"] for group in plain.param_groups] == [0.1, 0.5]
    assert optimizer.defaults is plain.defaults
    assert "lr: 0.5" in repr(optimizer)
    optimizer.zero_grad(set_to_none=False)
    assert not bool(net.weight.grad.any())
    optimizer.param_groups = optimizer.param_groups[:1]
    assert len(plain.param_groups) == 1
    with pytest.raises(AttributeError, match="no_such_thing"):
        optimizer.no_such_thing  # noqa: B018


def test_learning_rates_are_scaled_once():
    net = net_of()
    lr = torch.tensor(0.25)
    groups = [{"params": [net.weight]}, {"params": [net.bias], "lr": lr, "initial_lr": 0.125}]
    plain = torch.optim.Adam(groups, lr=0.5)
    optimizer = GossipOptimizer(plain, FakeConnection(net, lr_scale=4.0))
    first, second = optimizer.param_groups
    assert first["lr"] == 2.0
    assert "initial_lr" not in first
    assert torch.equal(second["lr"], torch.tensor(1.0))
    assert second["initial_lr"] == 0.5
    assert lr.item() == 0.25  # the caller's own
    optimizer.step()
    assert first["lr"] == 2.0


def test_a_scale_of_1_changes_nothing():
    net = net_of()
    lr = torch.tensor(0.25)
    plain = torch.optim.Adam([{"params": net.parameters(), "lr": lr}])
    GossipOptimizer(plain, FakeConnection(net))
    assert plain.param_groups[0]["lr"] is lr


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_cannot_be_copied(duplicate):
    net = net_of()
    optimizer = GossipOptimizer(torch.optim.SGD(net.parameters()), FakeConnection(net))
    with pytest.raises(UserError, match="Save its state_dict"):
        duplicate(optimizer)


def test_a_scheduler_that_begins_anew_is_warned_of_once(caplog):
    sgd = torch.optim.SGD([torch.zeros(1)], 0.1)
    torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: 1.0)
    optimizers = Optimizers()
    optimizers.given = [sgd]
    for updates in (3, 7):
        optimizers.require_schedulers("w1", updates)
    assert caplog.text.count("DPWA-W071") == 1
