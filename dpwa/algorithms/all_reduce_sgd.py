"""AllReduceSGD sums or averages gradients at every step. Nodes may have uneven epochs."""

from __future__ import annotations

from typing import Any

from dpwa.algorithms.collective import Collective, UnevenSteps


class AllReduceSGD:
    """Synchronous data-parallel training, in which nodes may take different numbers of steps.

        sgd = AllReduceSGD(connection)
        sgd.synchronize_parameters(params)             # all nodes start equal
        for epoch in range(epochs):
            for batch in batches:                      # the number may differ between nodes
                gradients = compute(batch)
                sgd.sum_and_normalize_gradients(gradients)
                ...                                    # the optimizer step
            sgd.synchronize_parameters(params)         # waits for nodes that have batches left

    Parameters and gradients are nested lists, tuples or dicts of tensors or arrays, which are
    changed in place. They may be different objects in each call. A node at the end of its epoch
    takes part in the sums of the other nodes without contributing, so no node waits forever.

    Every node starts with `synchronize_parameters`. A restarted node waits there until the other
    nodes synchronize next, and gets their parameters.

    If peers die during a call, the survivors repeat the call without them. If a call raises an
    error, it has changed nothing. `LeftBehindError`: the other nodes continued without this node,
    which must then synchronize. `CollectiveTimeoutError`: the call did not end in time. `PeerLost`:
    more peers died than there are nodes. `MismatchError`: nodes made different calls, or passed
    values with different shapes or dtypes.

    Source: AllReduceSGD of torch-distlearn (2016).

    Args:
        node: a connection or an adapter, for its collectives.
    """

    def __init__(self, node: Collective) -> None:
        self._steps = UnevenSteps(node, "AllReduceSGD")

    def sum_gradients(self, grads: Any) -> int:
        """Set the gradients to their sum over all nodes that take this step.

        Returns:
            The number of these nodes.
        """
        contributors = self._steps.reduce(grads, "sum")
        self._steps.taken += 1
        return contributors

    def sum_and_normalize_gradients(self, grads: Any) -> int:
        """Set the gradients to their mean over all nodes that take this step.

        Returns:
            The number of these nodes.
        """
        contributors = self._steps.reduce(grads, "mean")
        self._steps.taken += 1
        return contributors

    def synchronize_parameters(self, params: Any) -> None:
        """Wait until all nodes have ended their epochs, then make their parameters bit-identical.

        All nodes get the parameters of the node that has taken the most steps since the last call.
        Among equals, it is the node with the lowest rank, and without any step, the first node.
        Nodes that were restarted or left behind do not count.
        """
        self._steps.synchronize(params)
