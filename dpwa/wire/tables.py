"""Messages of tables: numbered streams between members, and answers to reads.

All messages have the view of the sender. A receiver in a different view only answers that its view
differs. In each view, the messages of a stream are numbered from 1. They are processed in that
order, each once.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dpwa.wire import limits
from dpwa.wire.collecting import ViewId
from dpwa.wire.fields import BaseMessage, Count, Incarnation, Name, Reason

TableNumber = Annotated[int, Field(ge=0, lt=limits.MAX_TABLES)]
ShardNumber = Annotated[int, Field(ge=0, lt=limits.MAX_MEMBERS)]
ShardCount = Annotated[int, Field(ge=1, le=limits.MAX_MEMBERS)]
Client = Annotated[str, Field(min_length=1, max_length=limits.MAX_CLIENT_CHARACTERS)]


class FromMember(BaseMessage):
    """Base class of messages from one member of a membership view to another."""

    name: Name
    incarnation: Incarnation
    view: ViewId


class TableSeen(FromMember):
    """Acknowledge all messages of the receiver's stream up to `number`.

    `wants`: later messages were dropped, and must be sent again.
    """

    type: Literal["table_seen"] = "table_seen"
    number: Count
    wants: bool


class TableElsewhere(FromMember):
    """Answer that the sender and receiver of a message are in different membership views."""

    type: Literal["table_elsewhere"] = "table_elsewhere"


class Numbered(FromMember):
    """Base class of messages that are numbered within a stream."""

    number: Count


class InPieces(Numbered):
    """A message in pieces. The payload has the bytes from `start` on, of `nbytes` in total."""

    max_payload_bytes: ClassVar[int | None] = limits.MAX_PUSH_BYTES
    start: Count
    nbytes: Count


class TableHoldings(InPieces):
    """Announce the sender's tables and shard copies when a membership view begins."""

    type: Literal["table_holdings"] = "table_holdings"


class TableMade(InPieces):
    """Announce a table that was made in the current membership view. The payload describes it."""

    type: Literal["table_made"] = "table_made"
    table: TableNumber
    shards: ShardCount


class TableReady(Numbered):
    """Announce that the initial values of a table are stored."""

    type: Literal["table_ready"] = "table_ready"
    table: TableNumber


class TableArrived(Numbered):
    """The sender has reached a barrier, or has passed it. It repeats this while it waits."""

    type: Literal["table_arrived"] = "table_arrived"
    passed: Count
    is_waiting: bool


class TableAddition(InPieces):
    """Add a delta to rows of a shard. The payload has `rows` ids, and then the delta.

    If `rows` is `None`, the delta is for all rows, and there are no ids. `is_first`: the values are
    replaced, without the updater. `contained`: for a replica, the number of additions that the
    primary has applied, including this one. For the primary, it is 0.
    """

    type: Literal["table_addition"] = "table_addition"
    table: TableNumber
    shard: ShardNumber
    client: Client
    counter: Annotated[int, Field(ge=1, lt=2**63)]
    rows: Count | None
    is_first: bool
    contained: Count


class TableAdded(Numbered):
    """The sender's copy of the shard contains the additions of `client` up to number `counter`.

    If `refused` is not empty, the sender has refused the addition with this number.
    """

    type: Literal["table_added"] = "table_added"
    table: TableNumber
    shard: ShardNumber
    client: Client
    counter: Count
    refused: Reason


class TableState(Numbered):
    """The next piece of the state of a shard, for a new replica."""

    type: Literal["table_state"] = "table_state"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_PUSH_BYTES
    table: TableNumber
    shard: ShardNumber
    part: Annotated[str, Field(max_length=limits.MAX_NAME_CHARACTERS)]


class TableStateTaken(Numbered):
    """A replica has the whole state, or needs the state from the beginning."""

    type: Literal["table_state_taken"] = "table_state_taken"
    table: TableNumber
    shard: ShardNumber
    is_whole: bool


class TableGet(InPieces):
    """Ask for rows of a shard. The payload has `rows` ids. If `rows` is `None`, for all rows."""

    type: Literal["table_get"] = "table_get"
    table: TableNumber
    shard: ShardNumber
    rows: Count | None


class TableGot(BaseMessage):
    """A piece of the answer to a `TableGet`: row bytes from `start` on, of `nbytes` in total.

    `image` names the memory with the values of the shard, for nodes on the same host. 0: none.
    """

    type: Literal["table_got"] = "table_got"
    max_payload_bytes: ClassVar[int | None] = limits.CHUNK_BYTES
    start: Count
    nbytes: Count
    image: Count


class TableRefused(BaseMessage):
    """Refuse a read, because the requested rows are not available."""

    type: Literal["table_refused"] = "table_refused"
    reason: Reason


TableMessage = (
    TableSeen
    | TableElsewhere
    | TableHoldings
    | TableMade
    | TableReady
    | TableArrived
    | TableAddition
    | TableAdded
    | TableState
    | TableStateTaken
    | TableGet
    | TableGot
    | TableRefused
)
