"""Bytes seen as tensors, for codecs."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from dpwa.data.codecs.sizes import WIDTHS
from dpwa.data.segments import ByteArray

FLOATS: dict[str, torch.dtype] = {name: getattr(torch, name) for name in WIDTHS}

KEPT_PAYLOADS = 16  # more than are usually on their way at once


def tensor_over(data: ByteArray, dtype: torch.dtype) -> torch.Tensor:
    """Return the bytes as a flat tensor in the same memory, or a copy if it is read-only."""
    return torch.from_numpy(data if data.flags.writeable else data.copy()).view(dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in, which is float32, or float64 for itself."""
    return torch.promote_types(dtype, torch.float32)


class PayloadMemory:
    """Memory for payloads, which is reused when nothing refers to it any more.

    A socket may hold a payload long after it was sent. Fresh memory from the system would take
    several times as long as the encoding itself.
    """

    def __init__(self) -> None:
        self._free: deque[ByteArray] = deque(maxlen=KEPT_PAYLOADS)

    def allocate_array(self, nbytes: int) -> ByteArray:
        """Return an array of any content, whose memory is reused after the last view of it."""
        memory = self._free.pop() if self._free else None
        if memory is None or memory.nbytes < nbytes:
            memory = np.empty(nbytes, np.uint8)
        return np.asarray(_Loan(memory, nbytes, self._free))


class _Loan:
    """The base of an array's views, which ends with the last view, in any thread."""

    def __init__(self, memory: ByteArray, nbytes: int, free: deque[ByteArray]) -> None:
        self.__array_interface__ = memory[:nbytes].__array_interface__
        self._memory = memory
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._memory)


class Scratch:
    """Memory that is used again for every piece."""

    def __init__(self) -> None:
        self._data = torch.empty(0, dtype=torch.uint8)

    def borrow_tensor(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a flat tensor of any content, to be used until the next call."""
        nbytes = elements * dtype.itemsize
        if self._data.numel() < nbytes:
            self._data = torch.empty(nbytes, dtype=torch.uint8)
        return self._data[:nbytes].view(dtype)
