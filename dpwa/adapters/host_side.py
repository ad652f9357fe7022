"""HostSide copies and merges tensors that are in the memory of the host."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dpwa.adapters.tensor_merging import Merging, Tile, overlapping
from dpwa.data.kernels import Rounding, squared_distance
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import FinishedCopy, MergeTerms, SnapshotCopy


class HostSide:
    """Copies and merges a module's tensors, tile by tile, if all tensors are on the CPU."""

    def __init__(self, tiles: Sequence[Tile]) -> None:
        self._tiles = tiles

    @torch.inference_mode()
    def start_copy(self, data: ByteArray, check_finite: bool) -> SnapshotCopy:
        flat, all_finite = torch.from_numpy(data), True
        for tile in self._tiles:
            values = self._copy(tile, tile.view_in(flat))
            all_finite = all_finite and (not check_finite or tile.is_sound(values))
        return FinishedCopy(all_finite if check_finite else None)

    def merging(
        self, terms: MergeTerms, round_number: int, rounding: Rounding | None = None
    ) -> Merging:
        """Begin to merge a peer's snapshot. Keep its bytes until the distance was read."""
        return Merging(self._tiles, terms, round_number, self._bring, rounding or Rounding())

    @torch.inference_mode()
    def distance(self, data: ByteArray, start: int, published: ByteArray | None) -> float:
        flat = torch.from_numpy(data)
        base = None if published is None else torch.from_numpy(published)
        squares = []
        for tile in overlapping(self._tiles, start, start + data.nbytes):
            if tile.is_constant:
                continue
            there = self._bring(tile, tile.view_in(flat, start))
            own = None if tile.is_buffer else base
            here = tile.values() if own is None else self._bring(tile, tile.view_in(own))
            squares.append(squared_distance(there, here, tile.room))
        return math.sqrt(sum(square.item() for square in squares))

    def _bring(self, tile: Tile, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Copy values from the host to the tile's device, unless this device is the CPU."""
        return values

    def _copy(self, tile: Tile, out: torch.Tensor) -> torch.Tensor:
        return tile.copy_to(out)


class DeviceSide(HostSide):
    """Copies and merges a module's tensors, tile by tile, on devices of any kind."""

    def _bring(self, tile: Tile, values: torch.Tensor) -> torch.Tensor:
        return values.to(tile.room.device)

    def _copy(self, tile: Tile, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(tile.values())
