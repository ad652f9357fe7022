"""Messages of collectives: greetings, posts, votes, outcomes, requests to join, pulls.

All except pulls are sent without an answer. Their meaning is in `dpwa.policy.ballots`.
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
    """Introduce this incarnation of a node, and its shared memory, if any (`folder` not empty).

    `is_mapped`: whether the sender has mapped the memory of the receiver, and reads its boards. It
    is nil as long as the sender does not know of any.
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
    """Report this node's progress in a collective, and the missing members."""

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
    """Report the outcome of a collective, and the members from `since` on, after `before`."""

    type: Literal["outcome"] = "outcome"
    view: ViewId
    number: Count
    holds: bool
    lost: Names
    members: Members
    since: Count
    before: Annotated[bytes, Field(max_length=VIEW_ID_BYTES)]


class Evicted(_OfGroup):
    """The receiver is not in the sender's view, which has `size` members.

    `ended`: the number of collectives before the sender's current or next one. `waits`: the sender
    waits for others elsewhere, and enters no collective before. `view` and `number` repeat those of
    the receiver's collective.
    """

    type: Literal["evicted"] = "evicted"
    view: ViewId
    number: Count
    size: Count
    ended: Count
    first: OptionalName
    waits: bool


class AskToJoinView(_OfGroup):
    """Ask to be admitted or, with a view of its own (`size` not 0), look for the others.

    `size`, `ended` and `first` are as in `Evicted`.
    """

    type: Literal["ask_to_join_view"] = "ask_to_join_view"
    size: Count
    ended: Count
    first: OptionalName


class Pull(_OfGroup):
    """Ask for the bytes from `start` to `stop` in a collective.

    Area 0 is the receiver's value, area 1 its reduced shard, for which the pull waits. Answered
    with pieces in order.
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
