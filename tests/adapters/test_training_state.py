"""The state of modules and optimizers: complete, in place, and exact."""

import copy

import msgpack
import numpy as np
import pytest
import safetensors.torch
import torch
from support.nodes import config_of, eventually
from support.state_donors import ALONE, Net, adapter_of, are_equal, nodes, state_of, training
from torch import nn

from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.adapters.training_state import TrainingState
from dpwa.state.replaced_parts import UnfitStateError


class WithCounts(torch.optim.Optimizer):
    """An optimizer from elsewhere, which keeps a tensor and a plain number."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                sum_of = state.setdefault("sum", torch.zeros_like(parameter))
                sum_of.add_(parameter.grad)
                parameter.sub_(sum_of, alpha=group["lr"] / state["step"])


OPTIMIZERS = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.1),
    "SGD with momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    "Adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.01, betas=(0.8, 0.99)),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, amsgrad=True),
    "lr in a tensor": lambda net: torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01)),
    "RMSprop": lambda net: torch.optim.RMSprop(net.parameters(), lr=0.01, centered=True),
    "Adafactor": lambda net: torch.optim.Adafactor(net.parameters(), lr=0.01),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters(), initial_accumulator_value=0.1),
    "ASGD": lambda net: torch.optim.ASGD(net.parameters(), lr=0.01),
    "NAdam": lambda net: torch.optim.NAdam(net.parameters(), lr=0.01),
    "named": lambda net: torch.optim.Adam(net.named_parameters(), lr=0.01),
    "of a user": lambda net: WithCounts(net.parameters(), {"lr": 0.01}),
    "two groups": lambda net: torch.optim.Adam(
        [{"params": [net.weight], "lr": 0.1}, {"params": [net.bias], "weight_decay": 0.1}]
    ),
}
optimizers = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def train(net, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        inputs = torch.linspace(-1, step + 1, 12).view(3, 4)
        net(inputs.to(next(net.parameters()).dtype)).square().mean().backward()
        optimizer.step()


def linear(seed):
    torch.manual_seed(seed)
    return nn.Linear(4, 2)


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.1)


def trainings(*makes, **options):
    """Make two nets, and their states with an optimizer each; the options are of the second."""
    nets = linear(1), linear(2)
    states = TrainingState(nets[0]), TrainingState(nets[1], **options)
    for net, state, make in zip(nets, states, makes * (2 // len(makes)), strict=True):
        state.optimizers.include(make(net))
    return nets, states


def hand_over(one, two):
    """Let a state take over all of another one."""
    parts = one.capture()
    target = two.model()
    assert target.kind.fingerprint == parts["model"].kind.fingerprint
    target.load(parts["model"].image, parts["model"].numbers)
    target = two.optimizer_target()
    target.load(parts["optimizer"].image, parts["optimizer"].numbers)


def assert_they_train_alike(nets, *states):
    for net, state in zip(nets, states, strict=True):
        train(net, state.optimizers.given[0])
    for net in nets[1:]:
        assert are_equal(state_of(net), state_of(nets[0]))


@optimizers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_training_goes_on_exactly_as_the_donors_would_also_when_handed_over_twice(
    make, steps, dtype
):
    nets = [linear(seed).to(dtype) for seed in (1, 2, 3)]
    states = [TrainingState(net) for net in nets]
    for net, state in zip(nets, states, strict=True):
        state.optimizers.include(make(net))
    states[0].optimizers.given[0].param_groups[0]["lr"] *= 0.5  # a schedule has come so far
    train(nets[0], states[0].optimizers.given[0], steps)
    hand_over(*states[:2])
    hand_over(*states[1:])
    assert_they_train_alike(nets, *states)


def test_learning_rates_stay_where_nodes_have_different_ones():
    nets, (one, two) = trainings(adam, keeps_lr=True)
    two.optimizers.given[0].param_groups[0]["lr"] = 0.7
    train(nets[0], one.optimizers.given[0])
    hand_over(one, two)
    assert two.optimizers.given[0].param_groups[0]["lr"] == 0.7
    assert len(two.optimizers.given[0].state) == 2


def test_the_image_is_what_safetensors_and_torch_understand():
    net = Net(1)
    image = TrainingState(net).capture()["model"].image
    loaded = safetensors.torch.load(image.tobytes())
    assert "last.weight" not in loaded  # it is tied
    other = Net(2)
    assert other.load_state_dict(loaded, strict=False).missing_keys == ["last.weight"]
    assert are_equal(state_of(net), state_of(other))


def test_images_of_equal_modules_have_equal_headers_and_wrappers_do_not_count():
    one, two = TrainingState(Net(1)), TrainingState(nn.DataParallel(Net(2)))
    mine, theirs = one.capture()["model"], two.capture()["model"]
    assert mine.layout.header == theirs.layout.header
    assert mine.image.tobytes() != theirs.image.tobytes()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex128])
def test_every_dtype_and_every_stride_keeps_its_values(dtype):
    def net(seed):
        torch.manual_seed(seed)
        made = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        made.extra = nn.Parameter(torch.randn(4, 3).t().to(dtype))
        made.register_buffer("empty", torch.zeros(0))
        made.register_buffer("mask", torch.tensor([True, False]))
        made.register_buffer("infinite", torch.tensor([-torch.inf]))
        made.register_buffer("cache", torch.tensor([float(seed)]), persistent=False)
        return made

    one, two = net(1), net(2)
    part = TrainingState(one).capture()["model"]
    TrainingState(two).model().load(part.image, part.numbers)
    assert are_equal(state_of(one), state_of(two))
    assert two.cache == 2.0


def test_a_state_that_does_not_fit_changes_nothing():
    nets, (one, two) = trainings(adam)
    for net, state in zip(nets, (one, two), strict=True):
        train(net, state.optimizers.given[0])
    part = one.capture()["optimizer"]
    before = copy.deepcopy(two.optimizers.given[0].state_dict())
    load = two.optimizer_target().load
    for image, numbers in (
        (part.image[:-1], part.numbers),
        (part.image, b"\x80"),
        (part.image, b""),
    ):
        with pytest.raises(UnfitStateError):
            load(image, numbers)
    assert str(two.optimizers.given[0].state_dict()) == str(before)
    image = two.capture()["model"].image
    image[9] ^= 1
    with pytest.raises(UnfitStateError):
        two.model().load(image, b"")


def lies():
    """What a donor of the state of Adam may say, by name: changes of tensors and of numbers."""

    def tensor(name, value):
        return lambda tensors, numbers: tensors.update({name: value})

    def group(**changes):
        return lambda tensors, numbers: numbers["groups"][0].update(changes)

    return {
        "a shape": tensor("0.exp_avg", torch.zeros(4, 2)),
        "a shape that can be broadcast": tensor("0.exp_avg", torch.zeros(1, 4)),
        "a dtype": tensor("0.exp_avg", torch.zeros(2, 4, dtype=torch.int32)),
        "a narrower dtype": tensor("0.exp_avg_sq", torch.zeros(2, 4, dtype=torch.float16)),
        "an unknown key": tensor("0.exp_max", torch.zeros(2, 4)),
        "not finite": tensor("1.exp_avg", torch.full((2,), torch.nan)),
        "steps in a vector": tensor("0.step", torch.zeros(2)),
        "fewer than no steps": tensor("0.step", torch.tensor(-5.0)),
        "steps in words": lambda tensors, numbers: (
            tensors.pop("0.step"),
            numbers["state"]["0"].update(step="three"),
        ),
        "no steps": lambda tensors, numbers: tensors.pop("0.step"),
        "a parameter that is not here": lambda tensors, numbers: (
            numbers["state"].update({"2": {}}),
            tensors.update({"2.step": torch.tensor(1.0)}),
        ),
        "a group that is not here": tensor("group.1.lr", torch.tensor(0.1)),
        "a group too many": lambda tensors, numbers: numbers["groups"].append({}),
        "no groups": lambda tensors, numbers: numbers.update(groups=[]),
        "groups of words": lambda tensors, numbers: numbers.update(groups="ab"),
        "states of words": lambda tensors, numbers: numbers.update(state="ab"),
        "an unknown setting in words": group(momentum="0.9"),
        "a setting in words": group(lr="0.1"),
        "a setting that is not finite": group(lr=float("inf")),
        "a setting below zero": group(weight_decay=-1.0),
        "a setting in a vector": tensor("group.0.lr", torch.zeros(3)),
        "betas in words": group(betas=["a", "b"]),
        "too few betas": group(betas=[0.9]),
        "betas that no Adam has": group(betas=[1.0, 0.9]),
        "another variant": group(amsgrad=True),
        "a variant as a number": group(amsgrad=1),
    }


def told(part, lie):
    """The image and the numbers of a part, after a lie."""
    tensors, numbers = safetensors.torch.load(part.image.tobytes()), msgpack.unpackb(part.numbers)
    lie(tensors, numbers)
    image = np.frombuffer(safetensors.torch.save(tensors), np.uint8)
    return image, msgpack.packb(numbers)


@pytest.mark.parametrize("lie", lies().values(), ids=lies())
@pytest.mark.parametrize("steps", [0, 2])
def test_a_state_that_no_such_optimizer_has_changes_nothing(lie, steps):
    nets, (one, two) = trainings(adam)
    train(nets[0], one.optimizers.given[0])
    train(nets[1], two.optimizers.given[0], steps)
    image, numbers = told(one.capture()["optimizer"], lie)
    before = copy.deepcopy(two.optimizers.given[0].state_dict())
    with pytest.raises(UnfitStateError):
        two.optimizer_target().load(image, numbers)
    assert str(two.optimizers.given[0].state_dict()) == str(before)
    train(nets[1], two.optimizers.given[0])


def test_of_optimizers_from_elsewhere_whatever_they_keep_is_taken():
    """Factored and flattened moments, codebooks: many keep something of another shape."""

    class Factored(WithCounts):
        def step(self):
            super().step()
            for parameter, state in self.state.items():
                state["row"] = parameter.grad.mean(dim=-1)
                state["progress"] = -1.0

    nets, (one, two) = trainings(lambda net: Factored(net.parameters(), {"lr": 0.01}))
    train(nets[0], one.optimizers.given[0])
    hand_over(one, two)
    assert_they_train_alike(nets, one, two)


SCHEDULERS = {
    "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=20
    ),
    "CosineAnnealingLR": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("has_own", [False, True])
def test_a_scheduler_hinders_nobody_whether_it_is_made_before_or_after(make, has_own):
    nets, (one, two) = trainings(adam)
    scheduler = make(one.optimizers.given[0])
    for _ in range(4):
        train(nets[0], one.optimizers.given[0], 1)
        scheduler.step()
    if has_own:
        make(two.optimizers.given[0])
    hand_over(one, two)
    groups = [state.optimizers.given[0].param_groups[0] for state in (one, two)]
    assert groups[0]["lr"] == groups[1]["lr"]
    assert groups[0]["initial_lr"] == groups[1]["initial_lr"]
    assert_they_train_alike(nets, one, two)


def test_an_optimizer_that_refuses_what_it_has_half_taken_is_as_it_was():
    class Hesitating(torch.optim.SGD):
        def __setstate__(self, state):
            super().__setstate__(state)
            raise KeyError("step")

    nets, (one, two) = trainings(
        lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        lambda net: Hesitating(net.parameters(), lr=0.5, momentum=0.9),
    )
    train(nets[0], one.optimizers.given[0])
    part = one.capture()["optimizer"]
    with pytest.raises(UnfitStateError, match="KeyError"):
        two.optimizer_target().load(part.image, part.numbers)
    assert two.optimizers.given[0].param_groups[0]["lr"] == 0.5
    assert not two.optimizers.given[0].state


def test_an_optimizer_whose_state_is_more_than_tensors_and_plain_data_is_left_out():
    class WithSets(WithCounts):
        def step(self):
            super().step()
            self.state[self.param_groups[0]["params"][0]]["seen"] = {1, 2}

    net = linear(1)
    state = TrainingState(net)
    state.optimizers.include(WithSets(net.parameters(), {"lr": 0.01}))
    train(net, state.optimizers.given[0], 1)
    assert state.capture().keys() == {"model"}


def test_a_late_joiner_goes_on_with_the_optimizer_of_its_donor():
    config = config_of(2, **ALONE, initial_state="peers")
    nets = linear(1), linear(2)
    adams = [torch.optim.Adam(net.parameters(), lr=0.01) for net in nets]
    train(nets[0], adams[0], 5)

    def node(index):
        adapter = adapter_of(nets[index], f"w{index + 1}", config)
        GossipOptimizer(adams[index], adapter)
        return adapter

    with nodes(node(0)) as (first,), training(first):
        eventually(lambda: first.clock >= 1)
        with nodes(node(1)):
            pass
    for net, adam in zip(nets, adams, strict=True):
        train(net, adam, 4)
    assert are_equal(state_of(nets[0]), state_of(nets[1]))


def test_with_another_optimizer_the_module_alone_is_taken_over(caplog):
    config = config_of(2, **ALONE, initial_state="peers")
    nets = linear(1), linear(2)
    adam = torch.optim.Adam(nets[0].parameters())
    sgd = torch.optim.SGD(nets[1].parameters(), momentum=0.9)
    with nodes(adapter_of(nets[0], "w1", config, optimizer=adam)) as (first,), training(first):
        eventually(lambda: first.clock >= 1)
        with nodes(adapter_of(nets[1], "w2", config, optimizer=sgd)) as (second,):
            assert second.clock >= 1
    assert are_equal(state_of(nets[0]), state_of(nets[1]))
    assert not sgd.state
    (warning,) = [text for text in caplog.messages if "starts with its own optimizer" in text]
    assert "here 'torch.optim.sgd.SGD' optimizer[], there 'torch.optim.adam.Adam'" in warning
