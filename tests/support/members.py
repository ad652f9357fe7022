"""Nodes that train a small module, several in this process, each on a thread of its own."""

import threading
from contextlib import ExitStack, contextmanager

import torch

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from support.inside import context_of
from support.nodes import at_once, eventually
from support.times import HANGS_AFTER_S


class Member:
    """A node, and the module that it trains: by default one vector of `size` values."""

    def __init__(self, name, config, value=0.0, size=8, net=None, **options):
        self.net = vector(value, size) if net is None else net
        self.adapter = DpwaPyTorchAdapter(self.net, name, config, **options)
        self.name = name

    @property
    def node(self):
        return self.adapter.connection.node

    @property
    def transactions(self):
        return context_of(self.node).transactions

    @property
    def x(self):
        return torch.cat([p.detach().flatten().double() for p in self.net.parameters()])

    def round(self, loss=None):
        """One quiet round: nothing is trained."""
        self.adapter.update_send(loss)
        return self.adapter.update_wait(loss)

    @property
    def records(self):
        """Of transactions that are under way."""
        return self.transactions._records

    @property
    def settled(self):
        """What waits to be merged."""
        return self.transactions._settled

    @property
    def is_settled(self):
        """Whether no transaction is under way, and nothing waits to be merged."""
        transactions = self.transactions
        return transactions is None or not (
            self.records or self.settled or transactions.has_undelivered
        )


def vector(value, size=8):
    """A module of one vector in double precision, all values the same."""
    net = torch.nn.Linear(size, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.weight.fill_(float(value))
    return net


@contextmanager
def members(config, values, make=None, **options):
    """Nodes w1, w2, ... of a configuration, each with a vector of one of these values, or with the
    module that `make` makes of it.
    """
    with ExitStack() as stack:
        made = []
        for index, value in enumerate(values, start=1):
            net = None if make is None else make(value)
            member = Member(f"w{index}", config, value, net=net, **options)
            stack.callback(member.adapter.close)
            made.append(member)
        yield made


def gossip(nodes, rounds, each=Member.round):
    """Let all nodes make so many rounds at once, at their own pace."""

    def task(member):
        for _ in range(rounds):
            each(member)

    at_once([lambda member=member: task(member) for member in nodes])


def in_lockstep(nodes, rounds, each=Member.round):
    """Let all nodes make so many rounds, each of them beginning together."""
    barrier = threading.Barrier(len(nodes))

    def task(member):
        try:
            for _ in range(rounds):
                barrier.wait(60)
                each(member)
        except BaseException:
            barrier.abort()
            raise

    at_once([lambda member=member: task(member) for member in nodes])


def sum_of(nodes):
    """Return the sum of what all have, each by its weight under push-sum."""
    weights = [node.node.report()["transactions"].get("weight", 1.0) for node in nodes]
    return sum(weight * node.x for weight, node in zip(weights, nodes, strict=True))


def settle(nodes, timeout_s=HANGS_AFTER_S):
    """Merge what is agreed on, and wait until no transaction is under way."""

    def is_quiet():
        for member in nodes:
            member.adapter.update_wait()
        return all(member.is_settled for member in nodes)

    eventually(is_quiet, timeout_s)
