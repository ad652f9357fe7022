"""Membership messages: nodes send them to join a run and to exchange news about members.

    new node                         member
    JoinRequest     ---------->      connects to the endpoint in the request, and asks who is there
    Here            <----------      WhoIs
    Welcome         <----------      or TurnedAway, with the reason
    Roster          <--------->      from now on, with each node's entries about all others

    member                           helper
    ProbeRequest    ---------->      asks a third member that does not answer the first one
    ProbeAnswer     <----------      if the third member answers

`dpwa.policy.members.view` has the meaning of the entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

import msgpack
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dpwa.errors import ProtocolError
from dpwa.policy.members.states import HIGHEST, MemberEntry, MemberStatus
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.fields import BaseMessage, Count, Endpoint, Name, OptionalName, Reason

Refusal = Literal["name", "address", "algorithm", "stranger", "busy", "waiting"]


class WithNews(BaseMessage):
    """A message whose payload has entries about members. See `pack_entries`."""

    max_payload_bytes: ClassVar[int | None] = limits.MAX_ROSTER_BYTES
    name: Name
    incarnation: Count


class Roster(WithNews):
    """Send this node's entries about members. If `asks` is set, the receiver answers alike."""

    type: Literal["roster"] = "roster"
    digest: Annotated[bytes, Field(max_length=limits.MAX_DIGEST_BYTES)]
    asks: bool


class JoinRequest(WithNews):
    """Ask a member to admit the sender, which listens at `endpoint`.

    `expects` is the node that should receive the request, because addresses may change. It may be
    empty.
    """

    type: Literal["join_request"] = "join_request"
    endpoint: Endpoint
    algorithm: Name
    expects: OptionalName


class Welcome(WithNews):
    """Admit a node, because the sender could connect to it."""

    type: Literal["welcome"] = "welcome"


class TurnedAway(BaseMessage):
    """Refuse to admit a node, with a reason."""

    type: Literal["turned_away"] = "turned_away"
    name: Name
    kind: Refusal
    reason: Reason


class WhoIs(BaseMessage):
    """Ask which node is at an address."""

    type: Literal["who_is"] = "who_is"


class Here(BaseMessage):
    """Answer which node is at this address."""

    type: Literal["here"] = "here"
    name: Name
    incarnation: Count


class ProbeRequest(BaseMessage):
    """Ask a third member to probe the node `target`, like `ping-req` in SWIM."""

    type: Literal["probe_request"] = "probe_request"
    target: Name
    incarnation: Count


class ProbeAnswer(BaseMessage):
    """Report that the sender has heard from the target of a `ProbeRequest`."""

    type: Literal["probe_answer"] = "probe_answer"
    target: Name
    incarnation: Count


_Number = Annotated[int, Field(ge=0, le=HIGHEST)]
_Item = Annotated[
    tuple[Name, Endpoint, _Number, _Number, Annotated[int, Field(ge=0, le=max(MemberStatus))]],
    Field(strict=False),
]
_ITEMS: TypeAdapter[tuple[_Item, ...]] = TypeAdapter(
    Annotated[tuple[_Item, ...], Field(strict=False, max_length=limits.MAX_ROSTER_ENTRIES)],
    config=ConfigDict(strict=True),
)


def pack_entries(entries: Iterable[MemberEntry]) -> bytes:
    return bytes(msgpack.packb([(*entry[:4], int(entry.status)) for entry in entries]))


def unpack_entries(payload: Frame) -> tuple[MemberEntry, ...]:
    """Read entries about members. `ProtocolError` if the payload is invalid."""
    try:
        items = _ITEMS.validate_python(msgpack.unpackb(payload, max_ext_len=0))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException, ValidationError):
        raise ProtocolError("the payload does not contain entries about members") from None
    return tuple(MemberEntry(*item[:4], MemberStatus(item[4])) for item in items)
