"""The answers of the RxThread apart from fetches: news, goodbyes, and a status report."""

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
        """Answer with this node's news."""
        self._context.receive_news(message.news)
        reply(NewsMessage(request=message.request, news=self._context.select_news()))


class GoodbyeService(Service):
    """Notes peers that end on purpose, and answers, because they wait for the answer."""

    handles = (Goodbye,)

    def __init__(self, own: str, note: Callable[[str, str], None]) -> None:
        self._own = own
        self._note = note

    def handle(self, sender: bytes, message: Goodbye, reply: Reply) -> None:  # noqa: ARG002
        """Anybody may say it, so little changes while that peer is connected."""
        self._note(message.name, message.reason)
        reply(Goodbye(request=message.request, name=self._own))


class StatusService(Service):
    """Answers with the result of `condition`, or with a recent one."""

    FRESH_S = 0.05  # whoever asks more often costs less

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
