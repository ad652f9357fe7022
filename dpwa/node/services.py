"""What the RxThread answers beside fetches: news, deals, goodbyes, and a status report."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpwa.algorithms import Terms
from dpwa.clock import Clock, Deadline
from dpwa.data.layout import Layout
from dpwa.node.deal_desk import Agreement, Answer, DealDesk
from dpwa.node.fetch_order import FetchOrder, Wanted
from dpwa.node.peers import PeerBook
from dpwa.node.rx_thread import Reply, Service
from dpwa.node.snapshot_service import Introduction
from dpwa.node.tx_thread import TxThread
from dpwa.types import JsonObject
from dpwa.wire import limits
from dpwa.wire.messages import (
    Agreed,
    AskStatus,
    Busy,
    Decided,
    Goodbye,
    NewsMessage,
    Noted,
    NotReady,
    OtherAlgorithm,
    OtherModel,
    Prepared,
    Propose,
    Status,
    pack,
    pack_layout,
)


class NewsService(Service):
    """Trades news."""

    handles = (NewsMessage,)

    def __init__(self, introduction: Introduction) -> None:
        self._own = introduction

    def handle(self, sender: bytes, message: NewsMessage, reply: Reply) -> None:  # noqa: ARG002
        """Take in the peer's, and answer with this node's; who runs something else is no leader."""
        if message.algorithm == self._own.algorithm:
            self._own.hear(message.news)
        news = self._own.news()
        reply(NewsMessage(request=message.request, algorithm=self._own.algorithm, news=news))


class Collector:
    """Has the snapshots fetched of peers that this node has agreed on an exchange with."""

    def __init__(self, desk: DealDesk, book: PeerBook, tx: TxThread, clock: Clock) -> None:
        self._desk = desk
        self._book = book
        self._tx = tx
        self._clock = clock

    def known_as(self, message: Propose) -> str:
        """Return the name of a peer in view; all strangers count as one."""
        return message.name if message.name in self._book.names else ""

    def is_welcome(self, message: Propose) -> bool:
        """Tell whether a deal with this peer makes sense: it can be reached, and may be merged."""
        can_collect = self._desk.terms is not Terms.EXCHANGE or self._tx.reaches(message.name)
        return can_collect and not self._book.is_quarantined(message.name)

    def __call__(self, message: Propose, layout: Layout) -> None:
        """Order a fetch."""
        wanted = Wanted(
            layout=layout,
            clock=self._desk.clock_of(message.deal),
            is_finite=self._desk.is_finite,
            only=message.name,
            version=message.version,
        )
        deadline = Deadline(self._clock, min(message.budget_ms / 1000, self._desk.longest_s))
        self._tx.order(FetchOrder(wanted, deadline, collects=message.deal))


@dataclass(frozen=True)
class _Early:
    """A proposal that came while the newest snapshot was still being copied."""

    message: Propose
    layout: Layout
    reply: Reply
    expires: float


class DealService(Service):
    """Answers proposals, and takes note of what becomes of deals.

    Args:
        introduction: of this node.
        desk: where its deals are.
        layout: returns that of its newest snapshot; `None` before the first.
        collect: fetches the snapshot of a peer that was agreed with.
        prepared: passes on that a peer has all of this node's snapshot.
        clock: what time is taken from.
    """

    handles = (Propose, Prepared, Decided)

    def __init__(
        self,
        introduction: Introduction,
        desk: DealDesk,
        layout: Callable[[], Layout | None],
        collect: Collector,
        prepared: Callable[[Prepared], None],
        clock: Clock,
    ) -> None:
        self._own = introduction
        self._desk = desk
        self._layout = layout
        self._collect = collect
        self._prepared = prepared
        self._clock = clock
        self._early: dict[bytes, _Early] = {}

    def handle(self, sender: bytes, message: Propose | Prepared | Decided, reply: Reply) -> None:  # noqa: ARG002
        """Answer one message of a deal."""
        match message:
            case Propose():
                self._answer(message, reply)
            case Prepared():
                self._prepared(message)
            case Decided():
                self._desk.decided(message.deal, commit=message.commit)
                reply(Noted(request=message.request, deal=message.deal))

    def tick(self, now: float) -> bool:
        """End what has run out of time; look again at proposals that came too early."""
        self._desk.expire()
        for deal, early in list(self._early.items()):
            del self._early[deal]
            if early.expires > now:
                self._consider(early.message, early.layout, early.reply, early.expires)
        return bool(self._early)

    def _answer(self, message: Propose, reply: Reply) -> None:
        layout = self._layout()
        if (message.algorithm, message.terms) != (self._own.algorithm, self._desk.terms.value):
            reply(OtherAlgorithm(request=message.request, algorithm=self._own.algorithm))
        elif layout is None:
            reply(NotReady(request=message.request))
        elif layout.fingerprint != message.fingerprint:
            reply(OtherModel(request=message.request), pack_layout(layout))
        else:
            self._own.hear(message.news)
            budget_s = min(message.budget_ms / 1000, self._desk.longest_s)
            self._consider(message, layout, reply, self._clock.now() + budget_s)

    def _consider(self, message: Propose, layout: Layout, reply: Reply, expires: float) -> None:
        if not self._collect.is_welcome(message):
            reply(Busy(request=message.request, deal=message.deal))
            return
        peer = self._collect.known_as(message)
        found = self._desk.accept(message.deal, peer, message.budget_ms / 1000)
        if found is Answer.NOT_YET and len(self._early) < limits.MAX_SESSIONS:
            self._early[message.deal] = _Early(message, layout, reply, expires)
            return
        if found in (Answer.NOT_READY, Answer.NOT_YET):
            reply(NotReady(request=message.request))
        elif not isinstance(found, Agreement):
            reply(Busy(request=message.request, deal=message.deal))
        else:
            if found.is_new and self._desk.terms is Terms.EXCHANGE:
                self._collect(message, layout)
            news = self._own.news()
            reply(
                Agreed(
                    request=message.request,
                    deal=message.deal,
                    version=found.version,
                    clock=found.clock,
                    units=found.units,
                    news=news,
                )
            )


class GoodbyeService(Service):
    """Takes note of peers that end on purpose, and tells them so: they wait for it.

    Args:
        own: the name of this node.
        note: is given the name of the peer.
    """

    handles = (Goodbye,)

    def __init__(self, own: str, note: Callable[[str], None]) -> None:
        self._own = own
        self._note = note

    def handle(self, sender: bytes, message: Goodbye, reply: Reply) -> None:  # noqa: ARG002
        """Pass on the name; anybody may say it, so little changes while that peer is connected."""
        self._note(message.name)
        reply(Goodbye(request=message.request, name=self._own))


class StatusService(Service):
    """Answers with what `report` returns; one that was made a moment ago is sent again.

    Args:
        report: describes the node.
        clock: what time is taken from.
    """

    FRESH_S = 0.05  # whoever asks more often costs less

    handles = (AskStatus,)

    def __init__(self, report: Callable[[], JsonObject], clock: Clock) -> None:
        self._report = report
        self._clock = clock
        self._packed = b""
        self._made = -math.inf

    def handle(self, sender: bytes, message: AskStatus, reply: Reply) -> None:  # noqa: ARG002
        """Send the report."""
        now = self._clock.now()
        if now - self._made >= self.FRESH_S:
            self._packed, self._made = pack(self._report()), now
        reply(Status(request=message.request), self._packed)
