"""Messages of collectives: introductions, progress, votes, outcomes, join requests, data pulls.

Only pulls are answered. `dpwa.policy.ballots` has the meaning of the other messages.
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
    """Introduce this incarnation of a node. A `folder` that is not empty names its shared memory.

    `is_mapped`: whether the sender has mapped the memory of the receiver, and reads its boards.
    `None`: the sender knows of no memory of the receiver.
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
    """Announce that this node has entered a collective (phase 0), or is ready (phase 1)."""

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
    """Report a collective's outcome and the next membership view (`members`, `since`, `before`)."""

    type: Literal["outcome"] = "outcome"
    view: ViewId
    number: Count
    holds: bool
    lost: Names
    members: Members
    since: Count
    before: Annotated[bytes, Field(max_length=VIEW_ID_BYTES)]


class Evicted(_OfGroup):
    """Report that the receiver is not in the sender's view, which has `size` members.

    `ended`: the number of collectives before the sender's current or next one. `waits`: the sender
    waits in a different call, and enters no collective until then. `view` and `number` are those of
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
    """Ask to be admitted to a view. If `size` is not 0, the sender has a view of its own.

    `size`, `ended` and `first` are as in `Evicted`.
    """

    type: Literal["ask_to_join_view"] = "ask_to_join_view"
    size: Count
    ended: Count
    first: OptionalName


class Pull(_OfGroup):
    """Ask for the bytes from `start` to `stop` of a value in a collective.

    Area 0 is the receiver's own value. Area 1 is its reduced shard, and the pull waits until the
    shard is reduced. The receiver answers with pieces in order.
    """

    type: Literal["pull"] = "pull"
    view: ViewId
    number: Count
    area: Literal[0, 1]
    start: Count
    stop: Count


class PulledPiece(BaseMessage):
    """A piece of the answer to a pull. The payload has the bytes from `start` on."""

    type: Literal["pulled_piece"] = "pulled_piece"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_PULLED_BYTES
    start: Count
