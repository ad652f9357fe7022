"""The network of the demonstration, and its weights on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

HIDDEN_UNITS = 128


def build_model(seed: int) -> nn.Module:
    """Return a perceptron for 64 pixels and 10 digits; the same seed gives the same weights.

    It normalises per example (LayerNorm), not per batch: batches of a skewed shard know only their
    own classes, and their statistics would not fit anybody else's.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, HIDDEN_UNITS),
            nn.LayerNorm(HIDDEN_UNITS),
            nn.ReLU(),
            nn.Linear(HIDDEN_UNITS, 10),
        )


def save_weights(model: nn.Module, path: Path) -> None:
    """Write all parameters as arrays under their names (.npz, readable without pickle)."""
    arrays = {name: value.detach().numpy() for name, value in model.named_parameters()}
    np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for options
