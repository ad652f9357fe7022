"""The model that is gossiped: one flat tensor in as many parts as wanted."""

from __future__ import annotations

import torch
from torch import nn

from dpwa.bench.plan import BYTES_PER_VALUE

MERGE_FACTOR = 0.5  # what a configuration without options merges with


class FlatModel:
    """Random float32 parameters.

    They lie side by side in memory, as Gloo likes it best.

    Attributes:
        flat: all values, shape `(nbytes // 4,)`.
        module: the same memory as trainable parameters.
    """

    def __init__(self, nbytes: int, tensors: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.flat = torch.randn(nbytes // BYTES_PER_VALUE, generator=generator)
        self.module = nn.ParameterList(
            nn.Parameter(part) for part in self.flat.tensor_split(tensors)
        )
        self._growth = 1.001 if seed % 2 else 1 / 1.001

    def train_a_little(self) -> None:
        """Change every value slightly, differently in neighbouring processes."""
        self.flat.mul_(self._growth)
