"""Messages: a msgpack header with the protocol version, the type and its fields, then raw bytes.

    frame 1   {"v": 1, "type": "fetch", "request": 7, ...}      at most MAX_HEADER_BYTES
    frame 2   payload, for the types that carry one             at most MAX_PAYLOAD_BYTES

Everything that arrives is foreign: types, ranges and sizes are checked before use, and what breaks
a rule becomes a `ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgpack
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dpwa.data.layout import FINGERPRINT_BYTES, Layout
from dpwa.errors import ProtocolError, VersionError
from dpwa.types import StrictModel
from dpwa.wire import limits

Frame = bytes | bytearray | memoryview
Count = Annotated[int, Field(ge=0, lt=2**63)]
Fingerprint = Annotated[bytes, Field(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]


class _Message(StrictModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    carries_payload: ClassVar[bool] = False

    request: Count  # chosen by the asking side; every answer repeats it


class Fetch(_Message):
    """Ask for the newest snapshot, if its layout has this fingerprint."""

    type: Literal["fetch"] = "fetch"
    fingerprint: Fingerprint
    credit: Annotated[int, Field(ge=1, le=limits.MAX_CREDIT_CHUNKS)]
    budget_ms: Annotated[int, Field(ge=0, le=2**31)]  # after that, nobody waits for the answer


class Credit(_Message):
    """Allow this many more chunks."""

    type: Literal["credit"] = "credit"
    chunks: Annotated[int, Field(ge=1, le=limits.MAX_CREDIT_CHUNKS)]


class Cancel(_Message):
    """No longer interested in this request."""

    type: Literal["cancel"] = "cancel"


class AskStatus(_Message):
    """Ask a node how it is."""

    type: Literal["ask_status"] = "ask_status"


class SnapshotHeader(_Message):
    """A snapshot follows, in chunks."""

    type: Literal["snapshot"] = "snapshot"
    version: Annotated[int, Field(ge=1, lt=2**63)]
    clock: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    loss: Annotated[float, Field(gt=float("-inf"))] | None  # NaN fails the comparison
    nbytes: Annotated[int, Field(ge=0, lt=2**63)]
    chunk_bytes: Annotated[int, Field(ge=1, le=limits.MAX_PAYLOAD_BYTES)]


class Chunk(_Message):
    """The next bytes of a snapshot; the payload has them."""

    type: Literal["chunk"] = "chunk"
    carries_payload: ClassVar[bool] = True
    index: Count


class NotReady(_Message):
    """Nothing was published yet."""

    type: Literal["not_ready"] = "not_ready"


class OtherModel(_Message):
    """Refused: the layouts differ; the payload has the serving node's."""

    type: Literal["other_model"] = "other_model"
    carries_payload: ClassVar[bool] = True


class Refused(_Message):
    """The answer to a request of another protocol version; its own version is what matters."""

    type: Literal["refused"] = "refused"
    reason: Annotated[str, Field(max_length=200)]


class Status(_Message):
    """How a node is; the payload is a msgpack map."""

    type: Literal["status"] = "status"
    carries_payload: ClassVar[bool] = True


Message = (
    Fetch
    | Credit
    | Cancel
    | AskStatus
    | SnapshotHeader
    | Chunk
    | NotReady
    | OtherModel
    | Refused
    | Status
)
_ANY_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def encode(message: Message) -> bytes:
    """Return the header frame of a message."""
    header = {"v": limits.PROTOCOL_VERSION, **message.model_dump()}
    return bytes(msgpack.packb(header))


def decode(frames: Sequence[Frame]) -> tuple[Message, Frame]:
    """Check the frames of one message; return it with its payload (empty when it carries none).

    Raises:
        VersionError: the header is of another protocol version.
        ProtocolError: anything else that the protocol does not allow.
    """
    if not 1 <= len(frames) <= limits.MAX_FRAMES:
        raise ProtocolError(f"a message has 1 or {limits.MAX_FRAMES} frames, not {len(frames)}")
    message = _decode_header(frames[0])
    if len(frames) != 1 + message.carries_payload:
        raise ProtocolError(f"{message.type!r} came with {len(frames) - 1} payloads")
    payload: Frame = frames[1] if message.carries_payload else b""
    if len(payload) > limits.MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"a payload of {len(payload)} bytes")
    return message, payload


def _decode_header(frame: Frame) -> Message:
    if len(frame) > limits.MAX_HEADER_BYTES:
        raise ProtocolError(f"a header of {len(frame)} bytes")
    header = unpack(frame)
    if not isinstance(header, dict):
        raise ProtocolError("a header that is not a map")
    version = header.pop("v", None)
    if version != limits.PROTOCOL_VERSION or isinstance(version, bool):
        raise VersionError(version, limits.PROTOCOL_VERSION)
    try:
        return _ANY_MESSAGE.validate_python(header)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(f"{place}: {first['msg']}") from None


def pack(value: Any) -> bytes:
    """Pack plain data for a payload."""
    return bytes(msgpack.packb(value))


def unpack(data: Frame) -> Any:
    """Unpack foreign msgpack; its parts cannot be larger than the data itself.

    Raises:
        ProtocolError: not one well-formed value, or one nested too deeply.
    """
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not msgpack: {type(error).__name__}") from None


def unpack_layout(payload: Frame) -> Layout:
    """Read the layout in the payload of `OtherModel`.

    Raises:
        ProtocolError: it is none.
    """
    rows = unpack(payload)
    try:
        return Layout.from_rows(rows)
    except (ValueError, TypeError) as error:
        raise ProtocolError(str(error)) from None
