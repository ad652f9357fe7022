"""Loops as people write them, with real nodes: each node learns what only the other one sees."""

import math
from contextlib import ExitStack, contextmanager

import pytest
import torch
from support.nodes import config_of, eventually, is_connected
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import dpwa

STEPS = 120
CURVE = torch.linspace(-1.0, 1.0, 64).unsqueeze(1)
POWERS = torch.cat([CURVE, CURVE**2, CURVE**3], 1)
TARGETS = torch.sin(3 * CURVE)


def net_of():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


class Node:
    """A module, its optimizer and its gossip, which follows the optimizer; half of the curve."""

    def __init__(self, index, config):
        self.net, half = net_of(), slice(32 * index, 32 * (index + 1))
        self.model = self.net  # what the loop calls
        self.inputs, self.targets = POWERS[half], TARGETS[half]
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.02)
        self.gossip = dpwa.connect(self.net, config=config, name=f"w{index + 1}")
        self.follower = self.gossip.attach(self.optimizer)

    def loss(self, rows=slice(None)):
        error = self.model(self.inputs[rows]) - self.targets[rows]
        return error.square().mean()

    def step(self):
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def error_on_the_whole_curve(self):
        with torch.no_grad():
            return float((self.net(POWERS) - TARGETS).square().mean())


@contextmanager
def two_nodes(**settings):
    config = config_of(2, **{"initial_state": "own", "repeat": "merge", **settings})
    with ExitStack() as stack:
        nodes = []
        for index in range(2):
            nodes.append(Node(index, config))
            stack.enter_context(nodes[-1].gossip)
        for node, peer in zip(nodes, ("w2", "w1"), strict=True):
            eventually(lambda node=node, peer=peer: is_connected(node.gossip.connection, peer))
        yield nodes


def plain(node):
    while True:
        node.step()
        yield


def accumulating(node):
    while True:
        node.optimizer.zero_grad()
        for micro in range(4):
            (node.loss(slice(micro, None, 4)) / 4).backward()
        node.optimizer.step()
        yield


def in_bfloat16(node):
    while True:
        node.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = node.loss()
        loss.backward()
        node.optimizer.step()
        yield


def scaled(node):
    """Every tenth step has gradients that are not finite, and is skipped."""
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number in range(STEPS * 2):
        node.optimizer.zero_grad()
        scaler.scale(node.loss() * (math.inf if number % 10 == 9 else 1.0)).backward()
        scaler.step(node.optimizer)
        scaler.update()
        if number % 10 != 9:
            yield


def clipped(node):
    while True:
        node.optimizer.zero_grad()
        node.loss().backward()
        torch.nn.utils.clip_grad_norm_(node.net.parameters(), 0.5)
        node.optimizer.step()
        yield


def compiled(backend):
    def loop(node):
        node.model = torch.compile(node.net, backend=backend)
        yield from plain(node)

    return loop


def averaging(node):
    """Keep a copy of means beside the module, for evaluation."""
    averaged = AveragedModel(node.net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for _ in plain(node):
        averaged.update_parameters(node.net)
        yield


def scheduled_by_the_loss(node):
    scheduler = ReduceLROnPlateau(node.optimizer, patience=3, factor=0.9)
    for _ in plain(node):
        scheduler.step(node.loss().item())
        yield


LOOPS = {
    "plain": plain,
    "accumulation": accumulating,
    "bf16 autocast": in_bfloat16,
    "GradScaler": scaled,
    "clipping": clipped,
    "averaged copy": averaging,
    "ReduceLROnPlateau": scheduled_by_the_loss,
    "compiled": compiled("aot_eager"),
}


def train(nodes, loop=plain, steps=STEPS):
    for _ in zip(range(steps), *map(loop, nodes), strict=False):
        pass
    return [node.error_on_the_whole_curve() for node in nodes]


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(loop, id=name, marks=[pytest.mark.slow] * (name == "compiled"))
        for name, loop in LOOPS.items()
    ],
)
def test_every_step_is_gossip_and_each_node_learns_what_only_the_other_sees(loop):
    with two_nodes() as nodes:
        errors = train(nodes, loop)
        for node in nodes:
            assert node.gossip.updates == STEPS
            assert node.follower.merges > STEPS - 5
    assert max(errors) < 0.02  # alone: above 0.06


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # Inductor's
def test_what_inductor_has_compiled_learns_so_too(monkeypatch):
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # more would stay
    test_every_step_is_gossip_and_each_node_learns_what_only_the_other_sees(compiled("inductor"))


def test_alone_neither_node_learns_it():
    with two_nodes(algorithm="local") as nodes:
        errors = train(nodes)
    assert min(errors) > 0.06


def test_what_is_compiled_is_compiled_once_and_sees_what_was_merged():
    from torch._dynamo.testing import CompileCounterWithBackend  # which takes two seconds

    with two_nodes() as nodes:
        counter = CompileCounterWithBackend("eager")
        train(nodes, compiled(counter), 10)
        assert counter.frame_count <= 2  # modules
        with torch.no_grad():
            for node in nodes:
                assert node.follower.merges > 5
                assert torch.equal(node.model(POWERS), node.net(POWERS))
