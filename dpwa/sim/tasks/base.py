"""What a task is to the simulator, and the tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpwa.sim.scenario import RunSpec
from dpwa.sim.tasks.consensus import Consensus
from dpwa.sim.tasks.digits import Digits
from dpwa.sim.tasks.factorisation import Factorisation
from dpwa.sim.tasks.quadratic import Quadratic
from dpwa.types import StrictModel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class TrainingTask(Protocol):
    """What nodes train. The noise of a node's k-th step depends on the seed, the node and k only.

    Attributes:
        name: that scenarios choose it by.
        options: the model of its options.
        dimension: D, parameters of one node.
    """

    name: ClassVar[str]
    options: ClassVar[type[StrictModel]]

    @property
    def dimension(self) -> int:
        """D, parameters of one node."""
        ...

    def starts(self) -> Floats:
        """Return where nodes begin, shape (N, D): alike, if something is trained."""
        ...

    def step(self, x: Floats, nodes: Integers) -> Floats | None:
        """Take the next local step of some nodes, in place.

        Args:
            x: their parameters, shape (K, D).
            nodes: their indices, shape (K,), each once.

        Returns:
            The losses before the step, shape (K,); `None` where nothing is trained.
        """
        ...

    def evaluate(self, mean: Floats) -> tuple[float | None, float | None]:
        """Return loss and accuracy of one model, shape (D,); `None` for what there is not."""
        ...


TASKS: Mapping[str, Callable[..., TrainingTask]] = {
    kind.name: kind for kind in (Consensus, Quadratic, Factorisation, Digits)
}


def make_task(spec: RunSpec) -> TrainingTask:
    """Return the task of a run.

    Raises:
        UserError: it needs a library that is not there, or does not fit the number of nodes.
    """
    scenario = spec.scenario
    return TASKS[scenario.task](spec.task_options, scenario.nodes, scenario.seed)
