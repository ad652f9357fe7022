"""The training algorithms. They decide when a node publishes, asks and merges.

    gossip      pull a peer's parameters and average (any interpolation rule, any topology)
    lsgd        leader stochastic gradient descent: pull toward the leaders of the group and of all
    symmetric   AD-PSGD: both nodes of an exchange take the average, or neither node does
    push_sum    weighted averaging that stays exact on directed and one-sided networks
    outer       DiLoCo without a center: outer Nesterov steps, then a mix of random pairs
    noloco      NoLoCo: outer momentum steps on random pairs, every few dozen steps
    local       local SGD: a mean with a random peer, every few dozen steps
    together    all-reduce of gradients among the nodes in sync, gossip for the other nodes
    elastic     EASGD without a server: gossip averages the centers, of which each node has one

docs/algorithms.md describes them, and how to write your own. The file of an algorithm is imported
if a configuration names the algorithm. `base.py` has the list of names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpwa.algorithms.base import (
    Algorithm,
    Ask,
    Received,
    Terms,
    Values,
    View,
    algorithm,
    algorithm_names,
    register_algorithm,
)

if TYPE_CHECKING:
    from dpwa.algorithms.all_reduce_ea import EASGD, AllReduceEA
    from dpwa.algorithms.all_reduce_sgd import AllReduceSGD

__all__ = [
    "EASGD",
    "Algorithm",
    "AllReduceEA",
    "AllReduceSGD",
    "Ask",
    "Received",
    "Terms",
    "Values",
    "View",
    "algorithm",
    "algorithm_names",
    "register_algorithm",
]

_HOMES = {
    "EASGD": "dpwa.algorithms.all_reduce_ea",
    "AllReduceEA": "dpwa.algorithms.all_reduce_ea",
    "AllReduceSGD": "dpwa.algorithms.all_reduce_sgd",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpwa.algorithms' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
