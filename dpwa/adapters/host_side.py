"""HostSide: copies and merges tensors that are in the memory of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dpwa.adapters.merging import Merging, Terms
from dpwa.adapters.tiles import Tile
from dpwa.data.kernels import is_finite
from dpwa.data.segments import ByteArray


class Copy(Protocol):
    """A copy of a module's tensors to a snapshot, which may still be under way."""

    def ready(self) -> bool:
        """Tell whether the snapshot is complete; does not wait."""

    def wait(self) -> bool:
        """Wait until it is, and tell whether all values are finite (`True` if not checked)."""


@dataclass(frozen=True)
class FinishedCopy:
    """A copy that was complete at once."""

    all_finite: bool

    def ready(self) -> bool:
        """Tell that the snapshot is complete."""
        return True

    def wait(self) -> bool:
        """Tell whether all values are finite (`True` if not checked)."""
        return self.all_finite


class HostSide:
    """Copies and merges the tensors behind tiles, all on the CPU.

    Args:
        tiles: all tiles of a module, in order.
    """

    def __init__(self, tiles: Sequence[Tile]) -> None:
        self._tiles = tiles

    @torch.inference_mode()
    def start_copy(self, data: ByteArray, check_finite: bool) -> Copy:
        """Copy every tensor to its place in a snapshot, shape `(nbytes,)`."""
        flat, all_finite = torch.from_numpy(data), True
        for tile in self._tiles:
            copied = self._copy(tile, tile.of(flat))
            all_finite = all_finite and (not check_finite or is_finite(copied))
        return FinishedCopy(all_finite)

    def merging(self, terms: Terms, round_number: int) -> Merging:
        """Begin to merge a peer's snapshot."""
        return Merging(self._tiles, terms, round_number)

    def _copy(self, tile: Tile, out: torch.Tensor) -> torch.Tensor:
        return tile.copy_to(out)
