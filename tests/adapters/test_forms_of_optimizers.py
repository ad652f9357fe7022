"""The state of optimizers of any form goes with the module, bit by bit; what cannot is told."""

import msgpack
import pytest
import torch
from support.nodes import config_of
from support.optimizer_forms import FORMS, Momentum, OnItself, Wrapping
from support.state_donors import are_equal, state_of
from torch import nn

import dpwa
from dpwa.adapters.optimizer_state import left_out_of
from dpwa.adapters.training_state import TrainingState
from dpwa.state.replaced_parts import UnfitStateError

OF_TORCH = {
    "Adadelta": {},
    "Adafactor": {"lr": 0.02},
    "Adagrad": {"lr": 0.02},
    "Adam": {"lr": 0.02, "amsgrad": True},
    "AdamW": {"lr": 0.02},
    "Adamax": {"lr": 0.02},
    "ASGD": {"lr": 0.02},
    "LBFGS": {"max_iter": 3, "line_search_fn": "strong_wolfe"},
    "NAdam": {"lr": 0.02},
    "RAdam": {"lr": 0.02},
    "RMSprop": {"lr": 0.02, "momentum": 0.5},
    "Rprop": {"lr": 0.02},
    "SGD": {"lr": 0.02, "momentum": 0.9},
}
KINDS = FORMS | {
    name: lambda net, name=name, settings=settings: getattr(torch.optim, name)(
        net.parameters(), **settings
    )
    for name, settings in OF_TORCH.items()
}
KINDS["Muon"] = lambda net: torch.optim.Muon([p for p in net.parameters() if p.dim() == 2], lr=0.02)
KINDS["SparseAdam"] = lambda net: torch.optim.SparseAdam([net[0].weight], lr=0.02)
KINDS["SGD with more in a group"] = lambda net: torch.optim.SGD(
    [{"params": net.parameters(), "scaled_by": lambda depth: 0.9**depth, "depths": {"first": 2}}],
    lr=0.02,
)


def net_of(seed=1, *, is_sparse=False):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(6, 4, sparse=is_sparse), nn.Tanh(), nn.Linear(4, 3))


def take_steps(net, optimizer, steps, first=0):
    for step in range(first, first + steps):
        inputs = torch.arange(step, step + 8) % 6

        def closure(inputs=inputs):
            optimizer.zero_grad()
            loss = (net(inputs) - torch.linspace(-1, 1, 3)).square().mean()
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


class Side:
    def __init__(self, kind, seed):
        self.net = net_of(seed, is_sparse=kind == "SparseAdam")
        self.state = TrainingState(self.net)
        self.optimizer = KINDS[kind](self.net)
        self.state.optimizers.include(self.optimizer)

    def take_over(self, other):
        parts = other.state.capture()
        self.state.model().load(parts["model"].image, b"")
        self.state.optimizer_target().load(parts["optimizer"].image, parts["optimizer"].numbers)


@pytest.mark.parametrize("own_steps", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_goes_on_bit_by_bit_with_a_state_that_was_handed_on_twice(kind, own_steps):
    one, two, three = (Side(kind, seed) for seed in (1, 2, 3))
    take_steps(one.net, one.optimizer, 5)
    for side in (two, three):
        take_steps(side.net, side.optimizer, own_steps, first=20)
    two.take_over(one)
    three.take_over(two)
    for side in (one, two, three):
        take_steps(side.net, side.optimizer, 5, first=5)
        assert are_equal(state_of(side.net), state_of(one.net))


@pytest.mark.parametrize("kind", FORMS)
def test_trying_changes_nothing(kind):
    one, two, three = (Side(kind, seed) for seed in (1, 2, 2))
    take_steps(one.net, one.optimizer, 3)
    part = one.state.capture()["optimizer"]
    for side in (two, three):
        take_steps(side.net, side.optimizer, 2)
    two.state.optimizer_target().check(part.image, part.numbers)
    with pytest.raises(UnfitStateError):
        two.state.optimizer_target().load(part.image[:-1], part.numbers)
    for side in (two, three):
        take_steps(side.net, side.optimizer, 3)
    assert are_equal(state_of(two.net), state_of(three.net))


def test_what_is_the_same_on_and_in_an_optimizer_stays_the_same():
    one, two = Side("lookahead", 1), Side("lookahead", 2)
    take_steps(one.net, one.optimizer, 3)
    two.take_over(one)
    assert two.optimizer.param_groups is two.optimizer.optimizer.param_groups
    assert two.optimizer.fast_state is two.optimizer.optimizer.state
    assert two.optimizer.param_groups[0] is two.optimizer.optimizer.param_groups[0]


def test_settings_of_a_node_stay_and_what_has_changed_with_steps_is_taken_over():
    one, two = Side("on itself", 1), Side("on itself", 2)
    two.optimizer.rank = 7
    take_steps(one.net, one.optimizer, 3)
    two.take_over(one)
    assert (two.optimizer.rank, two.optimizer.count) == (7, 3)
    assert two.optimizer.scale == one.optimizer.scale


class Queue:
    """Neither data nor of the optimizer's module."""

    __module__ = "elsewhere"

    def __init__(self):
        self.values = torch.ones(2)


class Hidden(Momentum):
    def __init__(self, params, *, is_in_state):
        super().__init__(params)
        self.is_in_state = is_in_state
        if not is_in_state:
            self.queue = Queue()

    def direction(self, parameter):
        if self.is_in_state:
            self.state[parameter]["queue"] = Queue()
        return parameter.grad


@pytest.mark.parametrize("is_in_state", [False, True])
def test_what_cannot_be_handed_on_is_told_once_by_name_and_class(caplog, is_in_state):
    net = net_of()
    optimizer = Hidden(net.parameters(), is_in_state=is_in_state)
    config = config_of(2, timeout_ms=1, initial_state="own")
    with dpwa.connect(net, optimizer, config=config, name="w1") as gossip:
        told = [text for text in caplog.messages if "cannot be sent" in text]
        assert len(told) == (0 if is_in_state else 1)
        for step in range(4):
            take_steps(net, optimizer, 1, step)
            gossip.step(0.5)
    (told,) = [text for text in caplog.messages if "cannot be sent" in text]
    name = "Hidden.state[parameter 0]['queue']" if is_in_state else "Hidden.queue"
    assert f"{name}: it is a elsewhere.Queue" in told


def test_a_step_hook_a_function_or_the_trained_module_is_nothing_to_tell():
    net = net_of()
    optimizer = Wrapping(OnItself(net.parameters()))
    optimizer.register_step_post_hook(lambda *_: None)
    optimizer.model, optimizer.log, optimizer.rule = net, print, lambda lr: lr
    optimizer.average = nn.Linear(2, 2)
    state = TrainingState(net)
    state.optimizers.include(optimizer)
    take_steps(net, optimizer, 2)
    assert left_out_of(state.optimizers) == {}
    other = Side("inner of its own kind", 2)
    other.optimizer.model, other.optimizer.average = other.net, nn.Linear(2, 2)
    other.optimizer.register_step_pre_hook(hook := lambda *_: None)
    part = state.capture()["optimizer"]
    other.state.optimizer_target().load(part.image, part.numbers)
    assert torch.equal(other.optimizer.average.weight, optimizer.average.weight)
    assert isinstance(other.optimizer.average.weight, nn.Parameter)
    assert [*other.optimizer._optimizer_step_pre_hooks.values()] == [hook]


LIES = {
    "a method": [["step", 3]],
    "a method of its own": [["rule", 3]],
    "the state": [["state", {"d": []}]],
    "no name": [["a b", 3]],
    "a parameter that is not here": [["momenta", {"l": [{"p": 99}]}]],
    "a tensor that did not come": [["momenta", {"l": [{"t": ["kept.99", True]}]}]],
    "an object of another class": [["generator", {"o": ["OnItself", []]}]],
    "a class from elsewhere": [["found", {"o": ["torch", []]}]],
    "an unknown kind": [["count", {"x": 3}]],
    "a state dict that is refused": [["schedule", {"s": {"d": [["a", 1]]}}]],
    "no pairs": [3],
}


class Schedule:
    __module__ = "elsewhere"

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise KeyError(*state)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_attributes_that_no_such_optimizer_has_are_refused(lie):
    one, two = Side("on itself", 1), Side("on itself", 2)
    for side in (one, two):
        take_steps(side.net, side.optimizer, 2)
        side.optimizer.rule, side.optimizer.schedule = (lambda lr: lr), Schedule()
    part = one.state.capture()["optimizer"]
    numbers = msgpack.unpackb(part.numbers)
    numbers["attributes"][0] = lie
    before = dict(vars(two.optimizer))
    with pytest.raises(UnfitStateError):
        two.state.optimizer_target().load(part.image, msgpack.packb(numbers))
    assert vars(two.optimizer) == before
    take_steps(two.net, two.optimizer, 1)
