"""What the RxThread answers of exchanges: proposals, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpwa.algorithms import Terms
from dpwa.clock import Clock, Deadline
from dpwa.data.layout import Layout
from dpwa.node.arrival import FetchRequest
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.peers import PeerTable
from dpwa.node.serving.service import Reply, Service
from dpwa.node.serving.snapshot_service import Introduction
from dpwa.node.transactions.manager import AgreedTerms, Declined, TransactionManager
from dpwa.runtime import Runtime
from dpwa.wire import limits
from dpwa.wire.messages import (
    NotReady,
    OtherAlgorithm,
    OtherModel,
    pack_layout,
)
from dpwa.wire.transaction_messages import (
    Agreed,
    Busy,
    DecisionAck,
    Prepared,
    Propose,
    TransactionDecision,
)


class Collector:
    """Has the snapshots fetched of peers that this node has agreed on an exchange with."""

    def __init__(
        self,
        transactions: TransactionManager,
        peer_table: PeerTable,
        tx: TxThread,
        runtime: Runtime,
    ) -> None:
        self._transactions = transactions
        self._peer_table = peer_table
        self._tx = tx
        self._runtime = runtime

    def known_as(self, message: Propose) -> str:
        """Return the name of a peer in view; all strangers count as one."""
        return message.name if message.name in self._peer_table.names else ""

    def is_welcome(self, message: Propose) -> bool:
        """Tell whether a transaction with this peer makes sense: it is up, and may be merged."""
        can_collect = self._transactions.terms is not Terms.EXCHANGE or self._tx.reaches(
            message.name
        )
        return can_collect and not self._peer_table.is_quarantined(message.name)

    def __call__(self, message: Propose, layout: Layout) -> None:
        budget_s = min(message.budget_ms / 1000, self._transactions.longest_s)
        request = FetchRequest(
            layout,
            Deadline(self._runtime, budget_s),
            self._runtime,
            clock=self._transactions.clock_of(message.transaction),
            is_finite=self._transactions.is_finite,
            only=message.name,
            version=message.version,
            collects=message.transaction,
        )
        self._tx.fetch(request)


@dataclass(frozen=True)
class _Early:
    """A proposal that came while the newest snapshot was still being copied."""

    message: Propose
    layout: Layout
    reply: Reply
    expires: float


class TransactionService(Service):
    """Answers proposals, and takes note of what becomes of transactions."""

    handles = (Propose, Prepared, TransactionDecision)

    def __init__(
        self,
        introduction: Introduction,
        transactions: TransactionManager,
        # returns the layout of the newest snapshot; `None` before the first
        layout: Callable[[], Layout | None],
        collect: Collector,  # fetches the snapshot of a peer that was agreed with
        # passes on that a peer has all of this node's snapshot
        prepared: Callable[[Prepared], None],
        clock: Clock,
    ) -> None:
        self._own = introduction
        self._transactions = transactions
        self._layout = layout
        self._collect = collect
        self._prepared = prepared
        self._clock = clock
        self._early: dict[bytes, _Early] = {}

    def handle(
        self,
        sender: bytes,  # noqa: ARG002
        message: Propose | Prepared | TransactionDecision,
        reply: Reply,
    ) -> None:
        match message:
            case Propose():
                self._answer(message, reply)
            case Prepared():
                self._prepared(message)
            case TransactionDecision():
                self._transactions.decided(message.transaction, commit=message.commit)
                reply(DecisionAck(request=message.request, transaction=message.transaction))

    def tick(self, now: float) -> bool:
        """End what has run out of time; look again at proposals that came too early."""
        self._transactions.expire()
        for transaction, early in list(self._early.items()):
            del self._early[transaction]
            if early.expires > now:
                self._consider(early.message, early.layout, early.reply, early.expires)
        return bool(self._early)

    def _answer(self, message: Propose, reply: Reply) -> None:
        layout = self._layout()
        if (message.algorithm, message.terms) != (
            self._own.algorithm,
            self._transactions.terms.value,
        ):
            reply(OtherAlgorithm(request=message.request, algorithm=self._own.algorithm))
        elif layout is None:
            reply(NotReady(request=message.request))
        elif layout.fingerprint != message.fingerprint:
            reply(OtherModel(request=message.request), pack_layout(layout))
        else:
            self._own.met(message.name)
            self._own.hear(message.news)
            budget_s = min(message.budget_ms / 1000, self._transactions.longest_s)
            self._consider(message, layout, reply, self._clock.now() + budget_s)

    def _consider(self, message: Propose, layout: Layout, reply: Reply, expires: float) -> None:
        if not self._collect.is_welcome(message):
            reply(Busy(request=message.request, transaction=message.transaction))
            return
        peer = self._collect.known_as(message)
        found = self._transactions.accept(message.transaction, peer, message.budget_ms / 1000)
        if found is Declined.NOT_YET and len(self._early) < limits.MAX_SESSIONS:
            self._early[message.transaction] = _Early(message, layout, reply, expires)
            return
        if found in (Declined.NOT_READY, Declined.NOT_YET):
            reply(NotReady(request=message.request))
        elif not isinstance(found, AgreedTerms):
            reply(Busy(request=message.request, transaction=message.transaction))
        else:
            if found.is_new and self._transactions.terms is Terms.EXCHANGE:
                self._collect(message, layout)
            news = self._own.news()
            reply(
                Agreed(
                    request=message.request,
                    transaction=message.transaction,
                    version=found.version,
                    clock=found.clock,
                    units=found.units,
                    news=news,
                )
            )
