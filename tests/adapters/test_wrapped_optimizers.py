"""Optimizers in wrappers, and what schedulers hold of them: found in one place."""

from contextlib import closing

import pytest
import torch
from support.nodes import config_of
from torch import nn

import dpwa
from dpwa.adapters.optimizer import GossipOptimizer, Optimizers, followed, unwrapped
from dpwa.errors import UserError


class Passing(torch.optim.Optimizer):
    """As AcceleratedOptimizer: all is the inner one's, and the constructor of torch is not run."""

    def __init__(self, inner, name="optimizer"):
        self._name = name
        setattr(self, name, inner)

    state = property(lambda self: getattr(self, self._name).state)
    param_groups = property(lambda self: getattr(self, self._name).param_groups)
    defaults = property(lambda self: getattr(self, self._name).defaults)

    def step(self, closure=None):
        return getattr(self, self._name).step(closure)


class Slow(torch.optim.Optimizer):
    """As Lookahead: has a state of its own, and an inner optimizer of the same parameters."""

    def __init__(self, inner, name="optimizer", *, is_whole=True):
        if is_whole:
            super().__init__(inner.param_groups, {})
        else:
            self.state = {}
        setattr(self, name, inner)
        self.param_groups = inner.param_groups

    def step(self, closure=None):
        return self.optimizer.step(closure)


class Scheduler:
    """As AcceleratedScheduler."""

    def __init__(self, scheduler, optimizers):
        self.scheduler, self.optimizers = scheduler, optimizers

    def state_dict(self):
        return self.scheduler.state_dict()

    def load_state_dict(self, state):
        self.scheduler.load_state_dict(state)


@pytest.fixture
def net():
    return nn.Linear(3, 2)


@pytest.fixture
def adam(net):
    return torch.optim.AdamW(net.parameters(), 0.01)


@pytest.fixture
def optimizers():
    """Those of a module that nobody watches."""
    found = Optimizers()
    found._trains = lambda _: None
    return found


@pytest.mark.parametrize("name", ["optimizer", "original_optimizer", "base_optimizer"])
def test_a_wrapper_that_only_passes_on_is_not_what_is_given(adam, name):
    assert unwrapped(Passing(Passing(adam, name))) is adam
    assert followed(Passing(adam, name)) is adam


def test_a_wrapper_with_a_state_of_its_own_stays_and_its_steps_are_followed(adam):
    outer = Slow(adam)
    assert unwrapped(outer) is outer
    assert followed(outer) is outer
    assert followed(Slow(adam, is_whole=False)) is adam


def test_an_optimizer_of_other_parameters_in_an_attribute_is_another_one(net, adam, optimizers):
    of_others = torch.optim.SGD(nn.Linear(3, 2).parameters(), 0.1)
    of_one = torch.optim.SGD([net.weight], 0.1)
    for other in (of_others, of_one):
        adam.optimizer = other
        assert unwrapped(adam) is adam
        assert followed(adam) is adam
    optimizers.include(adam)
    assert optimizers.given == [adam]


@pytest.mark.parametrize("is_first", [False, True])
def test_the_optimizer_of_a_scheduler_is_the_one_that_is_given(adam, optimizers, is_first):
    outer = Slow(adam)
    of_inner = torch.optim.lr_scheduler.StepLR(adam, 2)
    of_passing = torch.optim.lr_scheduler.LambdaLR(Passing(outer), lambda _: 1.0)
    given = [Scheduler(of_inner, [Passing(adam)]), of_passing]
    assert optimizers.include(None if is_first else outer, given)
    assert optimizers.given == [outer]
    assert optimizers.schedulers == [of_inner, of_passing]
    assert not optimizers.include(Passing(outer), given)
    assert optimizers.given == [outer]


def test_the_scaler_of_a_wrapper_goes_with_the_optimizer(adam, optimizers):
    outer = Passing(adam)
    outer.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizers.include(outer)
    assert optimizers.scales() == [64.0]


class Mute:
    """No optimizer of torch: nobody knows when it steps."""

    def __init__(self, net):
        self.param_groups, self.state = [{"params": [*net.parameters()]}], {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("wrapped", [Passing, Slow])
def test_gradients_are_averaged_before_the_steps_of_a_wrapped_optimizer(net, adam, wrapped):
    config = config_of(2, algorithm="together", log_level="error")
    outer = wrapped(adam)
    with dpwa.connect(net, outer, config=config, name="w1") as gossip:
        asked = []
        gossip._gradients._average_for = lambda _: asked.append(True)
        net(torch.ones(1, 3)).sum().backward()
        gossip.update_send()
        outer.step()
        gossip.update_wait()
    assert asked == [True]


@pytest.mark.parametrize("algorithm", ["together", "gossip"])
def test_two_optimizers_of_the_same_parameters_are_refused_unless_one_has_the_other(
    net, adam, algorithm
):
    config = config_of(2, algorithm=algorithm, log_level="error")
    other = torch.optim.SGD([net.weight], 0.1)
    with pytest.raises(UserError, match=r"AdamW and SGD share .*DPWA-E310"):
        dpwa.connect(net, [adam, other], config=config, name="w1")
    for given in ([adam, Slow(adam)], [Slow(adam), adam], [adam, adam]):
        Optimizers().include(given)


def test_an_optimizer_that_does_not_tell_of_its_steps_is_refused_where_they_must_be_known(net):
    config = config_of(2, algorithm="together", log_level="error")
    with pytest.raises(UserError, match=r"got Mute.*DPWA-E302"):
        dpwa.connect(net, Mute(net), config=config, name="w1")
    gossip = dpwa.connect(net, Mute(net), config={**config, "algorithm": "gossip"}, name="w1")
    with closing(gossip):
        gossip.step(0.5)


class Accelerated(Passing):
    """Takes no step while gradients are accumulated, and leaves out some."""

    step_was_skipped = False

    class gradient_state:  # noqa: N801
        sync_gradients = True

    def step(self, closure=None):
        if self.gradient_state.sync_gradients and not self.step_was_skipped:
            super().step(closure)


@pytest.mark.parametrize("how", ["wrapped", "attached"])
def test_a_step_that_a_wrapper_leaves_out_is_none_of_gossip(net, adam, how):
    outer = Accelerated(adam)
    config = config_of(2, log_level="error", timeout_ms=1)
    with dpwa.connect(net, config=config, name="w1") as gossip:
        if how == "wrapped":
            outer_step = GossipOptimizer(outer, gossip).step
        else:
            gossip.attach(outer)
            outer_step = outer.step
        for skipped, synchronised in ((False, True), (True, True), (False, False), (False, True)):
            outer.step_was_skipped = skipped
            outer.gradient_state.sync_gradients = synchronised
            outer_step()
        assert gossip.updates == 2
