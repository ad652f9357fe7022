"""Optimizers of all kinds between two nodes: equal in the end, and as good as one alone."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import torch
from support.nodes import config_of, eventually, is_connected
from support.optimizers import ScheduleFree
from support.state_donors import ALONE, are_equal, nodes, state_of, training
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

import dpwa
from dpwa.adapters.optimizer import GossipOptimizer
from dpwa.adapters.optimizer_state import progress_of, resume
from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.adapters.training_state import TrainingState
from dpwa.errors import UserError
from dpwa.state.replaced_parts import UnfitStateError

TEACHER = torch.randn(16, 4, generator=torch.Generator().manual_seed(9))


def data(count, seed):
    inputs = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs @ TEACHER).argmax(1)


def net_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def bf16_net():
    return net_of().bfloat16()


class Masters:
    """AdamW on fp32 copies of a bfloat16 module, which gets their values after each step."""

    def __init__(self, net):
        self.net = net
        self.masters = nn.ParameterList(p.detach().float() for p in net.parameters())
        self.inner = torch.optim.AdamW(self.masters, lr=0.02)

    def zero_grad(self):
        self.net.zero_grad()

    def step(self):
        for master, parameter in zip(self.masters, self.net.parameters(), strict=True):
            master.grad = parameter.grad.float()
        self.inner.step()

    @torch.no_grad()
    def copy_back(self):
        for master, parameter in zip(self.masters, self.net.parameters(), strict=True):
            parameter.copy_(master)


def eight_groups(net):
    layers = [net[0], net[2]]
    halves = [p for layer in layers for p in (layer.weight, layer.bias)]
    empty = [{"params": []} for _ in range(4)]
    return torch.optim.AdamW([*({"params": [p], "lr": 0.02} for p in halves), *empty])


def muon_and_adamw(net):
    matrices = [p for p in net.parameters() if p.dim() == 2]
    others = [p for p in net.parameters() if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.02)]


KINDS = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.5),
    "SGD with momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=0.02),
    "AdamW, foreach": lambda net: torch.optim.AdamW(net.parameters(), lr=0.02, foreach=True),
    "AdamW, fused": lambda net: torch.optim.AdamW(net.parameters(), lr=0.02, fused=True),
    "Adafactor": lambda net: torch.optim.Adafactor(net.parameters(), lr=0.05),
    "Muon and AdamW in a list": muon_and_adamw,
    "schedule-free SGD": lambda net: ScheduleFree(net.parameters(), lr=2.0),
    "schedule-free AdamW": lambda net: ScheduleFree(net.parameters(), lr=0.02, beta2=0.999),
    "LBFGS": lambda net: torch.optim.LBFGS(
        net.parameters(), max_iter=4, line_search_fn="strong_wolfe"
    ),
    "8 groups": eight_groups,
    "fp32 masters": Masters,
}


class Trainer:
    """A module with its optimizers, which takes steps on batches of its own."""

    def __init__(self, make, rank):
        self.net, self.rank, self.steps = (bf16_net if make is Masters else net_of)(), rank, 0
        self.made = make(self.net)
        self.optimizers = self.made if isinstance(self.made, list) else [self.made]
        self.gossiped, self.given = self.net, self.made
        if isinstance(self.made, Masters):
            self.gossiped, self.given = self.made.masters, self.made.inner
        self.switch("train")

    def switch(self, mode):
        for optimizer in self.optimizers:
            getattr(optimizer, mode, lambda: None)()

    def loss(self, inputs, targets):
        dtype = next(self.net.parameters()).dtype
        return functional.cross_entropy(self.net(inputs.to(dtype)).float(), targets)

    def step(self):
        self.steps += 1
        is_lbfgs = isinstance(self.optimizers[0], torch.optim.LBFGS)  # all of its data at once
        batch = data(*((256, self.rank) if is_lbfgs else (32, 1000 * self.rank + self.steps)))

        def closure():
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = self.loss(*batch)
            loss.backward()
            return loss

        if is_lbfgs:
            return self.optimizers[0].step(closure)
        loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def copied(self):
        if isinstance(self.made, Masters):
            self.made.copy_back()

    def held_out(self):
        with torch.no_grad():
            return float(self.loss(*data(1000, 5)))

    def values(self):
        return torch.cat([p.detach().flatten() for p in self.net.parameters()])


def alone(make, rank, steps):
    trainer = Trainer(make, rank)
    for _ in range(steps):
        trainer.step()
        trainer.copied()
    trainer.switch("eval")
    return trainer.held_out()


def gossiping(trainer, node, how):
    """Return what takes one training step with one of gossip."""
    if how == "two calls":

        def step():
            node.update_send()
            trainer.step()
            node.update_wait()

        return step
    if how == "attached":
        node.attach(trainer.made)
        return trainer.step
    if how == "GossipOptimizer":
        trainer.optimizers = [GossipOptimizer(trainer.made, node)]
        return trainer.step
    return lambda: node.step(trainer.step().item())


def together(make, steps, how="step", **settings):
    """Train two nodes, step by step; they end together."""
    config = config_of(2, **{"initial_state": "own", "merge": "delta", **settings})
    trainers = [Trainer(make, rank) for rank in (0, 1)]
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                dpwa.connect(
                    trainer.gossiped,
                    None if how == "not given" else trainer.given,
                    config=config,
                    name=f"w{rank}",
                )
            )
            for rank, trainer in enumerate(trainers, start=1)
        ]
        for node, peer in zip(made, ("w2", "w1"), strict=True):
            eventually(lambda node=node, peer=peer: is_connected(node.connection, peer))
        loops = [gossiping(t, node, how) for t, node in zip(trainers, made, strict=True)]
        for _ in range(steps):
            for trainer, step in zip(trainers, loops, strict=True):
                step()
                trainer.copied()
        with ThreadPoolExecutor() as pool:
            reports = list(pool.map(lambda node: node.finish(), made))
        assert all(report.took_part for report in reports)
        assert min(node.connection.node.report()["merges"] for node in made) > steps // 2
    for trainer in trainers:
        trainer.copied()
        if how == "step":
            trainer.switch("eval")  # as its package says, before it is tested
    return trainers


def check(make, steps):
    best = min(alone(make, rank, steps) for rank in (0, 1))
    one, two = together(make, steps)
    assert (one.values() - two.values()).abs().max() < 1e-4
    assert max(one.held_out(), two.held_out()) <= best


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_nodes_end_equal_and_are_as_good_as_one_alone(make):
    check(make, 200)


@pytest.mark.parametrize("make", [KINDS["schedule-free AdamW"], KINDS["fp32 masters"]])
def test_nodes_end_equal_and_are_as_good_as_one_alone_after_few_steps(make):
    check(make, 40)


# Optimizers that keep an iterate of their own


@pytest.mark.parametrize("how", ["two calls", "attached", "GossipOptimizer", "not given"])
def test_whoever_gossips_what_is_gossiped_is_what_the_optimizer_evaluates(how):
    one, two = together(KINDS["schedule-free AdamW"], 8, how)
    assert (one.values() - two.values()).abs().max() < 1e-5
    for trainer in (one, two):
        before = trainer.values()
        trainer.switch("eval")  # as its package says, and as it is already
        assert torch.equal(trainer.values(), before)
        trainer.switch("train")
    assert (one.values() - two.values()).abs().max() > 1e-3


@contextmanager
def alone_as(net, optimizer=None, **options):
    """A node that merges nothing."""
    with DpwaPyTorchAdapter(net, "w1", config_of(2, **OWN), optimizer=optimizer, **options) as node:
        yield node


OWN = {**ALONE, "initial_state": "own"}


def schedule_free(net):
    made = ScheduleFree(net.parameters(), lr=0.1)
    made.train()
    return made


def steps_of(net, optimizers, count=1, gossip=None):
    for _ in range(count):
        net.zero_grad()
        functional.cross_entropy(net(data(8, 1)[0]), data(8, 1)[1]).backward()
        for optimizer in optimizers:
            optimizer.step()
        if gossip is not None:
            gossip.step(0.5)


def test_an_optimizer_is_in_the_mode_that_it_was_in_and_its_iterates_are_as_without_gossip():
    plain, net = net_of(), net_of()
    twins = schedule_free(plain), schedule_free(net)
    with alone_as(net, twins[1]) as gossip:
        for _ in range(5):
            steps_of(plain, twins[:1])
            steps_of(net, twins[1:], gossip=gossip)
            torch.testing.assert_close(list(net.parameters()), list(plain.parameters()))
        twins[1].eval()
        gossip.step(0.5)
        assert not twins[1].param_groups[0]["train_mode"]


def test_who_takes_over_has_both_iterates_of_the_donor_and_trains():
    nets = net_of(1), net_of(2)
    states = [TrainingState(net) for net in nets]
    for state, net in zip(states, nets, strict=True):
        state.optimizers.include(schedule_free(net))
    steps_of(nets[0], states[0].optimizers.given, 3)
    with states[0].optimizers.prepared():
        parts = states[0].capture()
    states[1].model().load(parts["model"].image, b"")
    states[1].optimizer_target().load(parts["optimizer"].image, parts["optimizer"].numbers)
    for net, state in zip(nets, states, strict=True):
        steps_of(net, state.optimizers.given, 2)
    torch.testing.assert_close(list(nets[0].parameters()), list(nets[1].parameters()))


def test_an_optimizer_whose_place_another_one_has_taken_is_left_alone():
    net = net_of()
    first = schedule_free(net)
    with alone_as(net, first) as gossip:
        steps_of(net, [first], 5, gossip)
        second = torch.optim.SGD(net.parameters(), lr=0.1)  # nobody says so
        steps_of(net, [second], 1)
        before = [p.detach().clone() for p in net.parameters()]
        gossip.step(0.5)
        assert all(map(torch.equal, before, net.parameters()))


def test_an_optimizer_that_wraps_another_one_is_switched_itself():
    class Wrapper:  # as the one of the package, which is no optimizer of torch
        def __init__(self, base):
            self.base, self.train_mode = base, True

        def train(self):
            self.train_mode = True

        def eval(self):
            self.train_mode = False

        def __getattr__(self, name):
            return getattr(self.__dict__["base"], name)

    net, modes = net_of(), []
    wrapper = Wrapper(torch.optim.SGD(net.parameters(), lr=0.1))
    with alone_as(net, wrapper, leader_loss=lambda: modes.append(wrapper.train_mode)) as gossip:
        steps_of(net, [wrapper], 5, gossip)
    assert modes == [False] * 5
    assert wrapper.train_mode


@contextmanager
def far_behind(one, two, optimizer):
    """The adapters of two modules, of which the second has made two steps while peers made 40."""
    config = config_of(2, initial_state="own")
    with nodes(DpwaPyTorchAdapter(one, "w1", config), DpwaPyTorchAdapter(two, "w2", config)) as (
        first,
        second,
    ):
        eventually(lambda: is_connected(second.connection, "w1"))
        for _ in range(40):
            first.step(0.5)
        steps_of(two, [optimizer], 2)
        yield first, second


def test_who_is_far_behind_at_a_merge_begins_with_what_it_takes_over():
    """Its iterate of before would undo that, as the mean of few steps gives it much weight."""
    one, two = net_of(1), net_of(2)
    optimizer = schedule_free(two)
    with far_behind(one, two, optimizer) as (first, second):
        while not (merge := second.step(0.5)):
            first.step(0.5)
        assert merge.factor == 1.0
        assert not any(optimizer.state.values())
        assert are_equal(state_of(one), state_of(two))


def test_so_does_who_is_interrupted_after_that_merge():
    one, two = net_of(1), net_of(2)
    optimizer = schedule_free(two)
    with far_behind(one, two, optimizer) as (first, second):
        rounds = second._trainer.rounds
        wait = rounds.wait_and_merge

        def interrupted(loss, merge):
            if wait(loss, merge):
                raise KeyboardInterrupt

        rounds.wait_and_merge = interrupted

        def merges():
            first.step(0.5)
            return second.step(0.5)

        with pytest.raises(KeyboardInterrupt):
            eventually(merges)
        assert not any(optimizer.state.values())
        assert are_equal(state_of(one), state_of(two))


def test_what_lbfgs_knows_of_the_curvature_is_forgotten_where_a_merge_has_moved_the_module():
    net = net_of()
    lbfgs = torch.optim.LBFGS(net.parameters())

    def closure():
        lbfgs.zero_grad()
        loss = functional.cross_entropy(net(data(8, 1)[0]), data(8, 1)[1])
        loss.backward()
        return loss

    with alone_as(net, lbfgs) as gossip:
        lbfgs.step(closure)
        gossip.step(0.5)
        assert lbfgs.state
        with gossip._optimizers.prepared(), torch.no_grad():
            net[0].bias.add_(1.0)
        assert not lbfgs.state
        assert gossip._optimizers.to_prepare == [lbfgs]


# Optimizers that do not train the module


def warnings_in(caplog, text):
    return [message for message in caplog.messages if text in message]


def stale(net):
    """Of a module whose layer is replaced after it is made."""
    made = torch.optim.SGD(net.parameters(), lr=0.1)
    net[2] = nn.Linear(32, 4)
    return made


def masters(net):
    copies = [p.detach().clone() for p in net.parameters()]
    return torch.optim.AdamW(copies, lr=0.1)


def flat(net):
    """Of one buffer, of which all parameters are views."""
    buffer = torch.cat([p.detach().flatten() for p in net.parameters()]).requires_grad_()
    pieces = buffer.detach().split([p.numel() for p in net.parameters()])
    for parameter, piece in zip(net.parameters(), pieces, strict=True):
        parameter.data = piece.view(parameter.shape)
    return torch.optim.SGD([buffer], lr=0.1)


def of_more(net):
    """Of the module, and of what is not gossiped."""
    return torch.optim.SGD([*net.parameters(), nn.Parameter(torch.ones(3))], lr=0.1)


def of_a_part(net):
    return torch.optim.SGD(net[0].parameters(), lr=0.1)


def of_another(net):
    return torch.optim.SGD(nn.Linear(5, 5).parameters(), lr=0.1)


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (stale, "2 parameters of the module are missing in"),
        (masters, "4 parameters of the module are missing in"),
        (flat, ""),
        (of_more, ""),
        (of_a_part, ""),
        (of_another, None),
    ],
)
def test_an_optimizer_of_other_tensors_than_the_modules_is_told_once(make, names, is_given, caplog):
    net = net_of()
    optimizer = make(net)
    with alone_as(net, optimizer if is_given else None) as gossip:
        steps_of(net, [optimizer], 5, gossip)
    told = warnings_in(caplog, "trains tensors that are not in the module")
    if names is None:  # who is not told of it may train another module
        names = "4 parameters of the module are missing in" if is_given else ""
    assert len(told) == bool(names)
    assert all(names in each and "pytorch.md" in each for each in told)


def test_parameters_that_are_replaced_while_it_trains_are_told(caplog):
    net = net_of()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with alone_as(net, optimizer) as gossip:
        steps_of(net, [optimizer], 5, gossip)
        assert not warnings_in(caplog, "trains tensors that are not in the module")
        net[2] = nn.Linear(32, 4)
        steps_of(net, [optimizer], 5, gossip)
    assert len(warnings_in(caplog, "trains tensors that are not in the module")) == 1


# Several in one adapter


@pytest.mark.parametrize("given", [5, [5], "Adam", nn.Linear(2, 2)])
def test_what_is_no_optimizer_is_refused(given):
    with pytest.raises(
        UserError,
        match=r"optimizer: expected an object of a torch class, .* \(got [\w.]+\)",
    ):
        DpwaPyTorchAdapter(net_of(), "w1", config_of(2, **OWN), optimizer=given)


def test_gossip_follows_one_optimizer_not_a_list():
    net = net_of()
    given = muon_and_adamw(net)
    with alone_as(net, given) as gossip:
        for follow in (gossip.attach, lambda each: GossipOptimizer(each, gossip)):
            with pytest.raises(UserError, match=r"expected one torch\.optim\.Optimizer"):
                follow(given)
        gossip.attach(given[-1])
        steps_of(net, given, 3)
        assert gossip.updates == 3
        assert gossip._optimizers.given == given


def test_the_states_of_several_optimizers_are_handed_over(caplog):
    nets = net_of(1), net_of(2)
    given = [muon_and_adamw(net) for net in nets]
    steps_of(nets[0], given[0], 3)
    config = config_of(2, **ALONE, initial_state="peers", needs_finish=False)
    made = [DpwaPyTorchAdapter(nets[0], "w1", config, optimizer=given[0])]
    with nodes(*made) as (one,), training(one):
        eventually(lambda: one.clock >= 3)
        with DpwaPyTorchAdapter(nets[1], "w2", config, optimizer=given[1]) as two:
            assert two.updates >= 3
            assert are_equal(state_of(nets[0]), state_of(nets[1]))
    for net, optimizers in zip(nets, given, strict=True):
        steps_of(net, optimizers, 2)
    assert are_equal(state_of(nets[0]), state_of(nets[1]))
    assert [m for m in caplog.messages if "starts from" not in m] == []


# Schedulers


def sequence(optimizer):
    parts = [LinearLR(optimizer, 0.1, total_iters=3), CosineAnnealingLR(optimizer, 20)]
    return SequentialLR(optimizer, parts, milestones=[3])


SCHEDULERS = {
    "LambdaLR": lambda o: LambdaLR(o, lambda step: 0.9**step),
    "MultiStepLR": lambda o: MultiStepLR(o, [2, 6], 0.1),
    "OneCycleLR": lambda o: OneCycleLR(o, 0.1, total_steps=20),
    "CosineAnnealingLR": lambda o: CosineAnnealingLR(o, 15),
    "warm restarts": lambda o: CosineAnnealingWarmRestarts(o, 3, 2),
    "SequentialLR": sequence,
    "ChainedScheduler": lambda o: ChainedScheduler([LinearLR(o), MultiStepLR(o, [5, 6])]),
    "ReduceLROnPlateau": lambda o: ReduceLROnPlateau(o, patience=1, factor=0.5),
}


class Scheduled:
    """A state with an optimizer and a scheduler."""

    def __init__(self, make, lr=0.1, scalers=(), **options):
        self.net = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=0.9)
        self.scheduler = make(self.optimizer)
        self.state = TrainingState(self.net, **options)
        self.state.optimizers.include(self.optimizer, [self.scheduler, *scalers])

    def rates(self, count):
        for number in range(count):
            self.optimizer.step()
            plateau = isinstance(self.scheduler, ReduceLROnPlateau)
            self.scheduler.step(*([1.0 + number % 2] if plateau else []))
            yield self.optimizer.param_groups[0]["lr"]

    def part(self):
        return self.state.capture()["optimizer"]

    def load(self, part):
        self.state.optimizer_target().load(part.image, part.numbers)


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_scheduler_goes_on_where_that_of_the_donor_has_come_to(make):
    one, two = Scheduled(make), Scheduled(make)
    list(one.rates(4))
    two.load(one.part())
    assert two.state.optimizers.have_schedules
    assert two.scheduler.get_last_lr() == one.scheduler.get_last_lr()
    assert list(two.rates(6)) == list(one.rates(6))


def scaled(count):
    """Return a scaler after so many steps: each doubles the scale."""
    scaler = torch.amp.GradScaler("cpu", 64, growth_interval=1)  # a whole number, as many write
    for _ in range(count):
        parameter = nn.Parameter(torch.ones(1))
        scaler.scale(parameter.sum()).backward()
        scaler.step(torch.optim.SGD([parameter]))
        scaler.update()
    return scaler


@pytest.mark.parametrize(
    ("theirs", "own", "expected"),
    [([3], [0], [512.0]), ([3], [1], [512.0]), ([], [2], [256.0]), ([3], [], []),
     ([1, 2], [0, 0], [128.0, 256.0])],
)  # fmt: skip
def test_a_scaler_goes_on_where_that_of_the_donor_has_come_to(theirs, own, expected):
    one, two = (
        Scheduled(SCHEDULERS["LambdaLR"], scalers=[scaled(count) for count in counts])
        for counts in (theirs, own)
    )
    list(one.rates(4))
    two.load(one.part())
    assert two.state.optimizers.scales() == expected
    assert two.state.optimizers.have_schedules  # whether or not there are as many scalers
    assert two.scheduler.get_last_lr() == one.scheduler.get_last_lr()


def test_a_scaler_that_is_off_changes_nothing_and_is_not_changed():
    off = torch.amp.GradScaler("cpu", enabled=False)
    for theirs, own, expected in ((off, scaled(2), 256.0), (scaled(2), off, 1.0)):
        one, two = (Scheduled(SCHEDULERS["LambdaLR"], scalers=[s]) for s in (theirs, own))
        two.load(one.part())
        assert two.state.optimizers.scales() == [expected]


@pytest.mark.parametrize("name", ["CosineAnnealingLR", "LambdaLR", "SequentialLR"])
def test_where_nodes_have_different_learning_rates_the_schedule_goes_on_from_their_own(name):
    make = SCHEDULERS[name]
    one, two = Scheduled(make), Scheduled(make, lr=0.4, keeps_lr=True)
    list(one.rates(4))
    two.load(one.part())
    assert list(two.rates(6)) == pytest.approx([4 * rate for rate in one.rates(6)])


@pytest.mark.parametrize(
    "lie",
    [
        {"last_epoch": -3},
        {"last_epoch": 2.5},
        {"last_epoch": "three"},
        {"base_lrs": [float("inf")]},
        {"base_lrs": [0.1, 0.1]},
        {"kind": "StepLR"},
        {"_get_lr_called_within_step": 7},
    ],
)
def test_numbers_that_no_such_scheduler_has_change_nothing(lie):
    make = SCHEDULERS["LambdaLR"]
    one, two = Scheduled(make), Scheduled(make)
    list(one.rates(4))
    before = two.scheduler.state_dict()
    with pytest.raises(UnfitStateError):
        resume([two.scheduler], [progress_of(one.scheduler) | lie])
    assert two.scheduler.state_dict() == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "scheduler="),
        ({"scheduler": "LambdaLR"}, ""),
        ({"scheduler": ()}, ""),
        ({"scheduler": "MultiStepLR"}, "The state from the peer or checkpoint has no such"),
        ({"scheduler": torch.amp.GradScaler("cpu")}, "scheduler="),
    ],
)
def test_a_late_joiner_goes_on_with_the_schedule_or_is_told(options, told, caplog):
    donor, late = Scheduled(SCHEDULERS["LambdaLR"]), nn.Linear(4, 2)
    list(donor.rates(30))
    optimizer = torch.optim.SGD(late.parameters(), lr=0.1, momentum=0.9)
    made = {name: SCHEDULERS[name](optimizer) for name in ("LambdaLR", "MultiStepLR")}
    options = {
        key: made[value] if isinstance(value, str) else value for key, value in options.items()
    }
    config = config_of(2, **ALONE, initial_state="peers")
    given = {"optimizer": donor.optimizer, "scheduler": donor.scheduler}
    with nodes(DpwaPyTorchAdapter(donor.net, "w1", config, **given)) as (one,), training(one):
        eventually(lambda: one.clock >= 3)
        with DpwaPyTorchAdapter(late, "w2", config, optimizer=optimizer, **options) as two:
            assert two.updates >= 3
            for _ in range(3):
                two.step(0.5)
    assert len(warnings_in(caplog, "the learning rate scheduler starts at step 0")) == bool(told)
    assert all(told in each for each in warnings_in(caplog, "starts at step 0"))
    if options.get("scheduler") is made["LambdaLR"]:
        optimizer.step()
        made["LambdaLR"].step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**31)
