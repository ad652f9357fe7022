"""Matrix factorisation: a problem that is not convex, with many minima that are equally good."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpwa.sim.draws import normal
from dpwa.types import StrictModel

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class FactorisationOptions(StrictModel):
    """Options of `factorisation`."""

    size: int = Field(default=20, ge=1, le=10_000, description="d, of the matrix M of d by d")
    rank: int = Field(default=2, ge=1, le=1000, description="r, of M and of what is to become it")
    lr: Positive = Field(default=0.1, description="learning rate")
    noise: NotNegative = Field(
        default=0.01, description="standard deviation of each number of a gradient"
    )
    start: Positive = Field(default=0.5, description="where X begins, relative to the answer")
    apart: bool = Field(
        default=False, description="on: each node begins at a draw of its own; off: all alike"
    )


class Factorisation:
    """Minimise F(X) = |M - X X'|^2 / 4 over X of d by r, by SGD with noise; M has rank r.

    The gradient is (X X' - M) X. With X, X Q is as good for any rotation Q, so nodes that begin
    apart tend to minima whose mean is none. M = Y Y', with the d r numbers of Y from N(0, 1/d); X
    begins at `start` times such a draw.

    Source: the low-rank problem of Teng et al., Leader Stochastic Gradient Descent for Distributed
    Training of Deep Learning Models (2019), arXiv 1905.10395.
    """

    name: ClassVar[str] = "factorisation"
    options: ClassVar[type[StrictModel]] = FactorisationOptions

    def __init__(self, options: FactorisationOptions, nodes: int, seed: int) -> None:
        self.dimension = options.size * options.rank
        self._options = options
        self._nodes = nodes
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        answer = self._draw(1)[0].reshape(options.size, options.rank)
        self._matrix = answer @ answer.T
        self._norm = float(np.einsum("ij,ij->", self._matrix, self._matrix))
        draws = self._draw(nodes if options.apart else 1)
        self._starts = options.start * np.broadcast_to(draws, (nodes, self.dimension))
        self._steps = np.zeros(nodes, dtype=np.int64)

    def starts(self) -> NDArray[np.float64]:
        starts: NDArray[np.float64] = self._starts.copy()
        return starts

    def step(self, x: NDArray[np.float64], nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        options = self._options
        factor = x.reshape(len(x), options.size, options.rank)
        images = self._matrix @ factor
        gram = np.swapaxes(factor, 1, 2) @ factor
        gradients = (factor @ gram - images).reshape(x.shape)
        losses = self._losses(factor, images, gram)
        if options.noise:
            counters = nodes[:, None], self._steps[nodes][:, None], np.arange(self.dimension)
            gradients += options.noise * normal(self._seed, *counters)
        x -= options.lr * gradients
        self._steps[nodes] += 1
        return losses

    def evaluate(self, mean: NDArray[np.float64]) -> tuple[float, None]:
        factor = mean.reshape(1, self._options.size, self._options.rank)
        gram = np.swapaxes(factor, 1, 2) @ factor
        return float(self._losses(factor, self._matrix @ factor, gram)[0]), None

    def _losses(
        self, factor: NDArray[np.float64], images: NDArray[np.float64], gram: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return F, by |M - X X'|^2 = |M|^2 - 2 tr(X' M X) + |X' X|^2."""
        overlap = np.einsum("kdr,kdr->k", factor, images)
        square = np.einsum("krs,krs->k", gram, gram)
        losses: NDArray[np.float64] = np.maximum(0.0, self._norm - 2 * overlap + square) / 4
        return losses

    def _draw(self, count: int) -> NDArray[np.float64]:
        return self._rng.normal(scale=self._options.size**-0.5, size=(count, self.dimension))
