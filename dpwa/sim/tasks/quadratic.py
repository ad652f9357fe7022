"""A quadratic bowl with noisy gradients, of which the answer is known."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpwa.sim.draws import normal
from dpwa.sim.tasks.consensus import MOST_PARAMETERS
from dpwa.types import StrictModel

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class QuadraticOptions(StrictModel):
    """Options of `quadratic`."""

    dimension: int = Field(default=32, ge=1, le=MOST_PARAMETERS, description="parameters of a node")
    lr: Positive = Field(default=0.1, description="learning rate")
    curvature: Positive = Field(default=1.0, description="of the steepest direction")
    flattest: Positive = Field(
        default=0.1, description="curvature of the flattest; those between are spread by ratios"
    )
    noise: NotNegative = Field(
        default=0.1, description="standard deviation of each number of a gradient"
    )
    heterogeneity: NotNegative = Field(
        default=0.0, description="standard deviation of the nodes' optima, in each direction"
    )


class Quadratic:
    """Node i descends f_i(x) = sum_j h_j (x_j - c_ij)^2 / 2 by SGD with noise.

    The curvatures h go from `curvature` to `flattest` in equal ratios. The optima c_i are drawn
    from N(0, heterogeneity^2). All begin at the same draw of N(0, 1).
    """

    name: ClassVar[str] = "quadratic"
    options: ClassVar[type[StrictModel]] = QuadraticOptions

    def __init__(self, options: QuadraticOptions, nodes: int, seed: int) -> None:
        self.dimension = options.dimension
        self._options = options
        self._nodes = nodes
        self._seed = seed
        self._curvatures = np.geomspace(options.curvature, options.flattest, self.dimension)
        rng = np.random.default_rng(seed)
        self._start = rng.normal(size=self.dimension)
        self._optima = np.zeros((1, self.dimension))
        if options.heterogeneity:
            spread = rng.normal(size=(nodes, self.dimension))
            self._optima = options.heterogeneity * spread
        self._steps = np.zeros(nodes, dtype=np.int64)

    def starts(self) -> NDArray[np.float64]:
        return np.tile(self._start, (self._nodes, 1))

    def step(self, x: NDArray[np.float64], nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        options = self._options
        offset = x - (self._optima[nodes] if len(self._optima) > 1 else self._optima)
        gradients = self._curvatures * offset
        losses: NDArray[np.float64] = 0.5 * np.einsum("kd,kd->k", gradients, offset)
        if options.noise:
            counters = nodes[:, None], self._steps[nodes][:, None], np.arange(self.dimension)
            gradients += options.noise * normal(self._seed, *counters)
        x -= options.lr * gradients
        self._steps[nodes] += 1
        return losses

    def evaluate(self, mean: NDArray[np.float64]) -> tuple[float, None]:
        """Return the mean over all nodes of f_i at one model."""
        offset = mean - self._optima
        return float(0.5 * (self._curvatures * offset**2).sum(axis=1).mean()), None
