"""Topologies: who may fetch from whom.

    random, full            everybody from everybody
    ring, star              a circle, and one node in the middle of all others
    grid, torus             rows and columns
    exponential             the nodes 1, 2, 4, 8, ... places further on
    one_peer_exponential    the same, but one of them a round
    small_world             a ring with shortcuts
    file                    edges of the user's own

A topology is a pure function of a node's position, the number of nodes and the round. Which of its
neighbours a node really asks is decided by flow control. docs/topologies.md compares them.

Add one of your own under a name that configurations can use:

>>> from dpwa.policy.topology import register_topology
>>> @register_topology("chain")
... def chain(options, index, nodes, round_number):
...     '''The nodes before and after on a line.'''
...     return [other for other in (index - 1, index + 1) if 0 <= other < nodes]
"""

from __future__ import annotations

from dpwa.policy.topology import rules  # noqa: F401 - registers those of dpwa
from dpwa.policy.topology.registry import (
    EdgeList,
    Topology,
    edges_topology,
    neighbours_of,
    register_topology,
    topology,
    topology_names,
)

__all__ = [
    "EdgeList",
    "Topology",
    "edges_topology",
    "neighbours_of",
    "register_topology",
    "topology",
    "topology_names",
]
