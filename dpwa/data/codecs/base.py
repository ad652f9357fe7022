"""Codec, the interface of all codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dpwa.types import Frame

if TYPE_CHECKING:  # `codec_names()` is asked for where numpy is not needed
    from dpwa.data.segments import ByteArray


class Codec(ABC):
    """Makes the pieces of a snapshot smaller for the wire, and restores the pieces.

    A piece is the bytes of values of one dtype, named as in a `Layout` ("float32", "bfloat16",
    "bytes"), not empty. Both ends know its size and dtype before the payload arrives.

    Threads: `encode` may keep scratch memory in the object, so only one thread encodes. `decode`
    keeps nothing, so any number of threads decode, each into its own buffer.

    Attributes:
        name: the name under which it was made.
    """

    name: str

    @abstractmethod
    def encode(self, piece: ByteArray, dtype: str) -> ByteArray:
        """Return the payload for one piece.

        The payload is `piece` itself or separate memory, which does not change while anything
        refers to it. So it can be sent without a copy.

        Args:
            piece: the values, shape `(nbytes,)`, which are only read.
            dtype: of the values.
        """

    @abstractmethod
    def decode(self, payload: Frame, dtype: str, room: ByteArray) -> ByteArray:
        """Decode a payload to a piece of as many bytes as `room` has, and return it.

        The result is a view of `payload`, or it is `room`. You may only read it, and only until one
        of them changes. No sizes in the payload cause allocations.

        Args:
            payload: untrusted bytes, checked before use.
            dtype: of the values.
            room: memory to decode into, writable, shape `(nbytes,)`.

        Raises:
            ProtocolError: the payload is not of a piece of this size and dtype. `room` is
                unchanged.
        """
