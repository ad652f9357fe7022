"""AllReduceSGD: the sum or the mean of all gradients at every step, on nodes with uneven epochs."""

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
    place. They may be other objects in each call. A node that has come to the end of its epoch
    takes part in the sums of the others without contributing, so nobody waits for ever.

    Every node begins with `synchronize_parameters`, also one that was restarted: it waits there
    until the others synchronize next, and gets their parameters.

    When peers die within a call, the survivors do it again without them. Whatever a call raises, it
    has changed nothing: `LeftBehindError` if the others went on without this node, after which it
    must synchronize; `CollectiveTimeoutError`; `PeerLost` if peers die more often than there are
    nodes; `MismatchError` if nodes are not in the same call, or their values not of one form.

    Source: AllReduceSGD of torch-distlearn (2016).

    Args:
        node: its collectives: a connection, or an adapter.
    """

    def __init__(self, node: Collective) -> None:
        self._steps = UnevenSteps(node, "AllReduceSGD")

    def sum_gradients(self, grads: Any) -> int:
        """Set the gradients to their sum over all nodes that take this step.

        Returns:
            How many these are, n.
        """
        contributors = self._steps.reduce(grads, "sum")
        self._steps.taken += 1
        return contributors

    def sum_and_normalize_gradients(self, grads: Any) -> int:
        """Set the gradients to their mean: the sum, divided by n.

        Returns:
            How many nodes have taken this step, n.
        """
        contributors = self._steps.reduce(grads, "mean")
        self._steps.taken += 1
        return contributors

    def synchronize_parameters(self, params: Any) -> None:
        """Wait until nobody has a step left; then make the parameters equal, bit by bit.

        They are those of the node that has taken the most steps since the last time; of several,
        the one with the lowest rank; the first node's if there were no steps at all. Nodes that
        were restarted or left behind do not count.
        """
        self._steps.synchronize(params)
