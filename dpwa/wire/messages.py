"""Messages: a msgpack header with the protocol version, the type and its fields, then raw bytes.

    frame 1   {"v": N, "type": "fetch", "request": 7, ...}      at most MAX_HEADER_BYTES
    frame 2   payload, for the types that carry one             at most MAX_CHUNK_BYTES

Everything that arrives is untrusted. Types, ranges and sizes are checked before use, and a
violation becomes a `ProtocolError`.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgpack
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dpwa.data.layout import DESCRIPTION_CHARACTERS, Layout
from dpwa.errors import ProtocolError, VersionError
from dpwa.features import FEATURES
from dpwa.types import TRACE_BYTES, Frame
from dpwa.wire import limits
from dpwa.wire.fields import (
    MESSAGE_TYPES,
    BaseMessage,
    ChunkBytes,
    Codec,
    Count,
    Endpoint,
    Fingerprint,
    Incarnation,
    Name,
    News,
    Nonce,
    Reason,
    TrainingClock,
    Unsigned,
)


class Fetch(BaseMessage):
    """Ask for the newest snapshot, or some of its pieces, if its layout has this fingerprint.

    `chunk_bytes`, `first` and `count` say which pieces of `Layout.pieces` (`count` 0: all from
    `first` on). `can_map` asks for shared memory instead. `version`, unless it is 0, names the
    snapshot that is wanted: a later one will do, an earlier one is not sent. `merged`, unless it is
    0, is the version that the asking side does not want again.
    """

    type: Literal["fetch"] = "fetch"
    name: Name
    version: Count
    merged: Count
    news: News
    fingerprint: Fingerprint
    can_map: bool
    codec: Codec
    chunk_bytes: ChunkBytes
    first: Count
    count: Count
    credit: Annotated[int, Field(ge=1, le=limits.MAX_CREDIT_CHUNKS)]
    budget_ms: Annotated[int, Field(ge=0, le=2**31)]  # after that, nobody waits for the answer


class Credit(BaseMessage):
    """Allow this many more chunks."""

    type: Literal["credit"] = "credit"
    chunks: Annotated[int, Field(ge=1, le=limits.MAX_CREDIT_CHUNKS)]


class Cancel(BaseMessage):
    """No longer interested in this request."""

    type: Literal["cancel"] = "cancel"


class AskStatus(BaseMessage):
    """Ask a node for its status."""

    type: Literal["ask_status"] = "ask_status"


class AskIdentity(BaseMessage):
    """Ask which node answers, where `expects` should be, and say which node asks."""

    type: Literal["ask_identity"] = "ask_identity"
    name: Name
    incarnation: Incarnation
    endpoint: Endpoint
    expects: Name


class Identity(BaseMessage):
    """Answer which node this is. The asking node may have the name of the node at `taken_by`.

    `taken_by` is empty if the name is not taken. `is_certain`: the node at `taken_by` lives.
    """

    type: Literal["identity"] = "identity"
    name: Name
    incarnation: Incarnation
    taken_by: Endpoint | Literal[""]
    is_certain: bool


class Goodbye(BaseMessage):
    """This node ends on purpose, so no peer reports it as lost. A peer answers with the same.

    The `reason` is empty if the node has finished. Else the node has left for that reason.
    """

    type: Literal["goodbye"] = "goodbye"
    name: Name
    reason: Reason = ""


class GoAway(BaseMessage):
    """Ask a peer to close this connection if it is idle, because this node has too many."""

    type: Literal["go_away"] = "go_away"


class Finishing(BaseMessage):
    """Send the fields of `policy.finishing.Ending`, and the newest version. Answered likewise."""

    type: Literal["finishing"] = "finishing"
    name: Name
    updates: Count
    version: Count
    round_number: Count
    among: Count
    has_read: Count
    agrees: bool
    values: Annotated[bytes, Field(max_length=limits.MAX_DIGEST_BYTES)]
    is_over: bool


class SharedMemoryName(BaseMessage):
    """The newest snapshot is in shared memory. The nonce proves that it is this folder."""

    type: Literal["shared_memory"] = "shared_memory"
    name: Annotated[str, Field(max_length=64)]
    nonce: Nonce


class SnapshotHeader(BaseMessage):
    """Pieces of a snapshot follow, one in each chunk.

    `trace` is of the parameters with which the training began.
    """

    type: Literal["snapshot"] = "snapshot"
    version: Annotated[int, Field(ge=1, lt=2**63)]
    clock: TrainingClock
    loss: Annotated[float, Field(gt=float("-inf"))] | None  # NaN fails the comparison
    trace: Annotated[bytes, Field(max_length=TRACE_BYTES)] = b""
    is_finite: bool | None  # None: the serving node has not checked
    nbytes: Annotated[int, Field(ge=0, lt=2**63)]
    codec: Codec
    news: News


class Chunk(BaseMessage):
    """The next piece of a snapshot, encoded in the payload."""

    type: Literal["chunk"] = "chunk"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_CHUNK_BYTES
    index: Count
    checksum: Unsigned  # of the payload


class NewsMessage(BaseMessage):
    """Pass on loss reports. Answered with the other side's reports."""

    type: Literal["news"] = "news"
    news: News


class NotReady(BaseMessage):
    """Nothing was published yet, or nothing since the version that the asking side has merged."""

    type: Literal["not_ready"] = "not_ready"


class OtherModel(BaseMessage):
    """Refused, because the layouts differ. The payload describes the serving node's tensors."""

    type: Literal["other_model"] = "other_model"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_DETAIL_BYTES


class AskSettings(BaseMessage):
    """Ask for the settings that must be equal on all nodes, if their digest differs."""

    type: Literal["ask_settings"] = "ask_settings"
    digest: Fingerprint


class OtherSettings(BaseMessage):
    """Differs in settings from the node that asks. The payload is a msgpack map of texts."""

    type: Literal["other_settings"] = "other_settings"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_DETAIL_BYTES


class Refused(BaseMessage):
    """The request cannot be served, because of the protocol version, the codec, or the terms."""

    type: Literal["refused"] = "refused"
    reason: Reason


class Status(BaseMessage):
    """The status of a node. The payload is a msgpack map."""

    type: Literal["status"] = "status"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_DETAIL_BYTES
    is_for_onlookers: ClassVar[bool] = True


Message = BaseMessage

# The modules of other messages, which are loaded when the first of them comes or is sent.
_MODULE_OF = {kind: feature.messages for feature in FEATURES for kind in feature.types.split()}


def message_types() -> tuple[type[Message], ...]:
    """Load the modules of all messages, and return the classes, by name."""
    for module in _MODULE_OF.values():
        importlib.import_module(module)
    return tuple(MESSAGE_TYPES[name] for name in sorted(MESSAGE_TYPES))


_DETAIL_SLACK_BYTES = 64


def encode(message: Message) -> bytes:
    header = {"v": limits.PROTOCOL_VERSION, **message.model_dump()}
    return bytes(msgpack.packb(header))


def decode(frames: Sequence[Frame]) -> tuple[Message, Frame]:
    """Check the frames of a message. Return it with its payload, or raise `ProtocolError`."""
    if not 1 <= len(frames) <= limits.MAX_FRAMES:
        raise ProtocolError(f"a message has 1 or {limits.MAX_FRAMES} frames, not {len(frames)}")
    message = _decode_header(frames[0])
    limit = message.max_payload_bytes
    if len(frames) != 1 + (limit is not None):
        raise ProtocolError(f"{message.type!r} came with {len(frames) - 1} payloads")
    payload: Frame = b"" if limit is None else frames[1]
    if limit is not None and len(payload) > limit:
        raise ProtocolError(f"{message.type!r} came with {len(payload)} bytes")
    return message, payload


def _decode_header(frame: Frame) -> Message:
    if len(frame) > limits.MAX_HEADER_BYTES:
        raise ProtocolError(f"a header of {len(frame)} bytes")
    header = unpack(frame)
    if not isinstance(header, dict):
        raise ProtocolError("a header that is not a map")
    version = header.pop("v", None)
    if type(version) is not int:  # whatever it is, it must not even be printed
        raise VersionError(f"of type {type(version).__name__}", limits.PROTOCOL_VERSION)
    if version != limits.PROTOCOL_VERSION:
        raise VersionError(version, limits.PROTOCOL_VERSION)
    if not isinstance(header.get("type"), str):
        raise ProtocolError("a message without a type")
    kind = MESSAGE_TYPES.get(header["type"]) or _loaded(header["type"])
    try:
        return kind.model_validate(header)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(f"{kind.__name__}.{place}: {first['msg']}") from None


def _loaded(name: str) -> type[Message]:
    """Load the class of a type of message. `ImportError` if its module cannot be loaded."""
    if name not in _MODULE_OF:
        raise ProtocolError("a message of an unknown type")
    importlib.import_module(_MODULE_OF[name])
    return MESSAGE_TYPES[name]


def printable(text: str) -> str:
    """Make untrusted text safe to log and to show, as one short line without control characters."""
    shown = text[:DESCRIPTION_CHARACTERS]
    if shown.isprintable():
        return shown
    return "".join(character if character.isprintable() else "?" for character in shown)


def pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value))


def unpack(data: Frame) -> Any:
    """Unpack untrusted msgpack to parts no larger than the data, or raise `ProtocolError`."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not msgpack: {type(error).__name__}") from None


_NEWS: TypeAdapter[News] = TypeAdapter(News, config=ConfigDict(strict=True))


def unpack_news(data: Frame) -> News:
    """Read loss reports that were packed for a board. `ProtocolError` if they are invalid."""
    try:
        return _NEWS.validate_python(unpack(data))
    except ValidationError:
        raise ProtocolError("not news") from None


def pack_layout(layout: Layout) -> bytes:
    """Pack the payload of `OtherModel`: the number of descriptions and as many as fit."""
    ends = itertools.accumulate(len(pack(description)) for description in layout.descriptions)
    fitting = sum(end <= limits.MAX_DETAIL_BYTES - _DETAIL_SLACK_BYTES for end in ends)
    return pack([len(layout.descriptions), layout.descriptions[:fitting]])


def unpack_layout(payload: Frame) -> tuple[int, list[str]]:
    """Read the payload of `OtherModel`: the number of descriptions and the first of them."""
    match unpack(payload):
        case [int(count), list(descriptions)] if all(isinstance(d, str) for d in descriptions):
            return max(count, len(descriptions)), [printable(d) for d in descriptions]
        case _:
            raise ProtocolError("not the description of a layout")
