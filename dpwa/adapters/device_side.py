"""DeviceSide: copies and merges tensors on any device, or on several, one tile after the other."""

from __future__ import annotations

import torch

from dpwa.adapters.host_side import HostSide
from dpwa.adapters.merging import Merging, Terms
from dpwa.adapters.tiles import Tile


class DeviceMerging(Merging):
    """Brings the peer's values to the device tile by tile; the old ones are kept there."""

    def _bring(self, tile: Tile, values: torch.Tensor) -> torch.Tensor:
        return values.to(tile.room.device)

    def _keep(self, tile: Tile, _: torch.Tensor) -> torch.Tensor:
        return tile.copy_to(torch.empty_like(tile.room))


class DeviceSide(HostSide):
    """Copies and merges the tensors behind tiles, on whatever devices they are."""

    def merging(self, terms: Terms, round_number: int) -> Merging:
        """Begin to merge a peer's snapshot."""
        return DeviceMerging(self._tiles, terms, round_number)

    def _copy(self, tile: Tile, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(tile.values())
