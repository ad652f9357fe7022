"""What the RxThread answers beside fetches: news, deals, goodbyes, and a status report."""

from __future__ import annotations

from collections.abc import Callable

from dpwa.algorithms import Terms
from dpwa.clock import Clock, Deadline
from dpwa.data.layout import Layout
from dpwa.node.deal_desk import Agreement, Answer, DealDesk
from dpwa.node.fetch_order import FetchOrder, Wanted
from dpwa.node.rx_thread import Reply, Service
from dpwa.node.snapshot_service import Introduction
from dpwa.node.tx_thread import TxThread
from dpwa.types import JsonObject
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
        """Take in the peer's, and answer with this node's."""
        self._own.hear(message.news)
        reply(NewsMessage(request=message.request, news=self._own.news()))


class DealService(Service):
    """Answers proposals, and takes note of what becomes of deals.

    Args:
        introduction: of this node.
        desk: where its deals are.
        layout: returns that of its newest snapshot; `None` before the first.
        collect: fetches the snapshot of a peer that was agreed with; `False` if there is no
            connection to it.
        prepared: passes on that a peer has all of this node's snapshot.
    """

    handles = (Propose, Prepared, Decided)

    def __init__(
        self,
        introduction: Introduction,
        desk: DealDesk,
        layout: Callable[[], Layout | None],
        collect: Callable[[Propose, Layout], bool],
        prepared: Callable[[bytes], None],
    ) -> None:
        self._own = introduction
        self._desk = desk
        self._layout = layout
        self._collect = collect
        self._prepared = prepared

    def handle(self, sender: bytes, message: Propose | Prepared | Decided, reply: Reply) -> None:  # noqa: ARG002
        """Answer one message of a deal."""
        match message:
            case Propose():
                self._own.hear(message.news)
                self._answer(message, reply)
            case Prepared():
                self._prepared(message.deal)
            case Decided():
                self._desk.decided(message.deal, commit=message.commit)
                reply(Noted(request=message.request, deal=message.deal))

    def tick(self, now: float) -> bool:  # noqa: ARG002
        """End what has run out of time."""
        self._desk.expire()
        return False

    def _answer(self, message: Propose, reply: Reply) -> None:
        layout = self._layout()
        if (message.algorithm, message.terms) != (self._own.algorithm, self._desk.terms.value):
            reply(OtherAlgorithm(request=message.request, algorithm=self._own.algorithm))
        elif layout is None:
            reply(NotReady(request=message.request))
        elif layout.fingerprint != message.fingerprint:
            reply(OtherModel(request=message.request), pack_layout(layout))
        else:
            self._consider(message, layout, reply)

    def _consider(self, message: Propose, layout: Layout, reply: Reply) -> None:
        found = self._desk.accept(message.deal, message.name, message.budget_ms / 1000)
        if found is Answer.NOT_READY:
            reply(NotReady(request=message.request))
        elif not isinstance(found, Agreement):
            reply(Busy(request=message.request, deal=message.deal))
        elif not self._follows_up(message, layout, found):
            self._desk.decided(message.deal, commit=False)
            reply(Busy(request=message.request, deal=message.deal))
        else:
            news = self._own.news()
            reply(
                Agreed(
                    request=message.request,
                    deal=message.deal,
                    version=found.version,
                    units=found.units,
                    news=news,
                )
            )

    def _follows_up(self, message: Propose, layout: Layout, found: Agreement) -> bool:
        if self._desk.terms is not Terms.EXCHANGE or not found.is_new:
            return True
        return self._collect(message, layout)


class Collector:
    """Has the snapshots fetched of peers that this node has agreed on an exchange with."""

    def __init__(self, desk: DealDesk, tx: TxThread, clock: Clock) -> None:
        self._desk = desk
        self._tx = tx
        self._clock = clock

    def __call__(self, message: Propose, layout: Layout) -> bool:
        """Order a fetch; return whether there is a connection to make it."""
        if not self._tx.reaches(message.name):
            return False
        wanted = Wanted(
            layout=layout,
            is_finite=self._desk.is_finite,
            only=message.name,
            version=message.version,
        )
        deadline = Deadline(self._clock, min(message.budget_ms / 1000, self._desk.longest_s))
        self._tx.order(FetchOrder(wanted, deadline, collects=message.deal))
        return True


class GoodbyeService(Service):
    """Takes note of peers that end on purpose."""

    handles = (Goodbye,)

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def handle(self, sender: bytes, message: Goodbye, reply: Reply) -> None:  # noqa: ARG002
        """Pass on the name.

        Anybody may say it, as nodes have no keys: a false one is logged, ends the deals with that
        peer that are under way, and makes it no leader until it is heard of again.
        """
        self._note(message.name)


class StatusService(Service):
    """Answers with what `report` returns."""

    handles = (AskStatus,)

    def __init__(self, report: Callable[[], JsonObject]) -> None:
        self._report = report

    def handle(self, sender: bytes, message: AskStatus, reply: Reply) -> None:  # noqa: ARG002
        """Send the report."""
        reply(Status(request=message.request), pack(self._report()))
