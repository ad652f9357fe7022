"""Measure the test accuracy, and recompute batch-norm statistics after merges."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the share of images that the model classifies correctly, and keep the model's mode.

    Raises:
        ValueError: there are no images.
    """
    was_training = model.training
    model.eval()
    correct = total = 0
    for images, labels in batches:
        correct += int((model(images).argmax(dim=1) == labels).sum())
        total += len(labels)
    model.train(was_training)
    if total == 0:
        raise ValueError("the accuracy on no images is undefined")
    return correct / total


@torch.no_grad()
def recompute_batch_norm(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace all running batch-norm statistics by the plain mean over one or more batches.

    Gossip averages the running statistics of two nodes like their parameters. But the right
    statistics of the merged network differ from this average, and differ much if the consensus
    distance is large. A few forward passes measure the right statistics. All other parts of the
    model stay unchanged.

    Source: Izmailov et al., "Averaging Weights Leads to Wider Optima" (2018), section 3.2.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    was_training = model.training
    model.eval()  # without dropout, because the statistics are for evaluation
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # with None, the statistics are a plain mean over all batches
        layer.train()
    for images in batches:
        model(images)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(was_training)
