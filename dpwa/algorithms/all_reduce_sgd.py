"""AllReduceSGD sums or averages all gradients at every step, on nodes with uneven epochs."""

from __future__ import annotations

from typing import Any

from dpwa.algorithms.collective import Collective, UnevenSteps


class AllReduceSGD:
    """Synchronous data-parallel training, whose nodes may take different numbers of steps.

        sgd = AllReduceSGD(connection)
        sgd.synchronize_parameters(params)             # all begin alike
        for epoch in range(epochs):
            for batch in batches:                      # not equally many on all nodes
                gradients = compute(batch)
                sgd.sum_and_normalize_gradients(gradients)
                ...                                    # the step
            sgd.synchronize_parameters(params)         # waits for those who have batches left

    Parameters and gradients are nested lists, tuples or dicts of tensors or arrays, changed in
    place. They may be different objects in each call. A node that has ended its epoch takes part in
    the sums of the others without contributing, so that no node waits forever.

    Every node begins with `synchronize_parameters`. A restarted node waits there until the others
    synchronize next, and gets their parameters.

    If peers die within a call, the survivors repeat it without them. If a call raises an error, it
    has changed nothing. It raises `LeftBehindError` if the others continued without this node,
    which must then synchronize, `CollectiveTimeoutError`, `PeerLost` if peers die more often than
    there are nodes, and `MismatchError` if nodes make different calls, or their values differ in
    form.

    Source: AllReduceSGD of torch-distlearn (2016).

    Args:
        node: its collectives, as a connection or an adapter.
    """

    def __init__(self, node: Collective) -> None:
        self._steps = UnevenSteps(node, "AllReduceSGD")

    def sum_gradients(self, grads: Any) -> int:
        """Set the gradients to their sum over all nodes that take this step.

        Returns:
            The number n of these nodes.
        """
        contributors = self._steps.reduce(grads, "sum")
        self._steps.taken += 1
        return contributors

    def sum_and_normalize_gradients(self, grads: Any) -> int:
        """Set the gradients to their mean, which is the sum divided by n.

        Returns:
            The number n of nodes that have taken this step.
        """
        contributors = self._steps.reduce(grads, "mean")
        self._steps.taken += 1
        return contributors

    def synchronize_parameters(self, params: Any) -> None:
        """Wait until no node has a step left. Then make the parameters bit-identical.

        All nodes get the parameters of the node that has taken the most steps since the last call,
        or of the lowest rank if there are several, or of the first node if there were no steps at
        all. Nodes that were restarted or left behind do not count.
        """
        self._steps.synchronize(params)
