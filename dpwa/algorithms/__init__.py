"""Training algorithms: what a node publishes, whom it asks, how it merges; one file each.

    gossip      pull a peer's parameters and average (any interpolation rule, any topology)
    lsgd        leader stochastic gradient descent: pull toward the best of the group and of all
    symmetric   AD-PSGD: both ends of an exchange take the average, or neither does
    push_sum    weighted averaging that stays exact on directed and one-sided networks
    noloco      NoLoCo: outer momentum steps on random pairs, every few dozen steps
    local       local SGD, or DiLoCo-like outer Nesterov steps on random pairs
    together    all-reduce of gradients among those who keep pace, gossip for the others
    elastic     EASGD without a server: every node has a copy of the center, averaged by gossip

docs/algorithms.md describes them, and how to write one of your own.
"""

from dpwa.algorithms import (  # noqa: F401
    elastic,
    gossip,
    local,
    lsgd,
    noloco,
    push_sum,
    symmetric,
    together,
)
from dpwa.algorithms.all_reduce_ea import EASGD, AllReduceEA
from dpwa.algorithms.all_reduce_sgd import AllReduceSGD
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
