"""The conditions of a simulated run: who is slow, which link is how, who comes and goes when."""

from dpwa.sim.conditions.churn import NodeChange, NodeChangeKind, cut_in_words
from dpwa.sim.conditions.conditions import Conditions

__all__ = ["Conditions", "NodeChange", "NodeChangeKind", "cut_in_words"]
