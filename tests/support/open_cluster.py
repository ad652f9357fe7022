"""Nodes that come and go, several in this process, and the places where they may be."""

from contextlib import ExitStack, contextmanager

import numpy as np

from dpwa.connection import DpwaConnection
from support.nodes import eventually

__all__ = ["Cluster", "cluster", "eventually"]


class Cluster:
    def __init__(self, stack, **settings):
        self._stack = stack
        self._settings = {"timeout_ms": 2000, "seed": 7, "join_timeout_s": 60.0, **settings}
        self.nodes = {}

    def add(self, name, *at, **settings):
        """Start a node that join requests at these nodes or addresses."""
        join = [self.endpoint(place) for place in at]
        node = DpwaConnection(name, {**self._settings, "join": join, **settings})
        self._stack.callback(node.close)
        self.nodes[name] = node
        return node

    def endpoint(self, place):
        """The address of a node that is named, or an address as it is."""
        return self.nodes[place].node.endpoint if place in self.nodes else place

    def close(self, name):
        self.nodes.pop(name).close()

    def agree(self, timeout_s=10.0):
        names = set(self.nodes)
        eventually(
            lambda: all({*node.peers, name} == names for name, node in self.nodes.items()),
            timeout_s,
        )

    def gossip(self, value=1.0):
        for node in self.nodes.values():
            node.update_send(np.full(4, value), 1.0)
        return {name: node.update_wait(1.0)[0] for name, node in self.nodes.items()}


@contextmanager
def cluster(**settings):
    with ExitStack() as stack:
        yield Cluster(stack, **settings)
