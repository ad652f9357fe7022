"""The answers of the RxThread about exchanges: proposals, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpwa.algorithms import Terms
from dpwa.clock import Deadline
from dpwa.data.layout import Layout
from dpwa.lifecycle import Closeable
from dpwa.node.context import NodeContext
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.serving.service import Listener, Reply, Service
from dpwa.node.transactions.fetches import Collection, TransactionFetcher
from dpwa.node.transactions.manager import AgreedTerms, Declined, TransactionManager
from dpwa.node.transactions.rounds import TransactionRounds
from dpwa.policy.transactions import RESEND_S
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.messages import (
    NotReady,
    OtherModel,
    Refused,
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

if TYPE_CHECKING:
    from dpwa.node.node import Node


@dataclass(frozen=True)
class _Early:
    """A proposal that arrived while the newest snapshot was still being copied."""

    message: Propose
    layout: Layout
    reply: Reply
    expires: float


class TransactionService(Service):
    """Answers proposals, and notes the outcomes of transactions."""

    handles = (Propose, Prepared, TransactionDecision)

    def __init__(
        self,
        context: NodeContext,
        manager: TransactionManager,
        tx: TxThread,
        fetcher: TransactionFetcher,
    ) -> None:
        self._context = context
        self._tx, self._fetcher = tx, fetcher
        self._transactions, self._runtime = manager, context.runtime
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
                self._tx.call_soon(self._fetcher.partner_prepared, message)
            case TransactionDecision():
                self._transactions.decided(message.transaction, commit=message.commit)
                reply(DecisionAck(request=message.request, transaction=message.transaction))

    def tick(self, now: float) -> bool:
        """End transactions whose time is over, and check again proposals that came too early."""
        self._transactions.expire()
        for transaction, early in list(self._early.items()):
            del self._early[transaction]
            if early.expires > now:
                self._consider(early.message, early.layout, early.reply, early.expires)
        return bool(self._early)

    def _answer(self, message: Propose, reply: Reply) -> None:
        layout, terms = self._context.pool.layout(), self._transactions.terms.value
        if message.terms != terms:
            reply(Refused(request=message.request, reason=f"its algorithm uses {terms} terms"))
        elif layout is None:
            reply(NotReady(request=message.request))
        elif layout.fingerprint != message.fingerprint:
            reply(OtherModel(request=message.request), pack_layout(layout))
        else:
            self._context.peer_table.spoke(message.name)
            self._context.receive_news(message.news)
            budget_s = min(message.budget_ms / 1000, self._transactions.longest_s)
            self._consider(message, layout, reply, self._runtime.now() + budget_s)

    def _is_welcome(self, peer: str) -> bool:
        """Return whether a peer is reachable and mergeable, so that a transaction can succeed."""
        can_collect = self._transactions.terms is not Terms.EXCHANGE or self._tx.reaches(peer)
        return can_collect and not self._context.peer_table.is_left_alone(peer)

    def _consider(self, message: Propose, layout: Layout, reply: Reply, expires: float) -> None:
        if not self._is_welcome(message.name):
            reply(Busy(request=message.request, transaction=message.transaction))
            return
        # All strangers count as one.
        peer = message.name if self._context.peer_table.knows(message.name) else ""
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
            reply(
                Agreed(
                    request=message.request,
                    transaction=message.transaction,
                    version=found.version,
                    clock=found.clock,
                    units=found.units,
                    news=self._context.select_news(),
                )
            )

    def _collect(self, message: Propose, layout: Layout) -> None:
        """Start to fetch the snapshot of a peer whose exchange this node has accepted."""
        budget_s = min(message.budget_ms / 1000, self._transactions.longest_s)
        request = Collection(
            layout,
            Deadline(self._runtime, budget_s),
            self._runtime,
            clock=self._transactions.clock_of(message.transaction),
            is_finite=self._transactions.is_finite,
            only=message.name,
            version=message.version,
            transaction=message.transaction,
        )
        self._tx.fetch(request)


class TransactionListener(Listener):
    """Sends decisions until the peers have acknowledged them."""

    handles = (DecisionAck,)

    def __init__(self, manager: TransactionManager, fetcher: TransactionFetcher) -> None:
        self._transactions, self._fetcher = manager, fetcher

    def tick(self, now: float) -> float:  # noqa: ARG002
        self._fetcher.deliver()
        return RESEND_S

    def ended(self) -> None:
        self._fetcher.deliver()

    def receive(self, peer: str, message: DecisionAck, payload: Frame) -> None:  # noqa: ARG002
        self._transactions.noted(message.transaction)


def add_transactions(
    context: NodeContext,
    manager: TransactionManager,
    tx: TxThread,
    check_open: Callable[[], None],
) -> tuple[TransactionRounds, TransactionService]:
    """Add transactions to the TxThread of a node. Return the rounds and the transaction service."""
    fetcher = TransactionFetcher(tx.fetcher.connections, context, tx.fetcher.rng, manager)
    tx.fetcher = fetcher
    tx.attach(TransactionListener(manager, fetcher))
    rounds = TransactionRounds(context, tx, check_open, manager)
    return rounds, TransactionService(context, manager, tx, fetcher)


class NoTransactions(Closeable, Service):
    """Refuses proposals, because the algorithm of this node has no transactions."""

    handles = (Propose,)

    def __init__(self, node: Node) -> None:
        node.rx.register(self)

    def close(self) -> None:
        """Do nothing, because this service holds no resources."""

    def handle(self, sender: bytes, message: Propose, reply: Reply) -> None:  # noqa: ARG002
        reply(
            Refused(request=message.request, reason=f"its algorithm uses {Terms.PULL.value} terms")
        )
