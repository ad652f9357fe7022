"""What the RxThread answers: snapshots to peers, and a status report to anybody who asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpwa.clock import Clock
from dpwa.data.layout import Layout
from dpwa.data.snapshot import Lease, SnapshotPool
from dpwa.node.rx_thread import Reply, Service
from dpwa.types import JsonObject
from dpwa.wire import limits
from dpwa.wire.messages import (
    AskStatus,
    Cancel,
    Credit,
    Fetch,
    Goodbye,
    NotReady,
    OtherModel,
    Status,
    pack,
    pack_layout,
)
from dpwa.wire.serving import ServeSession


@dataclass
class _Serving:
    session: ServeSession
    lease: Lease
    reply: Reply
    expires: float
    is_blocked: bool = False  # the socket to this peer is full


class SnapshotService(Service):
    """Serves the newest snapshot to each peer that fetches, one session a peer.

    A session holds a lease; it ends when the last chunk is sent, when the peer cancels or starts
    another fetch, and at the latest when the peer has stopped waiting, so that a peer which is
    stopped or gone never keeps a slot for long.
    """

    handles = (Fetch, Credit, Cancel)

    def __init__(self, pool: SnapshotPool, clock: Clock, longest_session_s: float) -> None:
        self._pool = pool
        self._clock = clock
        self._longest_session_s = longest_session_s
        self._serving: dict[bytes, _Serving] = {}
        self._description: tuple[Layout, bytes] | None = None
        self.served = 0

    def handle(self, sender: bytes, message: Fetch | Credit | Cancel, reply: Reply) -> None:
        """Start, continue or end the session of this peer."""
        if isinstance(message, Fetch):
            self._end(sender)
            self._start(sender, message, reply)
            return
        serving = self._serving.get(sender)
        if serving is None or serving.session.request != message.request:
            return  # of a session that has ended meanwhile
        if isinstance(message, Cancel):
            self._end(sender)
        else:
            serving.session.grant(message.chunks)
            self._continue(sender, serving)

    def tick(self, now: float) -> bool:
        """End the sessions whose peer no longer waits; try again those that were blocked."""
        for sender, serving in list(self._serving.items()):
            if serving.expires <= now:
                self._end(sender)
            elif serving.is_blocked:
                self._continue(sender, serving)
        return any(serving.is_blocked for serving in self._serving.values())

    def _start(self, sender: bytes, fetch: Fetch, reply: Reply) -> None:
        if len(self._serving) >= limits.MAX_SESSIONS:
            self._end(next(iter(self._serving)))  # the oldest: whoever still reads would be done
        lease = self._pool.newest()
        if lease is None:
            reply(NotReady(request=fetch.request), None)
            return
        layout = lease.snapshot.layout
        if layout.fingerprint != fetch.fingerprint:
            lease.release()
            reply(OtherModel(request=fetch.request), self._described(layout))
            return
        session = ServeSession(fetch, lease.snapshot)
        budget_s = min(fetch.budget_ms / 1000, self._longest_session_s)
        serving = _Serving(session, lease, reply, self._clock.now() + budget_s)
        self._serving[sender] = serving
        self._continue(sender, serving)

    def _described(self, layout: Layout) -> bytes:
        """Pack a layout once, not again for every peer that has another one."""
        if self._description is None or self._description[0] is not layout:
            self._description = layout, pack_layout(layout)
        return self._description[1]

    def _continue(self, sender: bytes, serving: _Serving) -> None:
        """Send what the credit allows, as far as the socket takes it."""
        serving.is_blocked = False
        for message, data in serving.session.due():
            if not serving.reply(message, None if data is None else data.data):
                serving.is_blocked = True  # what an earlier fetch left is still on its way
                return
        if serving.session.finished:
            self.served += 1
            self._end(sender)

    def _end(self, sender: bytes) -> None:
        serving = self._serving.pop(sender, None)
        if serving is not None:
            serving.lease.release()


class GoodbyeService(Service):
    """Takes note of peers that end on purpose."""

    handles = (Goodbye,)

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def handle(self, sender: bytes, message: Goodbye, reply: Reply) -> None:  # noqa: ARG002
        """Pass on the name; anybody may say it, as it changes no more than what is logged."""
        self._note(message.name)


class StatusService(Service):
    """Answers with what `report` returns."""

    handles = (AskStatus,)

    def __init__(self, report: Callable[[], JsonObject]) -> None:
        self._report = report

    def handle(self, sender: bytes, message: AskStatus, reply: Reply) -> None:  # noqa: ARG002
        """Send the report."""
        reply(Status(request=message.request), pack(self._report()))
