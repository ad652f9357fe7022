"""Payloads seen as arrays."""

from __future__ import annotations

import numpy as np

from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError
from dpwa.types import Frame


def exactly(payload: Frame, nbytes: int) -> ByteArray:
    """Return a view of a payload, or raise `ProtocolError` if it does not have this size."""
    size = memoryview(payload).nbytes
    if size != nbytes:
        raise ProtocolError(f"the payload of a piece has {size} bytes and must have {nbytes}")
    return np.frombuffer(payload, np.uint8)
