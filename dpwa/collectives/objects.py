"""Objects of plain data, packed as bytes to send to peers, such as the object of an all_gather."""

from __future__ import annotations

import struct
import sys
from typing import Any

import msgpack
import numpy as np

from dpwa.data.payload import Payload
from dpwa.data.segments import ByteArray
from dpwa.errors import ParametersError, ProtocolError

_SIZE = struct.Struct("<Q")
_ALIGNMENT = 64
_ARRAY, _TENSOR = 1, 2


class PackedObject:
    """A packed object: None, numbers, strings, bytes, arrays, tensors, or lists and dicts of them.

    Unpacking runs no received code. The packed bytes are:

        0    size of the header
        8    the header: msgpack, with a reference in the place of each array
             the bytes of the arrays, each from a multiple of 64 bytes on
    """

    def __init__(self, value: object) -> None:
        self._leaves: list[tuple[int, Payload]] = []
        self._end = 0  # the size of all arrays so far, in bytes
        try:
            header = bytes(msgpack.packb(value, default=self._reference))
            _check_keys(header)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ParametersError(f"a value cannot be sent: {error} [DPWA-E154]") from None
        self._head = _SIZE.pack(len(header)) + header
        self._data_at = _aligned(len(self._head))
        self.nbytes = self._data_at + self._end if self._leaves else len(self._head)

    def copy_into(self, target: ByteArray) -> None:
        target[: len(self._head)] = np.frombuffer(self._head, np.uint8)
        for start, payload in self._leaves:
            first = self._data_at + start
            payload.copy_into(0, payload.nbytes, target[first : first + payload.nbytes])

    def _reference(self, leaf: object) -> msgpack.ExtType:
        if isinstance(leaf, np.generic):
            leaf = np.asarray(leaf)
        torch = sys.modules.get("torch")
        is_tensor = torch is not None and isinstance(leaf, torch.Tensor)
        if not is_tensor and not isinstance(leaf, np.ndarray):
            raise TypeError(f"the value contains a {type(leaf).__name__}")
        payload = Payload(leaf)
        (spec,) = payload.layout.tensors
        start = _aligned(self._end)
        self._end = start + payload.nbytes
        self._leaves.append((start, payload))
        reference = msgpack.packb([spec.dtype, spec.shape, start, payload.nbytes])
        return msgpack.ExtType(_TENSOR if is_tensor else _ARRAY, reference)


def unpack_object(data: ByteArray) -> object:
    """Unpack a packed object. Tuples become lists. Tensors become arrays if torch is not loaded.

    Arrays are views of the data, which must not be changed.
    """
    try:
        (size,) = _SIZE.unpack_from(data.data)
        header = data[_SIZE.size : _SIZE.size + size]
        rest = data[_aligned(_SIZE.size + size) :]

        def leaf(code: int, reference: bytes) -> Any:
            dtype, shape, start, nbytes = msgpack.unpackb(reference, raw=False)
            return _leaf(code, dtype, shape, rest[start : start + nbytes])

        return msgpack.unpackb(header.data, raw=False, strict_map_key=False, ext_hook=leaf)
    except (
        struct.error,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,  # from torch, or because of nesting that is too deep
        msgpack.UnpackException,
    ):
        raise ProtocolError("the payload is not a value that a node can send") from None


def _check_keys(header: bytes) -> None:
    """Unpack the header as a test, because msgpack packs some dict keys that it cannot unpack."""
    msgpack.unpackb(header, raw=False, strict_map_key=False, ext_hook=lambda *_: [])


def _leaf(code: int, dtype: str, shape: list[int], data: ByteArray) -> Any:
    torch = sys.modules.get("torch")
    if code == _TENSOR and torch is not None:
        return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)
    if code not in (_ARRAY, _TENSOR):
        raise ValueError("the value contains an object of an unknown kind")
    return data.view(np.dtype(dtype)).reshape(shape)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
