"""ProposeSession proposes a transaction to a peer, and reads the peer's answer, without sockets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpwa.data.layout import Layout
from dpwa.policy.health import Outcome
from dpwa.types import Frame
from dpwa.wire.fetching import Ended, Greeting, refused
from dpwa.wire.messages import Message
from dpwa.wire.transaction_messages import Agreed, Busy, Propose

TransactionTerms = Literal["exchange", "share"]


@dataclass(frozen=True)
class ProposeSession:
    """One proposal, from its message to the answer."""

    request: int
    transaction: bytes  # random bytes that identify the transaction
    terms: TransactionTerms  # see `Propose`
    version: int  # of this node's snapshot
    layout: Layout  # of the snapshots of both nodes
    greeting: Greeting  # describes the asking node

    def request_message(self, budget_ms: int) -> Propose:
        return Propose(
            request=self.request,
            transaction=self.transaction,
            name=self.greeting.name,
            terms=self.terms,
            fingerprint=self.layout.fingerprint,
            version=self.version,
            news=self.greeting.news,
            budget_ms=budget_ms,
        )

    def receive(self, message: Message, payload: Frame) -> Agreed | Ended:
        """Accept the answer. `ProtocolError` if the message is no answer to the proposal."""
        if isinstance(message, Agreed) and message.transaction == self.transaction:
            return message
        if isinstance(message, Busy):
            return Ended(Outcome.BUSY)
        return refused(message, payload, self.layout)
