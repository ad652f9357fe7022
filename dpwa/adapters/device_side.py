"""DeviceSide: copies and merges tensors on any device, or on several, one tile after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dpwa.adapters.host_side import HostSide
from dpwa.adapters.merging import MergeTerms, Merging
from dpwa.adapters.tiles import Tile


class DeviceMerging(Merging):
    """Brings the peer's values to the device tile by tile; the old ones are kept there.

    Args:
        bring: returns a tile's values, which are on the host, on its device.
        tiles, terms, round_number: as for `Merging`.
    """

    def __init__(
        self,
        bring: Callable[[Tile, torch.Tensor], torch.Tensor],
        tiles: Sequence[Tile],
        terms: MergeTerms,
        round_number: int,
    ) -> None:
        super().__init__(tiles, terms, round_number)
        self._bring_to_device = bring

    def _bring(self, tile: Tile, values: torch.Tensor) -> torch.Tensor:
        return self._bring_to_device(tile, values)

    def _keep(self, tile: Tile, _: torch.Tensor) -> torch.Tensor:
        return tile.copy_to(torch.empty_like(tile.room))


class DeviceSide(HostSide):
    """Copies and merges the tensors behind tiles, on whatever devices they are."""

    def merging(self, terms: MergeTerms, round_number: int) -> Merging:
        """Begin to merge a peer's snapshot; its bytes must stay until the distance was read."""
        return DeviceMerging(self._bring, self._tiles, terms, round_number)

    def _bring(self, tile: Tile, values: torch.Tensor) -> torch.Tensor:
        return values.to(tile.room.device)

    def _copy(self, tile: Tile, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(tile.values())
