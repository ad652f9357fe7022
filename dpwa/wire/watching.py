"""Messages for watching a run: the records of a node about itself and other nodes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dpwa.wire import limits
from dpwa.wire.fields import BaseMessage, Count, OptionalName


class AskHistory(BaseMessage):
    """Ask a node for samples after time `since`, oldest first, and events after `events_after`.

    `since` is in seconds since the epoch, by the clock of the node that is asked. If `of` is not
    empty, it names a different node. The asked node then sends its samples of that node.
    """

    type: Literal["ask_history"] = "ask_history"
    since: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    events_after: Count
    of: OptionalName


class HistoryMessage(BaseMessage):
    """Answer `AskHistory` with samples and events. The payload is a msgpack map."""

    type: Literal["history"] = "history"
    max_payload_bytes: ClassVar[int | None] = limits.MAX_HISTORY_BYTES
    is_for_onlookers: ClassVar[bool] = True


# The fields of the node itself, and the fields of its peers and its members, in this order.
IDENTITY = ("name", "endpoint", "host", "pid", "algorithm", "topology", "group")
PEER_ENTRY = (
    "name",
    "endpoint",
    "health",
    "quarantined",
    "score",
    "merges",
    "merged_s",
    "staleness",
    "bytes_received",
    "bytes_sent",
    "latency_ms",
    "bandwidth_mbps",
    "heard_s",
    "bytes_mapped",
    "rounds",
)
MEMBER_ENTRY = ("name", "endpoint", "status")
