"""DeviceSide: copies and merges tensors on any device, or on several, one tile after the other."""

from __future__ import annotations

import torch

from dpwa.adapters.host_side import HostSide
from dpwa.adapters.tiles import Tile


class DeviceSide(HostSide):
    """Copies and merges the tensors behind tiles, on whatever devices they are."""

    def _bring(self, tile: Tile, values: torch.Tensor) -> torch.Tensor:
        return values.to(tile.room.device)

    def _copy(self, tile: Tile, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(tile.values())
