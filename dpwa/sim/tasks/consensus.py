"""Consensus only: nodes begin apart from each other, and nobody trains."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpwa.types import StrictModel

MOST_PARAMETERS = 10_000_000


class ConsensusOptions(StrictModel):
    """Options of `consensus`."""

    dimension: int = Field(
        default=8, ge=1, le=MOST_PARAMETERS, description="parameters of a node, each from N(0, 1)"
    )


class Consensus:
    """Nothing is trained: x_i begins at a draw of N(0, 1) in each dimension."""

    name: ClassVar[str] = "consensus"
    options: ClassVar[type[StrictModel]] = ConsensusOptions

    def __init__(self, options: ConsensusOptions, nodes: int, seed: int) -> None:
        self.dimension = options.dimension
        self._nodes = nodes
        self._seed = seed

    def starts(self) -> NDArray[np.float64]:
        return np.random.default_rng(self._seed).normal(size=(self._nodes, self.dimension))

    def step(self, x: NDArray[np.float64], nodes: NDArray[np.int64]) -> None:
        """Leave all as it is."""

    def evaluate(self, mean: NDArray[np.float64]) -> tuple[None, None]:  # noqa: ARG002
        return None, None
