"""Messages by which two nodes agree to merge both or neither. See `dpwa.policy.transactions`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpwa.wire.fields import (
    BaseMessage,
    Count,
    Fingerprint,
    Name,
    News,
    TrainingClock,
    Transaction,
)


class Propose(BaseMessage):
    """Ask for a transaction, on this node's snapshot of this version.

    With `exchange` both ends will merge the other's snapshot, or neither. With `share` the serving
    node gives half of its push-sum mass along with its own.
    """

    type: Literal["propose"] = "propose"
    transaction: Transaction
    name: Name
    terms: Literal["exchange", "share"]
    fingerprint: Fingerprint
    version: Count
    news: News
    budget_ms: Annotated[int, Field(ge=0, le=2**31)]  # after that, the transaction is off


class Agreed(BaseMessage):
    """Agree to a transaction, on the serving node's snapshot of this version, with so much mass."""

    type: Literal["agreed"] = "agreed"
    transaction: Transaction
    version: Count
    clock: TrainingClock
    units: Count
    news: News


class Busy(BaseMessage):
    """Decline a transaction, because the serving node is in a different one."""

    type: Literal["busy"] = "busy"
    transaction: Transaction


class Prepared(BaseMessage):
    """Say whether all of the other's snapshot is there, and will be merged if it decides so.

    If not, it could not be had or must not be merged, and the transaction is off.
    """

    type: Literal["prepared"] = "prepared"
    transaction: Transaction
    name: Name
    is_there: bool


class TransactionDecision(BaseMessage):
    """Send whether a transaction holds. Repeated until it is noted."""

    type: Literal["decision"] = "decision"
    transaction: Transaction
    commit: bool


class DecisionAck(BaseMessage):
    """Acknowledge a decision."""

    type: Literal["decision_ack"] = "decision_ack"
    transaction: Transaction
