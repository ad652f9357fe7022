"""Crop and flip the images of a batch at random, with one indexing operation of torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def random_crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Shift each image by up to `padding` pixels in each direction, and mirror half of the images.

    Args:
        images: shape (N, C, H, W), any dtype and device.
        generator: a generator on the CPU, so that crops are equal on all devices.
        padding: width in pixels of the black border around each image.

    Returns:
        New images of the same shape, dtype and device.
    """
    count, _, height, width = images.shape
    rows = _crop_positions(count, height, padding, generator)
    columns = _crop_positions(count, width, padding, generator)
    is_mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(is_mirrored, columns.flip(1), columns)
    return _gather(functional.pad(images, (padding,) * 4), rows, columns)


def _crop_positions(count: int, size: int, padding: int, generator: torch.Generator) -> Tensor:
    """Return `size` consecutive positions in each padded image, shape (count, size)."""
    start = torch.randint(0, 2 * padding + 1, (count, 1), generator=generator)
    return start + torch.arange(size)


def _gather(padded: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return these rows (N, H) and columns (N, W) of each image, by one indexing operation."""
    rows, columns = rows.to(padded.device), columns.to(padded.device)
    image = torch.arange(len(padded), device=padded.device)
    # The channel slice is between index tensors, so torch puts the channels last.
    picked = padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()
