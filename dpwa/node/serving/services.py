"""Services of the RxThread that serve no snapshots: loss reports, goodbyes, and a status report."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpwa.clock import Clock
from dpwa.node.context import NodeContext
from dpwa.node.report import NodeReport
from dpwa.node.serving.service import Reply, Service
from dpwa.wire.messages import (
    AskStatus,
    Goodbye,
    NewsMessage,
    Status,
    pack,
)


class NewsService(Service):
    handles = (NewsMessage,)

    def __init__(self, context: NodeContext) -> None:
        self._context = context

    def handle(self, sender: bytes, message: NewsMessage, reply: Reply) -> None:  # noqa: ARG002
        """Process a peer's loss reports, and answer with loss reports from this node."""
        self._context.receive_news(message.news)
        reply(NewsMessage(request=message.request, news=self._context.select_news()))


class GoodbyeService(Service):
    """Notes the goodbyes of peers that end on purpose. Each peer waits for an answer."""

    handles = (Goodbye,)

    def __init__(self, own: str, note: Callable[[str, str], None]) -> None:
        self._own = own
        self._note = note

    def handle(self, sender: bytes, message: Goodbye, reply: Reply) -> None:  # noqa: ARG002
        """Note a goodbye. It may be forged, so it has little effect on a connected peer."""
        self._note(message.name, message.reason)
        reply(Goodbye(request=message.request, name=self._own))


class StatusService(Service):
    """Answers with the result of `condition`, or with an earlier result younger than `FRESH_S`."""

    FRESH_S = 0.05  # a report is sent again for so long, so that many requests cost little

    handles = (AskStatus,)

    def __init__(self, condition: Callable[[], NodeReport | None], clock: Clock) -> None:
        self._condition = condition
        self._clock = clock
        self._packed = b""
        self._made = -math.inf

    def handle(self, sender: bytes, message: AskStatus, reply: Reply) -> None:  # noqa: ARG002
        now = self._clock.now()
        if now - self._made >= self.FRESH_S:
            report = self._condition()
            self._packed, self._made = pack(report.plain() if report else {}), now
        reply(Status(request=message.request), self._packed)
