"""Sizes of payloads, and checks of these sizes. This module does not import torch."""

from __future__ import annotations

import numpy as np

from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError
from dpwa.types import Frame

WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # bytes of a value
BLOCK_VALUES = 256  # number of values that share a scale (see dpwa.data.codecs.int8)


def payload_bytes(codec: str, nbytes: int, dtype: str) -> int:
    """Return the size of an encoded piece in bytes. For a plugin's codec, return `nbytes`."""
    values = nbytes // WIDTHS.get(dtype, 1)
    if codec in ("fp16", "bf16") and dtype in ("float32", "float64"):
        return 2 * values
    if codec == "int8" and dtype in WIDTHS:
        scale_bytes = max(4, WIDTHS[dtype])
        return values + scale_bytes * -(-values // BLOCK_VALUES)
    return nbytes


def exactly(payload: Frame, nbytes: int) -> ByteArray:
    """Return a view of a payload, or raise `ProtocolError` if it does not have this size."""
    size = memoryview(payload).nbytes
    if size != nbytes:
        raise ProtocolError(f"the payload of a piece has {size} bytes, but must have {nbytes}")
    return np.frombuffer(payload, np.uint8)
