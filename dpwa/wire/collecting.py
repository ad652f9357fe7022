"""Messages of collectives: greetings, posts, votes, outcomes, requests to join, pulls.

All but pulls go from node to node without an answer; what they mean is in
`dpwa.policy.ballots`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dpwa.policy.group_views import VIEW_ID_BYTES
from dpwa.wire import limits
from dpwa.wire.fields import BaseMessage, Count, Incarnation, Name, Nonce, OptionalName

PastIncarnation = Annotated[bytes, Field(max_length=limits.INCARNATION_BYTES)]
ViewId = Annotated[bytes, Field(min_length=VIEW_ID_BYTES, max_length=VIEW_ID_BYTES)]
Tag = Annotated[str, Field(max_length=limits.MAX_NAME_CHARACTERS)]
Names = Annotated[tuple[Name, ...], Field(strict=False, max_length=limits.MAX_MEMBERS)]
MemberItem = Annotated[tuple[Name, PastIncarnation], Field(strict=False)]
Members = Annotated[tuple[MemberItem, ...], Field(strict=False, max_length=limits.MAX_MEMBERS)]


class Hello(BaseMessage):
    """Introduce this life of a node, and its shared memory, if it has any (`folder` not empty).

    `is_mapped`: whether the sender has mapped the memory of the receiver, and reads its boards; nil
    as long as it does not know of any.
    """

    type: Literal["hello"] = "hello"
    name: Name
    incarnation: Incarnation
    folder: Annotated[str, Field(max_length=64)]
    nonce: Nonce
    is_mapped: bool | None


class _OfGroup(BaseMessage):
    tag: Tag
    name: Name
    incarnation: Incarnation


class Post(_OfGroup):
    """Say that this node has entered a collective (phase 0), or is ready (phase 1)."""

    type: Literal["post"] = "post"
    view: ViewId
    number: Count
    phase: Literal[0, 1]
    record: Annotated[bytes, Field(max_length=limits.MAX_RECORD_BYTES)]


class Vote(_OfGroup):
    """Tell how far this node had come in a collective, and who is missing."""

    type: Literal["vote"] = "vote"
    view: ViewId
    number: Count
    suspects: Names
    entered: bool
    ready: bool
    expired: bool
    seen: Names
    join_requests: Members


class CollectiveOutcome(_OfGroup):
    """Tell what became of a collective, and who takes part from `since` on, after `before`."""

    type: Literal["outcome"] = "outcome"
    view: ViewId
    number: Count
    holds: bool
    lost: Names
    members: Members
    since: Count
    before: Annotated[bytes, Field(max_length=VIEW_ID_BYTES)]


class Evicted(_OfGroup):
    """The receiver is not of the sender's view, which has so many members.

    `ended`: how many collectives have come before the one that the sender calls now, or next.
    `waits`: the sender waits for others in something else, and comes to no collective before.
    `view` and `number` repeat those of the collective that the receiver has spoken of.
    """

    type: Literal["evicted"] = "evicted"
    view: ViewId
    number: Count
    size: Count
    ended: Count
    first: OptionalName
    waits: bool


class AskToJoinView(_OfGroup):
    """Ask to be let in; or, with a view of its own (`size` not 0), look for the others.

    `size`, `ended` and `first` are as in `Evicted`.
    """

    type: Literal["ask_to_join_view"] = "ask_to_join_view"
    size: Count
    ended: Count
    first: OptionalName


class Pull(_OfGroup):
    """Ask for the bytes from `start` to `stop` of the sender's part in a collective.

    Area 0 is what the receiver has brought, area 1 what it has reduced; it waits until that is
    there. Answered with pieces in order.
    """

    type: Literal["pull"] = "pull"
    view: ViewId
    number: Count
    area: Literal[0, 1]
    start: Count
    stop: Count


class PulledPiece(BaseMessage):
    """The bytes of a pull from `start` on."""

    type: Literal["pulled_piece"] = "pulled_piece"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_PULLED_BYTES
    start: Count
