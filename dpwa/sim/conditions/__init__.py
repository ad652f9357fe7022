"""The conditions of a simulated run: who is slow, which link is how, who comes and goes when."""

from dpwa.sim.conditions.churn import NodeChange, NodeChangeKind
from dpwa.sim.conditions.conditions import Conditions

__all__ = ["Conditions", "NodeChange", "NodeChangeKind"]
