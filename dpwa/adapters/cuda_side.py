"""CudaSide copies and merges tensors on CUDA devices without blocking the host.

Publishing copies the tensors on their device, in the training's stream, so that training can
continue at once. A separate stream brings the copy to the host. Merging brings the peer's bytes
to the device tile by tile, while earlier tiles are merged.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpwa.adapters.host_side import DeviceSide
from dpwa.adapters.tensor_merging import CUDA_TILE_BYTES, Tile
from dpwa.data.kernels import total
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import SnapshotCopy
from dpwa.lifecycle import finalize

_RING = 4  # a tile needs up to two buffers at once, and the next two are filled meanwhile


@dataclass(frozen=True)
class CudaCopy:
    """A copy to the host that runs on the streams of one or more devices."""

    done: Sequence[torch.cuda.Event]  # one for each device, when its bytes are on the host
    # the sum of all values of each device, shape `()`, valid once `done`; `None`: not checked
    totals: Sequence[torch.Tensor] | None
    # checks each value on the host, because a sum of finite values may overflow
    is_finite: Callable[[], bool]

    def is_ready(self) -> bool:
        return all(event.query() for event in self.done)  # type: ignore[no-untyped-call]

    def wait_complete(self) -> bool | None:
        """Wait for the copy. Return whether all values are finite, or `None` if not checked."""
        for event in self.done:
            event.synchronize()
        if self.totals is None:
            return None
        return all(math.isfinite(value.item()) for value in self.totals) or self.is_finite()


class _Device:
    """The stream and the buffers of a device, for copies to and from the host."""

    def __init__(self, device: torch.device, tiles: Sequence[Tile]) -> None:
        self._device = device
        self._tiles = [tile for tile in tiles if tile.room.device == device]
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staged = [torch.empty_like(tile.room) for tile in self._tiles]
        self._ring = [
            torch.empty(CUDA_TILE_BYTES, dtype=torch.uint8, device=device) for _ in range(_RING)
        ]
        for room in (*self._staged, *self._ring):
            room.record_stream(self._stream)  # do not free the memory before the stream is done
        self._brought = 0
        self._passed: deque[torch.cuda.Event] = deque(maxlen=_RING - 1)

    def copy_to_host(
        self, flat: torch.Tensor, check_finite: bool
    ) -> tuple[torch.cuda.Event, torch.Tensor]:
        """Start a copy to the host. Return its event and the sum of all values (0 if unchecked)."""
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)  # the copy before this one still reads the same buffer
        summed = torch.zeros((), dtype=torch.float64, device=self._device)
        for tile, staged in zip(self._tiles, self._staged, strict=True):
            tile.copy_to(staged)
            if check_finite and not tile.is_constant:
                summed += total(staged)
        summed.record_stream(self._stream)
        self._stream.wait_stream(current)
        summed_on_host = torch.zeros((), dtype=torch.float64, pin_memory=True)
        with torch.cuda.stream(self._stream):
            for tile, staged in zip(self._tiles, self._staged, strict=True):
                tile.view_in(flat).copy_(staged, non_blocking=True)
            summed_on_host.copy_(summed, non_blocking=True)
            return self._stream.record_event(), summed_on_host

    def bring(self, values: torch.Tensor) -> torch.Tensor:
        """Start to copy values to the device. The current CUDA stream waits for this copy."""
        current = torch.cuda.current_stream(self._device)
        self._passed.append(current.record_event())
        room = self._ring[self._brought % _RING][: values.nbytes].view(values.dtype)
        self._brought += 1
        # This buffer held the values of an earlier tile, because a tile needs at most two calls.
        # The call before the last one came after the merge of these values.
        self._stream.wait_event(self._passed[0])
        with torch.cuda.stream(self._stream):
            room.copy_(values, non_blocking=True)
        current.wait_stream(self._stream)
        return room


class CudaSide(DeviceSide):
    """Copies and merges a module's tensors, some or all of which are on CUDA devices."""

    def __init__(self, tiles: Sequence[Tile]) -> None:
        super().__init__(tiles)
        self._elsewhere = DeviceSide([tile for tile in tiles if not tile.room.is_cuda])
        devices = dict.fromkeys(tile.room.device for tile in tiles if tile.room.is_cuda)
        self._devices = {device: _Device(device, tiles) for device in devices}

    @torch.inference_mode()
    def start_copy(self, data: ByteArray, check_finite: bool) -> SnapshotCopy:
        """Start to copy every tensor to its place in `data`, a snapshot of shape `(nbytes,)`.

        The caller may change the tensors on the current stream at once. It must not touch the
        snapshot before the copy `is_ready`.
        """
        self._pin(data)
        flat = torch.from_numpy(data)
        started = [device.copy_to_host(flat, check_finite) for device in self._devices.values()]
        elsewhere = self._elsewhere.start_copy(data, check_finite).wait_complete()
        totals = [summed for _, summed in started]
        if elsewhere is False:
            totals.append(torch.tensor(math.nan))
        return CudaCopy(
            [done for done, _ in started],
            totals if check_finite else None,
            lambda: self._is_finite(flat),
        )

    def _bring(self, tile: Tile, values: torch.Tensor) -> torch.Tensor:
        device = self._devices.get(tile.room.device)
        return super()._bring(tile, values) if device is None else device.bring(values)

    def _is_finite(self, flat: torch.Tensor) -> bool:
        return all(tile.is_sound(tile.view_in(flat)) for tile in self._tiles)

    def _pin(self, data: ByteArray) -> None:
        """Pin a snapshot's memory if possible, so that CUDA transfers do not block the host.

        Source: "page-locked host memory" in the CUDA C++ programming guide.
        """
        address = data.ctypes.data
        if address in _pinned:
            return
        _pinned.add(address)
        if int(_cudart().cudaHostRegister(address, data.nbytes, 0)) == 0:
            # At the end of the program the driver unpins, because a copy may still be running.
            finalize(data, _unpin, address).atexit = False
        else:
            with contextlib.suppress(RuntimeError):  # the next CUDA call raises the stored error
                torch.zeros((), device=next(iter(self._devices)))


_pinned: set[int] = set()  # addresses that are pinned, for all modules of this process


def _unpin(address: int) -> None:
    _pinned.discard(address)
    _cudart().cudaHostUnregister(address)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
