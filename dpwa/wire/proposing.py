"""The asking side of a transaction, up to the agreement: messages in, events out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpwa.data.layout import Layout
from dpwa.types import Frame
from dpwa.wire.fetching import Ended, Greeting, refused
from dpwa.wire.fields import News
from dpwa.wire.messages import Message
from dpwa.wire.transaction_messages import Agreed, Propose

TransactionTerms = Literal["exchange", "share"]


@dataclass(frozen=True)
class Proposal:
    transaction: bytes  # random bytes that name it
    terms: TransactionTerms  # see `Propose`
    version: int  # of this node's snapshot
    layout: Layout  # of the snapshots of both
    greeting: Greeting  # who asks


@dataclass(frozen=True)
class ProposalAgreed:
    """The peer agrees: its snapshot of this version (and clock), and so much
    mass, may be fetched.
    """

    version: int
    clock: float
    units: int
    news: News


class ProposeSession:
    """One proposal, from the first message to the answer."""

    def __init__(self, request: int, proposal: Proposal) -> None:
        self.request = request
        self.proposal = proposal

    def request_message(self, budget_ms: int) -> Propose:
        proposal = self.proposal
        return Propose(
            request=self.request,
            transaction=proposal.transaction,
            name=proposal.greeting.name,
            algorithm=proposal.greeting.algorithm,
            terms=proposal.terms,
            fingerprint=proposal.layout.fingerprint,
            version=proposal.version,
            news=proposal.greeting.news,
            budget_ms=budget_ms,
        )

    def receive(self, message: Message, payload: Frame) -> ProposalAgreed | Ended:
        """Take the answer; `ProtocolError`: it is none."""
        if isinstance(message, Agreed) and message.transaction == self.proposal.transaction:
            return ProposalAgreed(message.version, message.clock, message.units, message.news)
        return refused(message, payload, self.proposal.layout, self.proposal.greeting)
