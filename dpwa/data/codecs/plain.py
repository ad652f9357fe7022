"""The codec `none`: pieces as they are."""

from __future__ import annotations

from dpwa.data.codecs.base import Codec
from dpwa.data.codecs.payloads import exactly
from dpwa.data.segments import ByteArray
from dpwa.types import Frame


class Plain(Codec):
    """Changes nothing and copies nothing: payload and piece are the same bytes, of any dtype."""

    def encode(self, piece: ByteArray, dtype: str) -> ByteArray:  # noqa: ARG002
        return piece

    def decode(self, payload: Frame, dtype: str, room: ByteArray) -> ByteArray:  # noqa: ARG002
        """Return a view of the payload; `room` only says how large it must be."""
        return exactly(payload, room.nbytes)
