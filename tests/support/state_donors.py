"""Nodes that hand on their state: in this process, and in others that die or stand still."""

import contextlib
import json
import signal
from pathlib import Path

import torch
from torch import nn

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.testing import FaultPlan, FaultyProcess
from dpwa.testing.faults import VARIABLE
from support.nodes import again_and_again, config_of, eventually
from support.processes import PROGRAMS, Program

PROGRAM = PROGRAMS / "gossip.py"
ALONE = {"fetch_probability": 0.0, "transport": "tcp"}  # nodes that merge nothing


class Net(nn.Module):
    """Parameters of two dtypes, a frozen and a tied one, buffers with and without a fraction."""

    def __init__(self, seed, width=16):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.narrow = nn.Parameter(torch.randn(5).bfloat16())
        self.last = nn.Linear(width, width)
        self.last.weight = self.first.weight
        self.norm.num_batches_tracked.fill_(seed)
        self.norm.running_mean.fill_(seed)

    def forward(self, inputs):
        return self.last(self.norm(self.first(inputs))) * self.narrow.float().sum()


def state_of(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def are_equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@contextlib.contextmanager
def training(*adapters):
    """Let nodes make updates in the background that change nothing, once every 10 ms."""

    def train():
        for adapter in adapters:
            adapter.update_send(0.5)
            adapter.update_wait(0.5)

    with again_and_again(train, 0.01):
        yield


@contextlib.contextmanager
def nodes(*made):
    with contextlib.ExitStack() as stack:
        for node in made:
            stack.callback(node.close)
        yield made


def adapter_of(net, name, config, **options):
    return DpwaPyTorchAdapter(net, name, config, **options)


def two_of(one, two, **settings):
    """The adapters of two modules, under one configuration."""
    config = config_of(2, **settings)
    return nodes(adapter_of(one, "w1", config), adapter_of(two, "w2", config))


def joined_beside(one, two, config):
    """Let a node with the second module join one that trains the first; return its first clock."""
    with nodes(adapter_of(one, "w1", config)) as (first,), training(first):
        eventually(lambda: first.clock >= 1)
        with nodes(adapter_of(two, "w2", config)) as (second,):
            return second.clock


class ForkedProcess(FaultyProcess):
    """As its base, but forked: to begin takes no time."""

    def __init__(self, *argv, plan):
        self.popen = Program([*map(str, argv)], **{VARIABLE: str(plan)})

    def close(self):
        self.kill()
        self.popen.close()

    def _code(self):
        code = self.popen.returncode
        if code is not None:
            return code
        try:
            status = Path(f"/proc/{self.popen.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended, and that is on its way
            return self.popen.wait()
        return -signal.SIGSTOP if status.rpartition(")")[2].split()[0] == "T" else None


@contextlib.contextmanager
def donor_process(folder, name, config, elements, value, *, plan=None):
    """A node in a process of its own; yields it once it trains."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    arguments = [name, path, "--value", value, "--elements", elements]
    with ForkedProcess(PROGRAM, *arguments, plan=plan or FaultPlan()) as process:
        yield process


def wait_until_training(process):
    """Return the clock that a process has begun with."""
    return float(process.popen.stdout.readline().split()[1])
