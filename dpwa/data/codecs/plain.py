"""The codec `none`, which leaves pieces unchanged."""

from __future__ import annotations

from dpwa.data.codecs.base import Codec
from dpwa.data.codecs.sizes import exactly
from dpwa.data.segments import ByteArray
from dpwa.types import Frame


class Plain(Codec):
    """A codec that returns pieces of all dtypes unchanged, without a copy."""

    def encode(self, piece: ByteArray, dtype: str) -> ByteArray:  # noqa: ARG002
        return piece

    def decode(self, payload: Frame, dtype: str, room: ByteArray) -> ByteArray:  # noqa: ARG002
        """Return a view of the payload, which must be as large as `room`."""
        return exactly(payload, room.nbytes)
