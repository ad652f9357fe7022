"""Plain data with arrays and tensors in it, as bytes and back. Nothing that comes can run code."""

from __future__ import annotations

import sys
from typing import Any

import msgpack
import numpy as np

from dpwa.data.payload import Payload
from dpwa.errors import ParametersError, ProtocolError

_ARRAY, _TENSOR = 1, 2


def pack_object(value: object) -> bytes:
    """Pack None, numbers, strings, bytes, arrays, tensors, and lists and dicts of them.

    Raises:
        ParametersError: there is something else in it.
    """
    try:
        return bytes(msgpack.packb(value, default=_packed_leaf))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ParametersError(f"a value that cannot be sent: {error}") from None


def unpack_object(data: bytes | memoryview) -> object:
    """Unpack it: tuples come as lists; tensors as arrays where torch is not loaded.

    Raises:
        ProtocolError: it is something else.
    """
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, ext_hook=_unpacked_leaf)
    except (TypeError, ValueError, AttributeError, RecursionError, msgpack.UnpackException):
        raise ProtocolError("not a value of a node") from None


def _packed_leaf(leaf: object) -> msgpack.ExtType:
    if isinstance(leaf, np.generic):
        leaf = np.asarray(leaf)
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(leaf, torch.Tensor)
    if not is_tensor and not isinstance(leaf, np.ndarray):
        raise TypeError(f"it has a {type(leaf).__name__}")
    payload = Payload(leaf)
    (spec,) = payload.layout.tensors
    data = np.empty(payload.nbytes, np.uint8)
    payload.copy_into(0, payload.nbytes, data)
    packed = msgpack.packb([spec.dtype, spec.shape, data.tobytes()])
    return msgpack.ExtType(_TENSOR if is_tensor else _ARRAY, packed)


def _unpacked_leaf(code: int, packed: bytes) -> Any:
    dtype, shape, data = msgpack.unpackb(packed, raw=False)
    torch = sys.modules.get("torch")
    if code == _TENSOR and torch is not None:
        kind = getattr(torch, dtype)
        flat = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
        return flat.reshape(shape)
    if code not in (_ARRAY, _TENSOR):
        raise ValueError("unknown kind of leaf")
    return np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)
