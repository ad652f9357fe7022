"""Messages with which two nodes agree to merge both or neither. See `dpwa.policy.transactions`."""

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
    """Propose a transaction on the sender's snapshot with the version `version`.

    With `exchange`, both nodes merge the snapshot of the other, or neither does. With `share`, the
    serving node also gives half of its push-sum weight.
    """

    type: Literal["propose"] = "propose"
    transaction: Transaction
    name: Name
    terms: Literal["exchange", "share"]
    fingerprint: Fingerprint
    version: Count
    news: News
    budget_ms: Annotated[int, Field(ge=0, le=2**31)]  # after this, the transaction is aborted


class Agreed(BaseMessage):
    """Agree to a transaction. Offer the snapshot `version`, and `units` of push-sum mass."""

    type: Literal["agreed"] = "agreed"
    transaction: Transaction
    version: Count
    clock: TrainingClock
    units: Count
    news: News


class Busy(BaseMessage):
    """Decline a transaction, because the serving node takes part in a different transaction."""

    type: Literal["busy"] = "busy"
    transaction: Transaction


class Prepared(BaseMessage):
    """Report whether the other node's snapshot has arrived, and will be merged after a commit.

    If it has not arrived, or must not be merged, the transaction is aborted.
    """

    type: Literal["prepared"] = "prepared"
    transaction: Transaction
    name: Name
    is_there: bool


class TransactionDecision(BaseMessage):
    """Commit or abort a transaction. The sender repeats this message until it is acknowledged."""

    type: Literal["decision"] = "decision"
    transaction: Transaction
    commit: bool


class DecisionAck(BaseMessage):
    """Acknowledge a decision."""

    type: Literal["decision_ack"] = "decision_ack"
    transaction: Transaction
