"""Merging: a peer's snapshot, or a part of it, goes into the tensors of a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from dpwa.adapters.tiles import TILE_BYTES, Tile, overlapping
from dpwa.data.kernels import (
    Rounding,
    add_,
    difference,
    finite,
    is_bit,
    is_finite,
    is_narrow,
    move_toward_,
    norm,
)
from dpwa.data.segments import ByteArray

EXACT_ELEMENTS = 64 * 1024  # up to here the distance costs some ten microseconds
SAMPLED_EVERY = 8  # of the elements of a larger model


@dataclass(frozen=True)
class MergeTerms:
    """How a peer's snapshot is merged.

    Attributes:
        factor: weight f of the peer, from 0 to 1.
        published: the bytes of the snapshot that this node published, shape `(nbytes,)`; the
            parameters then become own + f * (peer - published). `None`: they are interpolated.
        buffers: the weight of the peer's buffers; as for the parameters if `None`.
        parameters: whether the parameters are merged, and not only measured.
    """

    factor: float
    published: ByteArray | None = None
    buffers: float | None = None
    parameters: bool = True

    def factor_of(self, tile: Tile) -> float:
        """Return the weight f of the peer for a tile of parameters or of buffers."""
        if tile.is_buffer and self.buffers is not None:
            return self.buffers
        return self.factor if tile.is_buffer or self.parameters else 0.0


class Merging:
    """One merge.

    Parameters are interpolated, x = (1-f)*x + f*peer, or with `terms.published` moved by a delta,
    x = x + f*(peer - published). Buffers are always interpolated: a delta could turn a running
    variance negative. In constants only what is finite on both ends is, and no bit.

    Args:
        tiles: those of the module's tensors, in order.
        terms: how to merge.
        round_number: rotates the sample that `consensus_distance` is estimated from.
        bring: returns values of a tile, which are on the host, where its tensors are.
        rounding: how results get into narrow dtypes.
    """

    def __init__(
        self,
        tiles: Sequence[Tile],
        terms: MergeTerms,
        round_number: int,
        bring: Callable[[Tile, torch.Tensor], torch.Tensor],
        rounding: Rounding,
    ) -> None:
        self._tiles = tiles
        self._terms = terms
        self._bring = bring
        self._rounding = rounding
        self._published = _flat(terms.published)
        measurable = [tile.elements for tile in tiles if not tile.is_buffer]
        self._distance = _Distance(sum(measurable), len(measurable), round_number)

    @torch.inference_mode()
    def take(self, start: int, data: ByteArray) -> None:
        """Merge the bytes of the peer's snapshot from `start` on.

        They are one or more neighbours among the pieces of the layout, of any size; those of
        `TILE_BYTES` are fastest. Pieces that are never passed are left as they are.

        Args:
            start: where `data` begins in the snapshot.
            data: writable memory, though never written to.
        """
        flat = torch.from_numpy(data)
        for tile in overlapping(self._tiles, start, start + data.nbytes):
            sample = self._distance.sample(tile)
            changes = self._terms.factor_of(tile) != 0.0
            wanted = tile if changes else sample
            if wanted is not None:
                self._merge(wanted, self._bring(wanted, wanted.of(flat, start)), sample)

    @property
    def consensus_distance(self) -> float:
        """Euclidean distance between the peer's and this node's parameters before the merge.

        With `published`, this node's as published. It is exact for models of up to
        `EXACT_ELEMENTS` elements, if all pieces were taken. Else it is estimated: measuring costs
        more than merging, so one element of `SAMPLED_EVERY` is measured, in blocks (whole tiles of
        a model that has many), others at each round; a block stands for the elements since the one
        before it, and the sum is scaled to all elements.
        """
        return self._distance.estimate()

    def _merge(self, tile: Tile, peer: torch.Tensor, sample: Tile | None) -> None:
        published = None if tile.is_buffer else self._published
        if published is None:
            self._interpolate(tile, peer, sample)
        else:
            self._add_delta(tile, peer, self._bring(tile, tile.of(published)), sample)

    def _interpolate(self, tile: Tile, peer: torch.Tensor, sample: Tile | None) -> None:
        if sample is not None:
            there = sample.of(peer.view(torch.uint8), tile.start)
            self._distance.add(sample, difference(there, sample.values(), sample.room))
        factor = self._terms.factor_of(tile)
        if tile.is_plain and (not tile.is_buffer or is_finite(peer)):
            move_toward_(tile.views, tile.split(peer), factor)
        elif factor != 0.0:
            self._change(tile, peer, factor, move_toward_)

    def _add_delta(
        self, tile: Tile, peer: torch.Tensor, published: torch.Tensor, sample: Tile | None
    ) -> None:
        delta, factor = difference(peer, published, tile.room), self._terms.factor_of(tile)
        if sample is not None:
            first = (sample.start - tile.start) // tile.dtype.itemsize
            self._distance.add(sample, delta[first : first + sample.elements])
        if factor == 1.0 and not is_finite(delta):
            # This node had published NaN: no step away from that is worth keeping.
            move_toward_(tile.views, tile.split(peer), 1.0)
        elif tile.is_plain:
            add_(tile.views, tile.split(delta), factor)
        elif factor != 0.0:
            self._change(tile, delta, factor, add_)

    def _change(
        self, tile: Tile, values: torch.Tensor, factor: float, kernel: Callable[..., None]
    ) -> None:
        """Change the own values by others, where more is to be done than that."""
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
    """Adds up squared distances of tiles, each weighted by the elements that it stands for."""

    elements: int  # of all parameters
    tiles: int  # how many there are of them
    round_number: int
    _measured: list[tuple[torch.Tensor, float]] = field(default_factory=list)  # norm and weight
    _represented: int = 0
    _waiting: int = 0  # elements since the last measured tile

    def sample(self, tile: Tile) -> Tile | None:
        """Count a tile; return the part of it that is to be measured, if any."""
        if tile.is_buffer:
            return None
        self._waiting += tile.elements
        if self.elements <= EXACT_ELEMENTS:
            return tile
        if self.tiles < SAMPLED_EVERY:
            return tile.share(self.round_number % SAMPLED_EVERY, SAMPLED_EVERY)
        is_due = (tile.start // TILE_BYTES + self.round_number) % SAMPLED_EVERY == 0
        return tile if is_due or not self._measured else None

    def add(self, tile: Tile, delta: torch.Tensor) -> None:
        """Measure a tile by the difference of its ends."""
        self._measured.append((norm(delta), self._waiting / tile.elements))
        self._represented += self._waiting
        self._waiting = 0

    def estimate(self) -> float:
        """Return the distance over all elements, as far as it is known."""
        if not self._represented:
            return 0.0
        norms = [(value.item(), weight) for value, weight in self._measured]
        squared = sum(value * value * weight for value, weight in norms)  # `**` would not overflow
        return math.sqrt(squared * self.elements / self._represented)


def _flat(data: ByteArray | None) -> torch.Tensor | None:
    return None if data is None else torch.from_numpy(data)
