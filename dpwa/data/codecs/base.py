"""Codec, the interface of all codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dpwa.types import Frame

if TYPE_CHECKING:  # because `codec_names()` must not import numpy
    from dpwa.data.segments import ByteArray


class Codec(ABC):
    """Makes the pieces of a snapshot smaller for the network, and restores the pieces.

    A piece consists of the bytes of values of one dtype, and is never empty. A dtype has the same
    name as in a `Layout`, such as "float32", "bfloat16" or "bytes". The sender and the receiver
    know the size and the dtype of a piece before the payload arrives.

    Threads: `encode` may keep buffers in the codec, so only one thread may call `encode`. `decode`
    keeps no data, so several threads may call `decode`, each with its own buffer.

    Attributes:
        name: the name of the codec in configurations.
    """

    name: str

    @abstractmethod
    def encode(self, piece: ByteArray, dtype: str) -> ByteArray:
        """Return the payload for one piece.

        The payload is `piece` itself, or separate memory. Separate memory does not change while an
        object refers to it, so the caller can send the payload without a copy.

        Args:
            piece: the bytes of the values, shape `(nbytes,)`. `encode` does not change them.
            dtype: the dtype of the values.
        """

    @abstractmethod
    def decode(self, payload: Frame, dtype: str, room: ByteArray) -> ByteArray:
        """Decode a payload, and return the piece: `room` itself, or a view of `payload`.

        The caller may read the piece until `payload` or `room` changes, and may not write to it.
        `decode` allocates no memory for sizes that the payload states.

        Args:
            payload: untrusted bytes, which `decode` checks before use.
            dtype: the dtype of the values.
            room: a writable buffer of the piece's size, shape `(nbytes,)`.

        Raises:
            ProtocolError: the payload does not fit a piece of this size and dtype. `room` is
                unchanged.
        """
