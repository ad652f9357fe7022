"""TensorValues holds a module's trainable parameters in the form that algorithms use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from dpwa.adapters.tensor_merging import TILE_BYTES, boxes
from dpwa.data.kernels import (
    BY_CHANCE,
    Rounding,
    Tensors,
    add_,
    move_toward_,
    scale_,
    squared_distance,
)

_STRIDE = 2_654_435_761  # a prime, so its multiples are spread over any range


class TensorValues:
    """Numbers in the shapes of the trainable parameters. See `dpwa.algorithms.Values`.

    Arithmetic is elementwise and in place. Autograd does not record it, but notices the change.
    Both operands must have equal shapes, dtypes and devices, with any strides. Otherwise methods
    raise ValueError. The tensors share memory with the tensors that the constructor got, so a
    change to them changes the module. The tensors must not overlap each other.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], rounding: Rounding = BY_CHANCE) -> None:
        self.tensors = [tensor.detach() for tensor in tensors]
        self._rounding = rounding
        self._kinds = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        by_kernel = itertools.groupby(range(len(tensors)), key=lambda index: self._kinds[index][1:])
        self._groups = [list(indices) for _, indices in by_kernel]

    def is_like(self, other: TensorValues) -> bool:
        """Return whether both values have tensors of equal shapes, dtypes and devices."""
        return self._kinds == other._kinds

    def is_same_memory(self, other: TensorValues) -> bool:
        return self.is_like(other) and all(
            mine.is_set_to(theirs) for mine, theirs in zip(self.tensors, other.tensors, strict=True)
        )

    def clone(self) -> TensorValues:
        """Return a copy with the same strides."""
        copy = self.empty()
        copy.copy_(self)
        return copy

    @torch.inference_mode(mode=False)  # memory made in this mode can be changed only in this mode
    def empty(self) -> TensorValues:
        """Return uninitialized tensors with the same strides, as memory for a copy."""
        empty = [torch.empty_like(tensor) for tensor in self.tensors]
        return TensorValues(empty, self._rounding)

    def copy_(self, other: TensorValues) -> None:
        self.lerp_(other, 1.0)

    @torch.no_grad()
    def lerp_(self, other: TensorValues, weight: float) -> None:
        """Set self = self + weight * (other - self).

        A weight of 0 changes nothing. A weight of 1 copies, even over values that are not finite.
        """
        for own, peer in self._groups_of(other):
            move_toward_(own, peer, weight, self._rounding)

    @torch.no_grad()
    def add_(self, other: TensorValues, alpha: float = 1.0) -> None:
        """Set self = self + alpha * other. An alpha of 0 changes nothing."""
        for own, step in self._groups_of(other):
            add_(own, step, alpha, self._rounding)

    @torch.no_grad()
    def mul_(self, factor: float) -> None:
        """Set self = factor * self. A factor of 0 clears even values that are not finite."""
        for own, _ in self._groups_of(self):
            scale_(own, factor, self._rounding)

    @torch.no_grad()
    def distance(self, other: TensorValues) -> float:
        """Return the Euclidean distance over all elements. It is not finite if a value is not
        finite.

        The sums of blocks, in float32 or wider, are added up in float64.
        """
        squares = []
        for own, peer in self._groups_of(other):
            room = _room(own[0])
            for one, two in _blocks(own, peer):
                squares.append(squared_distance(one, two, room[: one.numel()].view(one.shape)))
        return math.sqrt(sum(square.item() for square in squares))

    def samples(self, count: int) -> list[float]:
        """Return `count` of the values, spread over the tensors.

        The values are those of matrices and larger tensors, if there are any. Initialization makes
        these random, but biases and scales often start as constants. Equal shapes give equal
        places.
        """
        filled = [tensor for tensor in self.tensors if tensor.numel()]
        tensors = [tensor for tensor in filled if tensor.dim() > 1] or filled
        if not tensors:
            return []
        taken = []
        for index in range(count):
            tensor = tensors[index * len(tensors) // count]
            place = np.unravel_index((index * _STRIDE) % tensor.numel(), tensor.shape)
            value = tensor[tuple(int(i) for i in place)]
            taken.append((value.real if value.is_complex() else value).float().item())
        return taken

    def _groups_of(self, other: TensorValues) -> Iterator[tuple[Tensors, Tensors]]:
        """Yield tensors of one dtype and device, with the matching tensors of the other operand."""
        if not self.is_like(other):
            raise ValueError("expected two lists of tensors with equal shapes, dtypes and devices")
        for indices in self._groups:
            yield [self.tensors[i] for i in indices], [other.tensors[i] for i in indices]


def _room(like: torch.Tensor) -> torch.Tensor:
    elements = TILE_BYTES // like.element_size()
    return torch.empty(elements, dtype=like.dtype, device=like.device)


def _blocks(one: Tensors, two: Tensors) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for mine, theirs in zip(one, two, strict=True):
        step = TILE_BYTES // mine.element_size()
        for start in range(0, mine.numel(), step):
            stop = min(start + step, mine.numel())
            yield from zip(boxes(mine, start, stop), boxes(theirs, start, stop), strict=True)
