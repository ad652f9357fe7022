"""Tiles: the flat bytes of a snapshot, in blocks that fit the cache, and the tensors behind them.

A tile is a slice of a large tensor, or many small tensors, which are copied or merged by one call
for all: so 2,000 small tensors cost about twice as much as a single large one.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from dpwa.data.kernels import Tensors, is_finite, is_narrow
from dpwa.data.layout import Layout

TILE_BYTES = 1024 * 1024  # the chunks of the wire; own, peer's and room fit the caches together


class Tile:
    """Consecutive bytes of a snapshot, all of one dtype and of one kind, and the own values there.

    Attributes:
        start, stop: first byte, and the byte after the last.
        dtype, elements: what they are, and how many.
        is_buffer: whether they belong to buffers rather than parameters.
        is_constant: whether these are no statistics, but masks or the like.
        is_plain: whether they are merged by arithmetic in their dtype, and no more.
        views: the own values, in place: parts of tensors, one after the other.
        room: scratch memory, shape `(elements,)`, which all tiles of one device use in turn.
    """

    def __init__(self, parts: Sequence[TilePart], room: torch.Tensor) -> None:
        self._parts, self._whole_room = parts, room
        self._clips: dict[tuple[int, int], Tile] = {}  # a few, which are asked for again and again
        self.start, self.stop = parts[0].start, parts[-1].stop
        self.is_buffer, self.is_constant = parts[0].is_buffer, parts[0].is_constant
        self.dtype = parts[0].tensor.dtype
        self.elements = (self.stop - self.start) // self.dtype.itemsize
        self.room = room[: self.stop - self.start].view(self.dtype)
        self.views = [view for part in parts for view in part.views()]
        self._sizes = [view.numel() for view in self.views]
        self._are_flat = all(view.dim() == 1 for view in self.views)  # else strided
        self._is_one = self._are_flat and len(self.views) == 1
        self.is_plain = not (self.is_constant or is_narrow(self.room))

    def clip(self, start: int, stop: int) -> Tile:
        """Return the tile of those of its bytes that are between `start` and `stop`."""
        if start <= self.start and self.stop <= stop:
            return self
        bounds = max(self.start, start), min(self.stop, stop)
        known = self._clips.get(bounds)
        if known is None:
            known = self._clips[bounds] = self._clipped(*bounds)
        return known

    def share(self, index: int, of: int) -> Tile:
        """Return one of its shares of about equal size; all of it when it has few elements."""
        size = self.elements // of * self.dtype.itemsize
        if not size:
            return self
        start = self.start + index * size
        return self.clip(start, self.stop if index == of - 1 else start + size)

    def _clipped(self, start: int, stop: int) -> Tile:
        parts = [
            replace(part, start=max(part.start, start), stop=min(part.stop, stop))
            for part in self._parts
            if part.start < stop and start < part.stop
        ]
        return Tile(parts, self._whole_room)

    def of(self, flat: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Return its values, shape `(elements,)`, in the bytes of a snapshot from `start` on."""
        return flat[self.start - start : self.stop - start].view(self.dtype)

    def split(self, values: torch.Tensor) -> Tensors:
        """View values, shape `(elements,)`, like `views`."""
        if self._is_one:
            return (values,)
        parts = values.split_with_sizes(self._sizes)
        if self._are_flat:
            return parts
        return [part.view(view.shape) for part, view in zip(parts, self.views, strict=True)]

    def values(self) -> torch.Tensor:
        """Return the own values, shape `(elements,)`, in place or else in `room`."""
        return self.views[0] if self._is_one else self.copy_to(self.room)

    def set(self, values: torch.Tensor) -> None:
        """Set the own values to what `values()` has returned, and was changed since."""
        if not self._is_one:
            torch._foreach_copy_(self.views, self.split(values))

    def is_sound(self, values: torch.Tensor) -> bool:
        """Tell whether values of it, shape `(elements,)`, are finite, or need not be."""
        return self.is_constant or is_finite(values)

    def copy_to(self, out: torch.Tensor) -> torch.Tensor:
        """Copy the own values to `out`, shape `(elements,)`; return them, where they are at hand.

        That is in place, if they are one view: it has just been read, while `out` was written.
        """
        if self._is_one:
            out.copy_(self.views[0])
            return self.views[0]
        flat = self.views if self._are_flat else [view.reshape(-1) for view in self.views]
        return torch.cat(flat, out=out)


@dataclass(frozen=True)
class TilePart:
    """The part of one tensor from `start` to `stop` of a snapshot, within one piece of the layout.

    Attributes:
        tensor: the tensor, detached.
        offset: where it begins in the snapshot.
        start, stop: first byte of the part, and the byte after the last.
        piece: where the piece begins.
        is_buffer, is_constant: whether the tensor is a buffer, and one that is no statistic.
    """

    tensor: torch.Tensor
    offset: int
    start: int
    stop: int
    piece: int
    is_buffer: bool
    is_constant: bool = False

    @property
    def group(self) -> tuple[int, bool, bool, torch.device]:
        """Neighbours with equal groups make one tile."""
        return self.piece, self.is_buffer, self.is_constant, self.tensor.device

    def views(self) -> Iterable[torch.Tensor]:
        """View the elements of the part, row by row; they are one view if it is contiguous."""
        size = self.tensor.element_size()
        start, stop = (self.start - self.offset) // size, (self.stop - self.offset) // size
        if self.tensor.is_contiguous():
            return (self.tensor.view(-1)[start:stop],)
        return boxes(self.tensor, start, stop)


def cut(tensors: Iterable[tuple[torch.Tensor, bool, bool]], layout: Layout) -> tuple[Tile, ...]:
    """Cut the snapshots of a layout into tiles of at most `TILE_BYTES`, in order.

    No tile crosses a boundary of `layout.pieces(nbytes, TILE_BYTES)`.

    Args:
        tensors: those of the layout, in its order, and whether each is a buffer, and a constant.
        layout: where they stand in a snapshot.
    """
    rooms: dict[torch.device, torch.Tensor] = {}
    tiles = []
    for group, parts in itertools.groupby(_parts(tensors, layout), key=lambda part: part.group):
        device = group[-1]
        if device not in rooms:
            rooms[device] = torch.empty(TILE_BYTES, dtype=torch.uint8, device=device)
        tiles.append(Tile(list(parts), rooms[device]))
    return tuple(tiles)


def _parts(
    tensors: Iterable[tuple[torch.Tensor, bool, bool]], layout: Layout
) -> Iterator[TilePart]:
    """Walk through the tensors, cut where pieces end."""
    pieces = iter(layout.pieces(layout.nbytes or 0, TILE_BYTES))
    piece = next(pieces, None)
    for (tensor, *kind), offset in zip(tensors, layout.offsets, strict=True):
        detached, start, stop = tensor.detach(), offset, offset + tensor.nbytes
        while start < stop and piece is not None:
            end = min(stop, piece.stop)
            yield TilePart(detached, offset, start, end, piece.start, *kind)
            start = end
            if end == piece.stop:
                piece = next(pieces, None)


def overlapping(tiles: Sequence[Tile], start: int, stop: int) -> Iterator[Tile]:
    """Yield what lies between `start` and `stop` of a snapshot, out of its tiles in order."""
    first = bisect.bisect_right(tiles, start, key=lambda tile: tile.stop)
    for tile in tiles[first:]:
        if tile.start >= stop:
            return
        yield tile.clip(start, stop)


def boxes(tensor: torch.Tensor, start: int, stop: int) -> Iterator[torch.Tensor]:
    """Yield views whose elements, row by row, are those from `start` to `stop` of a tensor.

    These are whole rows in the middle, and parts of a row at both ends: at most two for each
    dimension, whatever the strides.
    """
    if (start, stop) == (0, tensor.numel()):
        yield tensor
        return
    row = tensor.numel() // tensor.shape[0]
    first, last = -(-start // row), stop // row  # the whole rows
    if first > last:
        yield from boxes(tensor[last], start - last * row, stop - last * row)
        return
    if start < first * row:
        yield from boxes(tensor[first - 1], start - (first - 1) * row, row)
    if first < last:
        yield tensor[first:last]
    if last * row < stop:
        yield from boxes(tensor[last], 0, stop - last * row)
