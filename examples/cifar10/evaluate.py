"""Test accuracy, and batch-norm statistics for merged parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the share of correctly classified images. The mode of the model is restored.

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

    Gossip averages the running statistics of two nodes like their parameters. But the statistics of
    an averaged network are not the average of the statistics, and may differ much if the nodes are
    far apart. A few forward passes measure them exactly. All other parts of the model stay
    unchanged.

    Source: Izmailov et al., "Averaging Weights Leads to Wider Optima" (2018), section 3.2.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    was_training = model.training
    model.eval()  # no dropout, because the statistics are for evaluation
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # with None, the statistics are a plain mean over all batches
        layer.train()
    for images in batches:
        model(images)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(was_training)
