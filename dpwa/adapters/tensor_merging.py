"""Merge a peer's snapshot, or a part of it, into the tensors of a module."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from dpwa.data.kernels import (
    Rounding,
    Tensors,
    add_,
    difference,
    finite,
    is_bit,
    is_finite,
    is_narrow,
    move_toward_,
    squared_norm,
)
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import MergeTerms

TILE_BYTES = 1024 * 1024  # a chunk of the wire; both sides' values and a buffer fit the cache
# On a GPU, the host needs a tenth of a millisecond to start the work on a tile.
CUDA_TILE_BYTES = 8 * 1024 * 1024


class Tile:
    """A byte range of a snapshot (parameters or buffers of one dtype), and views of the module."""

    def __init__(self, parts: Sequence[TilePart], room: torch.Tensor) -> None:
        self._parts, self._whole_room = parts, room
        self._clips: dict[tuple[int, int], Tile] = {}  # a few clips, which are used again and again
        self.start, self.stop = parts[0].start, parts[-1].stop
        self.is_buffer, self.is_constant = parts[0].is_buffer, parts[0].is_constant
        self.dtype = parts[0].tensor.dtype
        self.elements = (self.stop - self.start) // self.dtype.itemsize
        # a buffer, shape `(elements,)`, which all tiles of a device share
        self.room = room[: self.stop - self.start].view(self.dtype)
        # views of the module's values: parts of tensors, in the order of the snapshot
        self.views = [view for part in parts for view in part.views()]
        self._sizes = [view.numel() for view in self.views]
        self._are_flat = all(view.dim() == 1 for view in self.views)  # otherwise strided
        self._is_one = self._are_flat and len(self.views) == 1
        # whether a merge is plain arithmetic, without rounding or conditions
        self.is_plain = not (self.is_constant or is_narrow(self.room))

    def clip(self, start: int, stop: int) -> Tile:
        if start <= self.start and self.stop <= stop:
            return self
        bounds = max(self.start, start), min(self.stop, stop)
        known = self._clips.get(bounds)
        if known is None:
            known = self._clips[bounds] = self._clipped(*bounds)
        return known

    def nth_share(self, index: int, of: int) -> Tile:
        """Return one of `of` parts of about equal size, or the whole tile if the tile is small."""
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

    def view_in(self, flat: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Return this tile, shape `(elements,)`, in `flat`, a snapshot's bytes from `start` on."""
        return flat[self.start - start : self.stop - start].view(self.dtype)

    def split(self, values: torch.Tensor) -> Tensors:
        """Return `values`, shape `(elements,)`, as tensors with the shapes of `views`."""
        if self._is_one:
            return (values,)
        parts = values.split_with_sizes(self._sizes)
        if self._are_flat:
            return parts
        return [part.view(view.shape) for part, view in zip(parts, self.views, strict=True)]

    def values(self) -> torch.Tensor:
        """Return the module's values, shape `(elements,)`: a view, or a copy in a shared buffer."""
        return self.views[0] if self._is_one else self.copy_to(self.room)

    def set(self, values: torch.Tensor) -> None:
        """Write the changed result of `values()` back to the module."""
        if not self._is_one:
            torch._foreach_copy_(self.views, self.split(values))

    def is_sound(self, values: torch.Tensor) -> bool:
        """Return whether `values`, shape `(elements,)`, are finite, or the buffer is constant."""
        return self.is_constant or is_finite(values)

    def copy_to(self, out: torch.Tensor) -> torch.Tensor:
        """Copy the module's values to `out`, shape `(elements,)`, and return the values.

        If the tile has a single view, this returns the view, because it is in the cache already.
        """
        if self._is_one:
            out.copy_(self.views[0])
            return self.views[0]
        flat = self.views if self._are_flat else [view.reshape(-1) for view in self.views]
        return torch.cat(flat, out=out)


@dataclass(frozen=True)
class TilePart:
    """A part of one tensor: bytes `start` to `stop` of a snapshot, in one piece of the layout."""

    tensor: torch.Tensor  # detached
    offset: int  # the byte at which the tensor begins
    start: int
    stop: int  # the byte after the last one
    piece: int  # the byte at which the layout's piece begins
    is_buffer: bool
    is_constant: bool = False  # a buffer that is no statistic, such as a mask

    @property
    def group(self) -> tuple[int, bool, bool, torch.device]:
        """A key. Neighbours with equal keys make one tile."""
        return self.piece, self.is_buffer, self.is_constant, self.tensor.device

    def views(self) -> Iterable[torch.Tensor]:
        """Return views of the part's elements, row by row. A contiguous tensor has one."""
        size = self.tensor.element_size()
        start, stop = (self.start - self.offset) // size, (self.stop - self.offset) // size
        if self.tensor.is_contiguous():
            return (self.tensor.view(-1)[start:stop],)
        return boxes(self.tensor, start, stop)


def cut(tensors: Sequence[tuple[torch.Tensor, bool, bool]], layout: Layout) -> tuple[Tile, ...]:
    """Divide the snapshots of a layout into tiles, in order.

    A tile has at most `TILE_BYTES`, or `CUDA_TILE_BYTES` if a tensor is on a GPU. It does not cross
    the end of a piece of that size. `tensors` are the tensors of the layout, in its order. The
    flags of each say whether it is a buffer, and whether it is constant.
    """
    is_cuda = any(tensor.is_cuda for tensor, *_ in tensors)
    tile_bytes = CUDA_TILE_BYTES if is_cuda else TILE_BYTES
    rooms: dict[torch.device, torch.Tensor] = {}
    tiles = []
    cut_apart = _parts(tensors, layout, tile_bytes)
    for group, parts in itertools.groupby(cut_apart, key=lambda part: part.group):
        device = group[-1]
        if device not in rooms:
            rooms[device] = torch.empty(tile_bytes, dtype=torch.uint8, device=device)
        tiles.append(Tile(list(parts), rooms[device]))
    return tuple(tiles)


def _parts(
    tensors: Iterable[tuple[torch.Tensor, bool, bool]], layout: Layout, tile_bytes: int
) -> Iterator[TilePart]:
    pieces = iter(layout.pieces(layout.nbytes or 0, tile_bytes))
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
    """Yield the tiles within the bytes `start` to `stop` of a snapshot, in order. Clip the ends."""
    first = bisect.bisect_right(tiles, start, key=lambda tile: tile.stop)
    for tile in tiles[first:]:
        if tile.start >= stop:
            return
        yield tile.clip(start, stop)


def boxes(tensor: torch.Tensor, start: int, stop: int) -> Iterator[torch.Tensor]:
    """Yield views that together have the elements `start` to `stop` of a tensor, in row order.

    These are whole rows in the middle, and parts of a row at both ends. There are at most two views
    for each dimension, whatever the strides are.
    """
    if (start, stop) == (0, tensor.numel()):
        yield tensor
        return
    row = tensor.numel() // tensor.shape[0]
    first, last = -(-start // row), stop // row  # the range of whole rows
    if first > last:
        yield from boxes(tensor[last], start - last * row, stop - last * row)
        return
    if start < first * row:
        yield from boxes(tensor[first - 1], start - (first - 1) * row, row)
    if first < last:
        yield tensor[first:last]
    if last * row < stop:
        yield from boxes(tensor[last], 0, stop - last * row)


EXACT_ELEMENTS = 64 * 1024  # measuring so few elements costs some ten microseconds
SAMPLED_EVERY = 8  # of a larger model, one element of this number is measured


class Merging:
    """The merge of one peer's snapshot into the module's tensors.

    Parameters are interpolated, x = (1-f)*x + f*peer. With `terms.published`, they are moved by a
    delta, x = x + f*(peer - published), or by a mixture of both. Buffers are always interpolated,
    because a delta could make a running variance negative. In constant buffers, an element changes
    only if it is finite, and if it is not 0 or 1 on both nodes.
    """

    def __init__(
        self,
        tiles: Sequence[Tile],  # the tiles of the module's tensors, in order
        terms: MergeTerms,
        round_number: int,  # selects the sample for `consensus_distance`
        # moves values of a tile from the host to the tile's device
        bring: Callable[[Tile, torch.Tensor], torch.Tensor],
        rounding: Rounding,  # the way to round results to narrow dtypes
    ) -> None:
        self._tiles = tiles
        self._terms = terms
        self._bring = bring
        self._rounding = rounding
        self._published = _flat(terms.published)
        measurable = [tile.elements for tile in tiles if not tile.is_buffer]
        self._distance = _Distance(sum(measurable), len(measurable), round_number)

    @torch.inference_mode()
    def merge_bytes(self, start: int, data: ByteArray) -> None:
        """Merge the bytes of the peer's snapshot from `start` on.

        `data` holds one or more successive pieces of the layout, of any size. Pieces as large as a
        tile are fastest. Pieces that are never passed stay unmerged. `data` must be writable
        memory, but this does not write to it.
        """
        flat = torch.from_numpy(data)
        for tile in overlapping(self._tiles, start, start + data.nbytes):
            sample = self._distance.sample(tile)
            changes = self._factor_of(tile) != 0.0
            wanted = tile if changes else sample
            if wanted is not None:
                self._merge(wanted, self._bring(wanted, wanted.view_in(flat, start)), sample)

    @property
    def consensus_distance(self) -> float:
        """The Euclidean distance between the parameters of the peer and this node before the merge.

        With `published`, it is the distance to this node's published parameters. The distance is
        exact for models of up to `EXACT_ELEMENTS` elements, if all pieces were merged. In larger
        models it is an estimate, because measuring costs more than merging. One element of
        `SAMPLED_EVERY` is measured, in blocks, and different blocks in each round. On the host, a
        block is a whole tile if the model has many tiles. A block also represents the unmeasured
        elements before it. The sum is scaled to all elements.
        """
        return self._distance.estimate()

    def _factor_of(self, tile: Tile) -> float:
        terms = self._terms
        return terms.buffers if tile.is_buffer and terms.buffers is not None else terms.factor

    def _merge(self, tile: Tile, peer: torch.Tensor, sample: Tile | None) -> None:
        published = None if tile.is_buffer else self._published
        if published is None:
            self._interpolate(tile, peer, sample)
        else:
            self._add_delta(tile, peer, self._bring(tile, tile.view_in(published)), sample)

    def _interpolate(self, tile: Tile, peer: torch.Tensor, sample: Tile | None) -> None:
        if sample is not None:
            there = sample.view_in(peer.view(torch.uint8), tile.start)
            self._distance.add_tile(sample, difference(there, sample.values(), sample.room))
        factor = self._factor_of(tile)
        if tile.is_plain and (not tile.is_buffer or is_finite(peer)):
            move_toward_(tile.views, tile.split(peer), factor)
        elif factor != 0.0:
            self._change(tile, peer, factor, move_toward_)

    def _add_delta(
        self, tile: Tile, peer: torch.Tensor, published: torch.Tensor, sample: Tile | None
    ) -> None:
        delta, factor = difference(peer, published, tile.room), self._factor_of(tile)
        if sample is not None:
            first = (sample.start - tile.start) // tile.dtype.itemsize
            self._distance.add_tile(sample, delta[first : first + sample.elements])
        if factor == 1.0 and not is_finite(delta):
            # This node has published NaN, so its local step is not worth keeping.
            move_toward_(tile.views, tile.split(peer), 1.0)
            return
        rest = 1.0 - self._terms.delta  # the share of the local step that is not kept
        if rest and tile.is_plain:
            move_toward_(tile.views, tile.split(peer), factor * rest)
            factor *= self._terms.delta
        elif rest:  # a single rounding, at the end
            delta.sub_(difference(tile.values(), published, tile.room), alpha=rest)
        if tile.is_plain:
            add_(tile.views, tile.split(delta), factor)
        elif factor != 0.0:
            self._change(tile, delta, factor, add_)

    def _change(
        self, tile: Tile, values: torch.Tensor, factor: float, kernel: Callable[..., None]
    ) -> None:
        """Merge values into a tile that needs rounding (narrow dtypes), or a tile of a buffer."""
        own = tile.values()
        before = own.clone() if tile.is_buffer else own
        rest = self._rounding.rest_of(own, tile.start) if is_narrow(own) else None
        kernel((own,), (values,), factor, self._rounding, rest)
        if tile.is_buffer:
            stays = ~finite(own)
            if tile.is_constant:
                stays |= is_bit(before) & is_bit(values)
            own.copy_(torch.where(stays, before, own))
        tile.set(own)


@dataclass
class _Distance:
    """Sums the squared distances between the tiles of a peer and of this node.

    A tile counts for the unmeasured elements before it.
    """

    elements: int  # the number of elements of all parameters
    tiles: int  # the number of tiles with parameters
    round_number: int
    _measured: list[tuple[torch.Tensor, float]] = field(default_factory=list)  # square, weight
    _represented: int = 0
    _waiting: int = 0  # the number of elements since the last measured tile

    def sample(self, tile: Tile) -> Tile | None:
        """Count a tile, and return a part of the tile to measure, or `None` to skip the tile."""
        if tile.is_buffer:
            return None
        self._waiting += tile.elements
        if self.elements <= EXACT_ELEMENTS:
            return tile
        if self.tiles < SAMPLED_EVERY or tile.room.is_cuda:
            return tile.nth_share(self.round_number % SAMPLED_EVERY, SAMPLED_EVERY)
        is_due = (tile.start // TILE_BYTES + self.round_number) % SAMPLED_EVERY == 0
        return tile if is_due or not self._measured else None

    def add_tile(self, tile: Tile, delta: torch.Tensor) -> None:
        self._measured.append((squared_norm(delta), self._waiting / tile.elements))
        self._represented += self._waiting
        self._waiting = 0

    def estimate(self) -> float:
        if not self._represented:
            return 0.0
        squared = sum(square.item() * weight for square, weight in self._measured)
        return math.sqrt(squared * self.elements / self._represented)


def _flat(data: ByteArray | None) -> torch.Tensor | None:
    return None if data is None else torch.from_numpy(data)
