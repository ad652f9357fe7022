"""`Merge`, which is the result of a merge, and functions that check an adapter's arguments."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dpwa.adapters.tensor_values import TensorValues
from dpwa.algorithms import Algorithm
from dpwa.errors import ParametersError, UserError
from dpwa.node.arrival import Arrival


@dataclass(frozen=True)
class Merge:
    """The result of one `update_wait` that merged a snapshot.

    Attributes:
        peer: the node whose parameters were merged.
        factor: the weight f of the peer's parameters, from 0 to 1. At 0, nothing was changed.
        peer_clock: the peer's clock when it published these parameters.
        peer_loss: the peer's loss at that time, or `None` if the peer had not measured a loss.
        staleness: the number of updates by which the peer was behind this node (negative: ahead).
        waited_s: the seconds that `update_wait` waited for the parameters.
        consensus_distance: the Euclidean distance between the peer's parameters and this node's
            before the merge, over all trainable parameters. With `merge: delta`, it is the distance
            to this node's published parameters. In models of more than 64 Ki parameters, it is an
            estimate from a sample.
    """

    peer: str
    factor: float
    peer_clock: float
    peer_loss: float | None
    staleness: float
    waited_s: float
    consensus_distance: float

    @classmethod
    def of(cls, arrival: Arrival, consensus_distance: float) -> Merge:
        """Return the `Merge` that describes the merge of the snapshot `arrival`."""
        return cls(
            peer=arrival.peer,
            factor=arrival.factor,
            peer_clock=arrival.progress.clock,
            peer_loss=arrival.progress.loss,
            staleness=arrival.staleness,
            waited_s=arrival.waited_s,
            consensus_distance=consensus_distance,
        )

    def __repr__(self) -> str:
        loss = "unknown" if self.peer_loss is None else f"{self.peer_loss:.4g}"
        return (
            f"Merge(peer={self.peer!r}, factor={self.factor:.3g}, "
            f"peer_clock={self.peer_clock:.4g}, peer_loss={loss}, "
            f"staleness={self.staleness:.3g}, waited_s={self.waited_s:.3g}, "
            f"consensus_distance={self.consensus_distance:.4g})"
        )


def center_of(algorithm: Algorithm, name: str) -> TensorValues:
    """Return the center parameters toward which an algorithm pulls the nodes' parameters.

    Raises:
        UserError: the algorithm has no center, or does not have it yet. The message names the
            algorithm by `name`.
    """
    if not algorithm.has_center:
        raise UserError(
            f"`algorithm: {name}` has no center. Use an algorithm with a center, such as "
            "`algorithm: elastic`, or call copy_center of AllReduceEA or EASGD [DPWA-E145]"
        )
    if not isinstance(algorithm.center, TensorValues):
        raise UserError(
            f"`algorithm: {name}` has no center before the first update_send. After finish, or "
            "a change of the module, the next update_send makes a new center [DPWA-E145]"
        )
    return algorithm.center


def require_module(net: object) -> None:
    """Raise `ParametersError` if an object is not a module."""
    if not isinstance(net, torch.nn.Module):
        raise ParametersError(
            f"net: expected a torch.nn.Module (got {type(net).__name__}) [DPWA-E057]"
        )
