"""What every codec does, without any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dpwa.types import Frame

if TYPE_CHECKING:  # `codec_names()` is asked for where numpy is not needed
    from dpwa.data.segments import ByteArray


class Codec(ABC):
    """Makes the pieces of a snapshot smaller for the wire, and makes pieces of them again.

    A piece is the bytes of values of one dtype, named as in a `Layout` ("float32", "bfloat16",
    "bytes"), not empty; both ends know its size and dtype before the payload comes.

    Threads: `encode` may keep scratch memory in the object, so one thread encodes; `decode` keeps
    nothing, so any number of threads decode, each into a room of its own.

    Attributes:
        name: the name it was made under.
    """

    name: str

    @abstractmethod
    def encode(self, piece: ByteArray, dtype: str) -> ByteArray:
        """Return the payload for one piece.

        The payload is `piece` itself or memory of its own, which stays as it is for as long as
        anybody refers to it: it can be sent without a copy.

        Args:
            piece: the values, shape `(nbytes,)`; only read.
            dtype: of the values.
        """

    @abstractmethod
    def decode(self, payload: Frame, dtype: str, room: ByteArray) -> ByteArray:
        """Return the piece that a payload stands for, as many bytes as `room` has.

        The result is a view of `payload`, or it is `room`: only read it, and only as long as
        neither of them changes. Nothing is allocated by what the payload says.

        Args:
            payload: foreign bytes, checked before they are used.
            dtype: of the values.
            room: memory to decode into, writable, shape `(nbytes,)`.

        Raises:
            ProtocolError: the payload is none of a piece of this size and dtype; `room` is as it
                was.
        """
