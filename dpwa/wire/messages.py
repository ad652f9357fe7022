"""Messages: a msgpack header with the protocol version, the type and its fields, then raw bytes.

    frame 1   {"v": N, "type": "fetch", "request": 7, ...}      at most MAX_HEADER_BYTES
    frame 2   payload, for the types that carry one             at most MAX_CHUNK_BYTES

Everything that arrives is untrusted. Types, ranges and sizes are checked before use. A message that
breaks the rules raises a `ProtocolError`.
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
    """Ask a peer for all or some pieces of its newest snapshot, if its layout has `fingerprint`.

    `chunk_bytes`, `first` and `count` select pieces of `Layout.pieces`. With `count` 0, all pieces
    from `first` on are sent. `can_map` asks for shared memory instead. If `version` is not 0, only
    this version or a later one is sent. If `merged` is not 0, this version is not sent, because the
    asking node has merged it.
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
    budget_ms: Annotated[int, Field(ge=0, le=2**31)]  # after this, the asking node waits no more


class Credit(BaseMessage):
    """Allow the serving node to send `chunks` more chunks."""

    type: Literal["credit"] = "credit"
    chunks: Annotated[int, Field(ge=1, le=limits.MAX_CREDIT_CHUNKS)]


class Cancel(BaseMessage):
    """Cancel a fetch, because the asking node no longer needs the snapshot."""

    type: Literal["cancel"] = "cancel"


class AskStatus(BaseMessage):
    """Ask a node for its status."""

    type: Literal["ask_status"] = "ask_status"


class AskIdentity(BaseMessage):
    """Ask which node answers at an address. `expects` is the expected node, `name` the asking."""

    type: Literal["ask_identity"] = "ask_identity"
    name: Name
    incarnation: Incarnation
    endpoint: Endpoint
    expects: Name


class Identity(BaseMessage):
    """Identify the sender, and report whether another node has the asking node's name.

    `taken_by` is the endpoint of that node, or empty. `is_certain`: that node is alive.
    """

    type: Literal["identity"] = "identity"
    name: Name
    incarnation: Incarnation
    taken_by: Endpoint | Literal[""]
    is_certain: bool


class Goodbye(BaseMessage):
    """Announce that the sender leaves, so that its peers do not report it as lost. A peer answers.

    `reason` is empty if the node has finished. Otherwise it says why the node has left.
    """

    type: Literal["goodbye"] = "goodbye"
    name: Name
    reason: Reason = ""


class GoAway(BaseMessage):
    """Ask a peer to close its connection if idle, because the sender has too many connections."""

    type: Literal["go_away"] = "go_away"


class Finishing(BaseMessage):
    """Report progress in `finish` (`Ending`) and the newest version. A peer sends its own."""

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
    """Answer that the newest snapshot is in shared memory. The nonce identifies the folder."""

    type: Literal["shared_memory"] = "shared_memory"
    name: Annotated[str, Field(max_length=64)]
    nonce: Nonce


class SnapshotHeader(BaseMessage):
    """Announce a snapshot. Each `Chunk` that follows has one piece of the snapshot.

    `trace` has some parameters from the start of the training.
    """

    type: Literal["snapshot"] = "snapshot"
    version: Annotated[int, Field(ge=1, lt=2**63)]
    clock: TrainingClock
    loss: Annotated[float, Field(gt=float("-inf"))] | None  # NaN fails the comparison
    trace: Annotated[bytes, Field(max_length=TRACE_BYTES)] = b""
    is_finite: bool | None  # `None`: the serving node has not checked
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
    """Send loss reports. A peer answers with its own reports."""

    type: Literal["news"] = "news"
    news: News


class NotReady(BaseMessage):
    """Answer that there is no snapshot, or no newer snapshot than the asking node has merged."""

    type: Literal["not_ready"] = "not_ready"


class OtherModel(BaseMessage):
    """Refuse a fetch: the layouts differ. The payload describes the serving node's tensors."""

    type: Literal["other_model"] = "other_model"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_DETAIL_BYTES


class AskSettings(BaseMessage):
    """Ask a node for its run-wide settings, if their digest is not `digest`."""

    type: Literal["ask_settings"] = "ask_settings"
    digest: Fingerprint


class OtherSettings(BaseMessage):
    """Answer `AskSettings` with the sender's settings. The payload is a msgpack map."""

    type: Literal["other_settings"] = "other_settings"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_DETAIL_BYTES


class Refused(BaseMessage):
    """Refuse a request because of its protocol version, its codec, or its kind of transaction."""

    type: Literal["refused"] = "refused"
    reason: Reason


class Status(BaseMessage):
    """The status of a node. The payload is a msgpack map."""

    type: Literal["status"] = "status"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_DETAIL_BYTES
    is_for_onlookers: ClassVar[bool] = True


Message = BaseMessage

# The modules of other messages. Each is loaded when its first message arrives or is sent.
_MODULE_OF = {kind: feature.messages for feature in FEATURES for kind in feature.types.split()}


def message_types() -> tuple[type[Message], ...]:
    """Load the modules of all messages, and return all message classes, sorted by name."""
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
        raise ProtocolError(f"{message.type!r} has {len(frames) - 1} payloads")
    payload: Frame = b"" if limit is None else frames[1]
    if limit is not None and len(payload) > limit:
        raise ProtocolError(f"the payload of {message.type!r} is too long: {len(payload)} bytes")
    return message, payload


def _decode_header(frame: Frame) -> Message:
    if len(frame) > limits.MAX_HEADER_BYTES:
        raise ProtocolError(f"the header is too long: {len(frame)} bytes")
    header = unpack(frame)
    if not isinstance(header, dict):
        raise ProtocolError("the header is not a msgpack map")
    version = header.pop("v", None)
    if type(version) is not int:  # untrusted, so it must not be printed
        raise VersionError(f"of type {type(version).__name__}", limits.PROTOCOL_VERSION)
    if version != limits.PROTOCOL_VERSION:
        raise VersionError(version, limits.PROTOCOL_VERSION)
    if not isinstance(header.get("type"), str):
        raise ProtocolError("the message has no type")
    kind = MESSAGE_TYPES.get(header["type"]) or _loaded(header["type"])
    try:
        return kind.model_validate(header)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(f"{kind.__name__}.{place}: {first['msg']}") from None


def _loaded(name: str) -> type[Message]:
    """Load the class of a message type. `ImportError` if its module cannot be loaded."""
    if name not in _MODULE_OF:
        raise ProtocolError("the type of the message is unknown")
    importlib.import_module(_MODULE_OF[name])
    return MESSAGE_TYPES[name]


def printable(text: str) -> str:
    """Make untrusted text safe to log and to show: one short line without control characters."""
    shown = text[:DESCRIPTION_CHARACTERS]
    if shown.isprintable():
        return shown
    return "".join(character if character.isprintable() else "?" for character in shown)


def pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value))


def unpack(data: Frame) -> Any:
    """Return the value in untrusted msgpack data. `ProtocolError` if the data are invalid."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the data are not msgpack: {type(error).__name__}") from None


_NEWS: TypeAdapter[News] = TypeAdapter(News, config=ConfigDict(strict=True))


def unpack_news(data: Frame) -> News:
    """Return the loss reports in packed data from shared memory. `ProtocolError` if invalid."""
    try:
        return _NEWS.validate_python(unpack(data))
    except ValidationError:
        raise ProtocolError("the data are not loss reports") from None


def pack_layout(layout: Layout) -> bytes:
    """Return the payload of `OtherModel`: the tensor count, and as many descriptions as fit."""
    ends = itertools.accumulate(len(pack(description)) for description in layout.descriptions)
    fitting = sum(end <= limits.MAX_DETAIL_BYTES - _DETAIL_SLACK_BYTES for end in ends)
    return pack([len(layout.descriptions), layout.descriptions[:fitting]])


def unpack_layout(payload: Frame) -> tuple[int, list[str]]:
    """Return the number of tensors and the first descriptions in the payload of `OtherModel`."""
    match unpack(payload):
        case [int(count), list(descriptions)] if all(isinstance(d, str) for d in descriptions):
            return max(count, len(descriptions)), [printable(d) for d in descriptions]
        case _:
            raise ProtocolError("the data do not describe a layout")
