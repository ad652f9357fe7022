"""Training loops of many shapes under `algorithm: together`, beside one process on all batches.

Usage: loops.py [--shape NAME] [--seed SEED] [--nodes N] [--transport auto|tcp]

Each shape is a function that trains: on the share of the batches that a node has, or in one
process on all of them at once. After each update all nodes must have the same parameters, bit by
bit, and at the end those of the one process, within 1e-6. All is in float64, so that what is left
of a difference is no rounding.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from unittest import mock

import torch
from support.nodes import config_of
from support.patience import patience
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import dpwa

UPDATES = 12
MAX_APART = 1e-6
WIDTH = 6
SMALL_BUCKET_BYTES = 300  # so that each module has several
SGD = torch.optim.SGD
USUAL = partial(SGD, lr=0.1)
softplus = nn.functional.softplus

SHAPES = {}
_drawing = threading.Lock()


def shape(**settings):
    """Add a shape of loops; it needs these settings."""

    def add(train):
        SHAPES[train.__name__] = train, settings
        return train

    return add


def each_step(kind=None, optimizer=USUAL, **settings):
    """Add a shape of loops by what it does in each step, between `update_send` and `update_wait`.

    Args:
        kind: of module.
        optimizer: makes that of its parameters.
        settings: that it needs.
    """

    def add(act):
        def train(run):
            net = run.net(kind)
            own = optimizer(net.parameters())
            with run.connected(net, own) as run.gossip:
                for step in run.steps(run.gossip):
                    act(run, net, own, step)

        train.__name__ = act.__name__
        return shape(**settings)(train)

    return add


class Alone:
    """What stands for gossip in the process that has all batches."""

    updates = 0

    def update_send(self):
        self.updates += 1

    def update_wait(self):
        pass

    def step(self):
        self.updates += 1

    def average_gradients(self):
        pass

    def attach(self, optimizer):
        optimizer.register_step_post_hook(lambda *_: self.step())

    def include_optimizer(self, optimizer):
        pass

    no_sync = staticmethod(nullcontext)


class Run:
    """One training: of a node, or, without a node, of the process that has all batches."""

    def __init__(self, nodes, seed, node=None, config=None):
        self.nodes, self.seed, self.node, self._config = nodes, seed, node, config
        self.states = []  # the parameters after each update
        self.own = range(nodes) if node is None else [node]  # whose batches it has

    def draw(self, node, key, shape):
        numbers = zlib.crc32(repr((self.seed, node, key)).encode())
        return torch.randn(shape, generator=torch.Generator().manual_seed(numbers))

    def batch(self, *key, rows=4):
        """Return inputs of shape `(rows, WIDTH)`; of all nodes, one below the other."""
        return torch.cat([self.draw(node, key, (rows, WIDTH)) for node in self.own])

    def noise(self, like, *key):
        """Return noise that each node makes of its own; of all, the mean."""
        return torch.stack([self.draw(node, key, like.shape) for node in self.own]).mean(0)

    def net(self, kind=None):
        with _drawing:  # nodes are threads of one process
            torch.manual_seed(self.seed)
            return kind() if kind else trunk()

    @contextmanager
    def connected(self, net, optimizer, **more):
        self._net = net
        if self.node is None:
            yield Alone()
            return
        name = f"w{self.node + 1}"
        with dpwa.connect(net, optimizer, config=self._config, name=name, **more) as gossip:
            yield gossip
            gossip.barrier(timeout_s=20.0)  # so that nobody ends a round too few

    def steps(self, gossip):
        """Yield the number of each update, between its `update_send` and `update_wait`."""
        for step in range(UPDATES):
            gossip.update_send()
            yield step
            gossip.update_wait()
            self.note()

    def note(self):
        self.states.append([each.detach().clone() for each in self._net.parameters()])


def trunk():
    return nn.Sequential(
        nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, WIDTH)
    )


def loss_of(net, inputs):
    return nn.functional.mse_loss(net(inputs), inputs.sin())


def train_once(run, net, optimizer, step):
    optimizer.zero_grad()
    loss_of(net, run.batch(step)).backward()
    optimizer.step()


def train_plainly(run, net, optimizer):
    with run.connected(net, optimizer) as gossip:
        for step in run.steps(gossip):
            train_once(run, net, optimizer, step)


@each_step(optimizer=partial(SGD, lr=0.1, momentum=0.9))
def plain(*step):
    train_once(*step)


@shape()
def one_call_a_step(run):
    net = run.net()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    with run.connected(net, optimizer) as gossip:
        gossip.update_send()
        for step in range(UPDATES):
            train_once(run, net, optimizer, step)
            gossip.step()
            run.note()


@shape()
def attached(run):
    net = run.net()
    optimizer = SGD(net.parameters(), 0.1)
    with run.connected(net, optimizer) as gossip:
        gossip.attach(optimizer)
        for step in range(UPDATES):
            train_once(run, net, optimizer, step)
            run.note()


@each_step()
def accumulated_without_sync(run, net, optimizer, step):
    optimizer.zero_grad()
    with run.gossip.no_sync():
        loss_of(net, run.batch(step, 1)).backward()
    loss_of(net, run.batch(step, 3)).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    optimizer.step()


@each_step()
def accumulated_with_sync_in_each_pass(run, net, optimizer, step):
    optimizer.zero_grad()
    for micro in range(3):
        (loss_of(net, run.batch(step, micro)) / 3).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    optimizer.step()


@each_step()
def last_pass_not_synchronized(run, net, optimizer, step):
    """What a pass adds within no_sync to gradients that are averaged already is averaged, too."""
    optimizer.zero_grad()
    loss_of(net, run.batch(step, 0)).backward()
    with run.gossip.no_sync():
        loss_of(net, run.batch(step, 1)).backward()
    optimizer.step()


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = trunk()
        self.heads = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, inputs, *heads):
        middle = self.trunk(inputs)
        return sum(self.heads[head](middle) for head in heads)


@each_step(Branches, optimizer=partial(SGD, lr=0.1, momentum=0.9))
def clipped_with_parameters_that_are_not_used(run, net, optimizer, step):
    optimizer.zero_grad()
    net(run.batch(step), step % 2).square().mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    optimizer.step()


@each_step(Branches)
def two_passes_over_a_shared_trunk_then_clipped(run, net, optimizer, step):
    optimizer.zero_grad()
    middle = net.trunk(run.batch(step))
    net.heads[0](middle).square().mean().backward(retain_graph=True)
    net.heads[1](middle).sin().mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    optimizer.step()


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.g, self.d = trunk(), nn.Sequential(trunk(), nn.Linear(WIDTH, 1))


def gan(run, *, toggles, clip=False):
    net = run.net(Gan)
    of_g, of_d = SGD(net.g.parameters(), 0.1, momentum=0.5), SGD(net.d.parameters(), 0.1)
    with run.connected(net, [of_g, of_d]) as gossip:
        for step in run.steps(gossip):
            real = run.batch(step)
            net.d.requires_grad_(True)
            of_d.zero_grad()
            fake = net.g(real.roll(1, 1)).detach()
            (softplus(-net.d(real)) + softplus(net.d(fake))).mean().backward()
            if clip:
                nn.utils.clip_grad_value_(net.d.parameters(), 0.01)
            of_d.step()
            if toggles:
                net.d.requires_grad_(False)
            of_g.zero_grad()
            softplus(-net.d(net.g(real))).mean().backward()
            of_g.step()


@shape()
def gan_with_toggled_parameters(run):
    gan(run, toggles=True, clip=True)


@shape()
def gan_without_toggles(run):
    gan(run, toggles=False)


@each_step(optimizer=partial(torch.optim.Adam, lr=0.01))
def gradient_penalty(run, net, optimizer, step):
    """A pass through gradients, as in WGAN-GP."""
    inputs = run.batch(step).requires_grad_()
    optimizer.zero_grad()
    outputs = net(inputs).mean(1)
    (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    (outputs.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
    optimizer.step()


@each_step()
def graph_of_gradients_is_kept(run, net, optimizer, step):
    optimizer.zero_grad()
    loss_of(net, run.batch(step, 0)).backward(create_graph=True)
    loss_of(net, run.batch(step, 1)).backward()
    optimizer.step()


@shape()
def unfrozen_in_the_middle(run):
    net = run.net()
    net[0].requires_grad_(False)
    optimizer = SGD(net.parameters(), 0.1)
    with run.connected(net, optimizer) as gossip:
        gossip.update_send()
        for step in range(UPDATES):
            if step == 5:
                net[0].requires_grad_(True)
            optimizer.zero_grad()
            loss_of(net, run.batch(step)).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            optimizer.step()
            gossip.step()
            run.note()


@each_step(optimizer=partial(SGD, lr=0.1, momentum=0.9))
def frozen_in_the_middle(run, net, optimizer, step):
    """What is frozen keeps a gradient, and its optimizer goes on to step with that."""
    if step == 5:
        net[0].requires_grad_(False)
    optimizer.zero_grad(set_to_none=step < 3)
    loss_of(net, run.batch(step)).backward()
    optimizer.step()


@each_step()
def added_in_the_middle(run, net, optimizer, step):
    if step == 5:
        net.append(run.net(lambda: nn.Linear(WIDTH, WIDTH)))
        optimizer.add_param_group({"params": net[-1].parameters(), "lr": 0.05})
    optimizer.zero_grad()
    loss_of(net, run.batch(step)).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    optimizer.step()


@shape()
def replaced_in_the_middle(run):
    net = run.net()
    optimizer = SGD(net.parameters(), 0.1)
    with run.connected(net, optimizer) as gossip:
        gossip.update_send()
        for step in range(UPDATES):
            if step == 5:
                net[-1] = run.net(lambda: nn.Linear(8, WIDTH))
                optimizer = SGD(net.parameters(), 0.05)
                gossip.include_optimizer(optimizer)
            train_once(run, net, optimizer, step)
            gossip.step()
            run.note()


def assigned(parameter, gradient):
    parameter.grad = gradient


def assign_gradients(net, loss, assign=assigned):
    parameters = list(net.parameters())
    for own, new in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        assign(own, new)


def copied(parameter, gradient):
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
    parameter.grad.copy_(gradient)


def by_hand(run, net, optimizer, step, assign=assigned, averages=False):
    for part in range(2):
        assign_gradients(net, loss_of(net, run.batch(step, part)), assign)
        if averages:
            run.gossip.average_gradients()
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        optimizer.step()


@each_step()
def two_steps_by_hand(*step):
    by_hand(*step)


@each_step()
def two_steps_by_hand_that_are_clipped(*step):
    by_hand(*step, averages=True)


@each_step()
def two_steps_by_hand_in_place(*step):
    by_hand(*step, copied)


@each_step()
def gradients_without_memory_of_their_own(run, net, optimizer, step):
    scale = run.batch(step).mean()
    for each in net.parameters():
        each.grad = scale.expand_as(each)
    optimizer.step()


@each_step()
def clamped_to_new_gradients(run, net, optimizer, step):
    """New gradients that are made of averages are no reason to leave these."""
    optimizer.zero_grad()
    loss_of(net, run.batch(step)).backward()
    for each in net.parameters():
        each.grad = each.grad.clamp(-0.01, 0.01)
    optimizer.step()


@each_step()
def gradient_surgery(run, net, optimizer, step):
    """PCGrad: of two tasks, each gradient without what is against the other."""
    found = []
    for task in range(2):
        optimizer.zero_grad()
        loss_of(net, run.batch(step, task)).backward()
        found.append([each.grad.clone() for each in net.parameters()])
    for each, one, other in zip(net.parameters(), *found, strict=True):
        conflict = torch.clamp((one * other).sum(), max=0.0)
        each.grad = one + other - conflict * one / one.square().sum()
    optimizer.step()


def private(run, net, inputs, step):
    """Return each parameter's gradients of all samples, clipped, with noise, as in DP-SGD."""
    parameters = list(net.parameters())
    total = [torch.zeros_like(each) for each in parameters]
    for sample in inputs:
        own = torch.autograd.grad(loss_of(net, sample[None]), parameters)
        norm = torch.stack([each.norm() for each in own]).norm()
        for added, each in zip(total, own, strict=True):
            added += each * torch.clamp(0.1 / norm, max=1.0)
    return [
        each / len(inputs) + 0.01 * run.noise(each, step, index) for index, each in enumerate(total)
    ]


def private_sgd(run, net, optimizer, step):
    optimizer.zero_grad()
    inputs = run.batch(step)
    loss_of(net, inputs).backward()
    for each, own in zip(net.parameters(), private(run, net, inputs, step), strict=True):
        each.grad = own
    optimizer.step()


@each_step()
def private_gradients_that_are_found_out(*step):
    private_sgd(*step)


@each_step(together={"average_at": "step"})
def private_gradients(*step):
    private_sgd(*step)


@shape(together={"average_at": "step"})
def averaged_at_the_steps_of_two_optimizers(run):
    net = run.net(Gan)
    optimizers = SGD(net.g.parameters(), 0.1), SGD(net.d.parameters(), 0.1)
    with run.connected(net, list(optimizers)) as gossip:
        for step in run.steps(gossip):
            for optimizer in optimizers:
                optimizer.zero_grad()
            net.d(net.g(run.batch(step))).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()


@shape()
def scaled_with_parameters_that_are_not_used(run):
    net = run.net(Branches)
    optimizer = SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with run.connected(net, optimizer, scheduler=[scaler]) as gossip:
        for step in run.steps(gossip):
            optimizer.zero_grad()
            loss = net(run.batch(step), 0).square().mean()
            if step == 7 and run.node != 0:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()


@each_step(optimizer=partial(SGD, lr=0.1, momentum=0.9))
def closures(run, net, optimizer, step):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, run.batch(step))
        loss.backward()
        return loss

    optimizer.step(closure)


@each_step()
def closures_that_assign_gradients(run, net, optimizer, step):
    def closure():
        loss = loss_of(net, run.batch(step))
        assign_gradients(net, loss)
        return loss

    optimizer.step(closure=closure)


@each_step()
def sharpness_aware(run, net, optimizer, step):
    """SAM: a pass at the parameters, and a second one where the loss is largest around them."""
    optimizer.zero_grad()
    loss_of(net, run.batch(step)).backward()
    norm = torch.stack([each.grad.norm() for each in net.parameters()]).norm()
    undo = changed(net, lambda _, each: each.add_(0.05 * each.grad / norm))
    optimizer.zero_grad()
    loss_of(net, run.batch(step)).backward()
    undo()
    optimizer.step()


def changed(net, change):
    """Change each parameter in place; return what undoes that."""
    before = [each.detach().clone() for each in net.parameters()]

    @torch.no_grad()
    def undo():
        for each, old in zip(net.parameters(), before, strict=True):
            each.copy_(old)

    with torch.no_grad():
        for index, each in enumerate(net.parameters()):
            change(index, each)
    return undo


def at_weights_of_each_node(run, change, *, looks_first):
    """Each node has its gradients at weights of its own, which it takes back before the step."""
    net = run.net()
    optimizer = SGD(net.parameters(), 0.1)
    with run.connected(net, optimizer) as gossip:
        for step in run.steps(gossip):
            total = [torch.zeros_like(each) for each in net.parameters()]
            for node, inputs in zip(run.own, run.batch(step).split(4), strict=True):
                optimizer.zero_grad()
                if looks_first:
                    with gossip.no_sync():
                        loss_of(net, inputs).backward()
                undo = changed(net, partial(change, run, node, step))
                optimizer.zero_grad()
                loss_of(net, inputs).backward()
                undo()
                for added, each in zip(total, net.parameters(), strict=True):
                    added += each.grad / len(run.own)
            if run.node is None:
                for each, mean in zip(net.parameters(), total, strict=True):
                    each.grad = mean
            optimizer.step()


@shape(log_level="warning")
def sharpness_aware_with_an_ascent_of_each_node(run):
    """SAM as with DDP: the first pass is in no_sync, and only the second one is averaged."""

    def ascend(run, node, step, index, each):
        each.add_(0.05 * each.grad / each.grad.norm())

    at_weights_of_each_node(run, ascend, looks_first=True)


@shape(log_level="warning")
def weights_with_noise_of_each_node(run):
    def blur(run, node, step, index, each):
        each.add_(run.draw(node, (step, index), each.shape), alpha=0.01)

    at_weights_of_each_node(run, blur, looks_first=False)


@shape()
def hooks_that_are_called_after_others(run):
    """Hooks that come later than those of dpwa give a parameter another gradient."""
    net = run.net()
    optimizer = SGD(net.parameters(), 0.1)

    def third(parameter):
        parameter.grad = parameter.grad / 3

    with run.connected(net, optimizer) as gossip:
        for each in net.parameters():
            each.register_post_accumulate_grad_hook(third)
        for step in run.steps(gossip):
            train_once(run, net, optimizer, step)


class Added(nn.Module):
    """Two parameters whose gradients autograd keeps in the same memory."""

    def __init__(self):
        super().__init__()
        self.some, self.more = (nn.Parameter(torch.randn(200, 50)) for _ in range(2))

    def forward(self, scale):
        return (self.some.view(-1) + self.more.view(-1)).mul(scale).sin().sum()


@each_step(Added)
def gradients_that_share_memory(run, net, optimizer, step):
    optimizer.zero_grad()
    scales = run.batch(step).mean(1)
    net(scales[:, None]).div(len(scales)).backward()
    if run.node is not None:
        assert net.some.grad.data_ptr() == net.more.grad.data_ptr()
    optimizer.step()


class WithFunction(SGD):
    """An optimizer with a function among the settings of its groups."""


@shape()
def a_function_in_a_group(run):
    net = run.net()
    groups = [{"params": net.parameters(), "decay": lambda step: 0.9**step}]
    optimizer = WithFunction(groups, 0.1)
    train_plainly(run, net, optimizer)


@shape()
def optimizers_for_other_devices(run):
    net = run.net()
    optimizer = SGD(net.parameters(), 0.1, foreach=run.node == 1)
    train_plainly(run, net, optimizer)


class Observed(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = trunk()
        self.register_buffer("least", torch.tensor(torch.inf))
        self.register_buffer("used", torch.tensor([0.0, 1.0, 0.0]))

    def forward(self, inputs):
        self.least.copy_(torch.minimum(self.least, inputs.min()))
        return self.trunk(inputs)


@shape()
def a_buffer_that_one_node_has_loaded(run):
    net = run.net(Observed)
    if run.node == 1:
        net.least.fill_(-2.0)
        net.used.fill_(0.5)
    optimizer = SGD(net.parameters(), 0.1)
    train_plainly(run, net, optimizer)


@shape()
def a_compiled_step(run):
    net = run.net()
    optimizer = SGD(net.parameters(), 0.1)
    take_step = torch.compile(lambda: optimizer.step(), backend="eager")
    with run.connected(net, optimizer) as gossip:
        for step in run.steps(gossip):
            assign_gradients(net, loss_of(net, run.batch(step)))
            take_step()


def checkpointed(forward):
    """Add a shape of loops with this forward pass: `forward(net, inputs)`."""

    def act(run, net, optimizer, step):
        inputs = run.batch(step).requires_grad_()
        optimizer.zero_grad()
        (forward(net, inputs) - inputs).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        optimizer.step()

    act.__name__ = forward.__name__
    return each_step()(act)


@checkpointed
def passes_within_a_pass(net, inputs):
    middle = checkpoint(net[:2], inputs, use_reentrant=True)
    return net[4](checkpoint(net[2:4], middle, use_reentrant=True))


@checkpointed
def all_within_passes_within_a_pass(net, inputs):
    def inner(values):
        return checkpoint(net[2:], net[:2](values), use_reentrant=True)

    return checkpoint(inner, inputs, use_reentrant=True)


@checkpointed
def used_twice_within_passes_within_a_pass(net, inputs):
    for _ in range(2):
        inputs = checkpoint(net, inputs, use_reentrant=True)
    return net(inputs)


@checkpointed
def checkpoints_without_passes_of_their_own(net, inputs):
    return checkpoint(net, inputs, use_reentrant=False)


def fail(_):
    raise ArithmeticError


@each_step()
def a_pass_that_fails(run, net, optimizer, step):
    optimizer.zero_grad()
    if step % 4 == 1:
        middle = net[:2](run.batch(step, 0))
        middle.register_hook(fail)
        with suppress(ArithmeticError):
            net[2:](middle).square().mean().backward()
        optimizer.zero_grad()
    loss_of(net, run.batch(step)).backward()
    optimizer.step()


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.last = nn.Embedding(20, WIDTH, sparse=True), nn.Linear(WIDTH, 1)

    def forward(self, rows):
        return self.last(self.rows(rows)).square().mean()


@shape()
def sparse_gradients(run):
    net = run.net(Rows)
    optimizers = [SGD(net.rows.parameters(), 0.5), SGD(net.last.parameters(), 0.1)]
    with run.connected(net, optimizers) as gossip:
        for step in run.steps(gossip):
            for optimizer in optimizers:
                optimizer.zero_grad()
            net((run.batch(step) * 10).long().abs() % 20).backward()
            for optimizer in optimizers:
                optimizer.step()


@shape()
def passes_for_one_optimizer_each(run):
    net = run.net(Branches)
    of_trunk = SGD(net.trunk.parameters(), 0.1, momentum=0.9)
    of_heads = torch.optim.Adam(net.heads.parameters(), 0.01)
    with run.connected(net, [of_trunk, of_heads]) as gossip:
        for step in run.steps(gossip):
            for part, optimizer in enumerate((of_trunk, of_heads)):
                optimizer.zero_grad()
                own = optimizer.param_groups[0]["params"]
                net(run.batch(step, part), 0, 2).square().mean().backward(inputs=own)
                optimizer.step()


@shape()
def several_steps_an_update(run):
    net = run.net()
    optimizer = SGD(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    with run.connected(net, optimizer, scheduler=scheduler) as gossip:
        for step in run.steps(gossip):
            for part in range(3):
                optimizer.zero_grad()
                loss_of(net, run.batch(step, part)).backward()
                optimizer.step()
            scheduler.step()


@shape()
def a_step_within_the_pass_for_each_parameter(run):
    net = run.net()
    optimizers = {each: SGD([each], 0.1) for each in net.parameters()}

    def step_at_once(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in net.parameters():
        each.register_post_accumulate_grad_hook(step_at_once)
    with run.connected(net, list(optimizers.values())) as gossip:
        for step in run.steps(gossip):
            loss_of(net, run.batch(step)).backward()


@shape()
def a_pass_on_another_thread(run):
    net = run.net()
    optimizer = SGD(net.parameters(), 0.1)
    with run.connected(net, optimizer) as gossip, ThreadPoolExecutor(1) as other:
        for step in run.steps(gossip):
            optimizer.zero_grad()
            other.submit(lambda step=step: loss_of(net, run.batch(step)).backward()).result()
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            optimizer.step()


@each_step()
def meta_learning(run, net, optimizer, step):
    """MAML: a loss of parameters that are a step away, and a pass through that step."""
    optimizer.zero_grad()
    own = dict(net.named_parameters())
    inputs = run.batch("support", step, rows=1)
    losses = []
    for row in inputs:  # a task each
        loss = loss_of(lambda x, own=own: functional_call(net, own, x), row[None])
        slopes = torch.autograd.grad(loss, list(own.values()), create_graph=True)
        near = {name: own[name] - 0.1 * each for name, each in zip(own, slopes, strict=True)}
        losses.append(loss_of(lambda x, near=near: functional_call(net, near, x), 2 * row[None]))
    torch.stack(losses).mean().backward()
    optimizer.step()


@each_step(optimizer=partial(SGD, lr=0.05))
@torch.no_grad()
def evolution(run, net, optimizer, step):
    """No pass at all: gradients are estimated by the loss at points nearby."""
    inputs = run.batch(step)
    for each in net.parameters():
        direction = torch.ones_like(each)
        each.add_(direction, alpha=0.01)
        above = loss_of(net, inputs)
        each.add_(direction, alpha=-0.02)
        below = loss_of(net, inputs)
        each.add_(direction, alpha=0.01)
        each.grad = (above - below) / 0.02 * direction
    optimizer.step()


@shape()
def tied_weights(run):
    def tied():
        net = nn.Sequential(trunk(), nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH))
        net[1].weight = net[0][0].weight
        return net

    net = run.net(tied)
    optimizer = SGD(net.parameters(), 0.1)
    train_plainly(run, net, optimizer)


@shape()
def hooks_that_change_gradients(run):
    net = run.net()
    net[0].weight.register_hook(lambda gradient: 3 * gradient)
    optimizer = SGD(net.parameters(), 0.1)
    train_plainly(run, net, optimizer)


@each_step(optimizer=partial(SGD, lr=0.1, momentum=0.9))
def a_bad_batch_is_dropped_everywhere(run, net, optimizer, step):
    optimizer.zero_grad()
    loss_of(net, run.batch(step)).backward()
    if step % 3 == 1:
        optimizer.zero_grad()
    optimizer.step()


@shape()
def compiled(run):
    net = run.net()
    optimizer = SGD(net.parameters(), 0.1)
    forward = torch.compile(net, backend="aot_eager")
    with run.connected(net, optimizer) as gossip:
        for step in run.steps(gossip):
            optimizer.zero_grad()
            loss_of(forward, run.batch(step)).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            optimizer.step()


def apart(some, others):
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


@contextmanager
def in_double(bucket_bytes):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch("dpwa.adapters.gradient_averaging.BUCKET_BYTES", bucket_bytes):
            yield
    finally:
        torch.set_default_dtype(before)


def difference(name, nodes=2, transport="auto", seed=0, bucket_bytes=SMALL_BUCKET_BYTES):
    """Run a shape; return how far the nodes are from the one process.

    Raises `AssertionError` if nodes were not equal after an update.
    """
    train, settings = SHAPES[name]
    settings = {"log_level": "error", "timeout_ms": 20000, "transport": transport} | settings
    config = config_of(nodes, algorithm="together", **settings)
    with in_double(bucket_bytes), patience(), ThreadPoolExecutor(nodes) as threads:
        torch.manual_seed(seed)
        alone = Run(nodes, seed)
        train(alone)
        runs = [Run(nodes, seed, node, config) for node in range(nodes)]
        for done in [threads.submit(train, run) for run in runs]:
            done.result(120)
    for update, states in enumerate(zip(*(run.states for run in runs), strict=True)):
        assert max(apart(states[0], each) for each in states) == 0.0, f"apart at update {update}"
    assert len(runs[0].states) == len(alone.states) == UPDATES
    return apart(runs[0].states[-1], alone.states[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--transport", nargs="+", default=["auto", "tcp"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    print(f"seed {options.seed}", flush=True)
    for name, nodes, transport in itertools.product(
        options.shape, options.nodes, options.transport
    ):
        began, found = time.monotonic(), ""
        try:
            apart_by = difference(name, nodes, transport, options.seed)
            found = f"{apart_by:.1e}"
            is_right = apart_by < MAX_APART
        except Exception as error:  # noqa: BLE001 - the others are run all the same
            found, is_right = f"{type(error).__name__}: {error}", False
        failed += not is_right
        mark = "" if is_right else "  <-- FAILS"
        print(
            f"{name} {nodes} {transport}: {found} {time.monotonic() - began:.1f} s{mark}",
            flush=True,
        )
    print(f"{failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
