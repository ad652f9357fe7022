"""Tensors that share memory with byte buffers, and reusable memory for payloads of codecs."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from dpwa.data.codecs.sizes import WIDTHS
from dpwa.data.segments import ByteArray

FLOATS: dict[str, torch.dtype] = {name: getattr(torch, name) for name in WIDTHS}

KEPT_PAYLOADS = 16  # a node usually sends fewer payloads at the same time


def tensor_over(data: ByteArray, dtype: torch.dtype) -> torch.Tensor:
    """Return a flat tensor that shares memory with `data`. Read-only `data` is copied."""
    return torch.from_numpy(data if data.flags.writeable else data.copy()).view(dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for computing: float64 for float64 values, otherwise float32."""
    return torch.promote_types(dtype, torch.float32)


class PayloadMemory:
    """Memory for payloads, reused as soon as no object refers to the old payload.

    A socket may hold a payload for a long time after it was sent. To allocate new memory for each
    payload would take several times as long as the encoding itself.
    """

    def __init__(self) -> None:
        self._free: deque[ByteArray] = deque(maxlen=KEPT_PAYLOADS)

    def allocate_array(self, nbytes: int) -> ByteArray:
        """Return an uninitialized array. After its last view is deleted, the memory is reused."""
        memory = self._free.pop() if self._free else None
        if memory is None or memory.nbytes < nbytes:
            memory = np.empty(nbytes, np.uint8)
        return np.asarray(_Loan(memory, nbytes, self._free))


class _Loan:
    """Owns an array's memory, and frees it for reuse when the last view of the array is deleted."""

    def __init__(self, memory: ByteArray, nbytes: int, free: deque[ByteArray]) -> None:
        self.__array_interface__ = memory[:nbytes].__array_interface__
        self._memory = memory
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._memory)


class Scratch:
    """A buffer that a codec reuses for every piece."""

    def __init__(self) -> None:
        self._data = torch.empty(0, dtype=torch.uint8)

    def borrow_tensor(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized flat tensor, valid until the next `borrow_tensor`."""
        nbytes = elements * dtype.itemsize
        if self._data.numel() < nbytes:
            self._data = torch.empty(nbytes, dtype=torch.uint8)
        return self._data[:nbytes].view(dtype)
