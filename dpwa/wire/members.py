"""Messages of membership, with which nodes exchange the members, and join.

    newcomer                         member
    JoinRequest     ---------->      connects to the address in it, and asks who is there
    Here            <----------      WhoIs
    Welcome         <----------      or TurnedAway, with the reason
    Roster          <--------->      from now on, with what each knows of all others

    member                           another member
    ProbeRequest    ---------->      asks a third one, of which the first has not heard for a while
    ProbeAnswer     <----------      if that one answers

`dpwa.policy.members.view` has the meaning of the news.
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
    """A message whose payload has news of members, see `pack_entries`."""

    max_payload_bytes: ClassVar[int | None] = limits.MAX_ROSTER_BYTES
    name: Name
    incarnation: Count


class Roster(WithNews):
    """Send this node's news of members. The receiver answers likewise if it `asks`."""

    type: Literal["roster"] = "roster"
    digest: Annotated[bytes, Field(max_length=limits.MAX_DIGEST_BYTES)]
    asks: bool


class JoinRequest(WithNews):
    """Ask to be admitted, at this endpoint.

    `expects`, unless it is empty, is the node that should be there, as an address may have changed.
    """

    type: Literal["join_request"] = "join_request"
    endpoint: Endpoint
    algorithm: Name
    expects: OptionalName


class Welcome(WithNews):
    """Admit a node, because the sender could connect to it."""

    type: Literal["welcome"] = "welcome"


class TurnedAway(BaseMessage):
    """Do not let a node in."""

    type: Literal["turned_away"] = "turned_away"
    name: Name
    kind: Refusal
    reason: Reason


class WhoIs(BaseMessage):
    """Ask which node is there."""

    type: Literal["who_is"] = "who_is"


class Here(BaseMessage):
    """Answer which node is there."""

    type: Literal["here"] = "here"
    name: Name
    incarnation: Count


class ProbeRequest(BaseMessage):
    """Ask a member to ask a node in this incarnation, like SWIM's `ping-req`."""

    type: Literal["probe_request"] = "probe_request"
    target: Name
    incarnation: Count


class ProbeAnswer(BaseMessage):
    """Say that a node was heard from that was asked for."""

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
    """Read news of members. `ProtocolError` if the payload is invalid."""
    try:
        items = _ITEMS.validate_python(msgpack.unpackb(payload, max_ext_len=0))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException, ValidationError):
        raise ProtocolError("not news of members") from None
    return tuple(MemberEntry(*item[:4], MemberStatus(item[4])) for item in items)
