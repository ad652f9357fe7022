"""SnapshotService serves this node's snapshots to peers."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache

from dpwa.data.codecs import codec
from dpwa.data.layout import Layout
from dpwa.data.snapshot import Lease
from dpwa.errors import UnknownNameError
from dpwa.node.context import NodeContext, longest_s
from dpwa.node.serving.service import Reply, Service
from dpwa.transport.sockets import Receipt
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.fetching import ServeSession
from dpwa.wire.messages import (
    Cancel,
    Credit,
    Fetch,
    NotReady,
    OtherModel,
    Refused,
    SharedMemoryName,
    pack_layout,
    printable,
)

MAX_ROUNDS_BEHIND = 2  # a node waits for a peer's version only if the peer is no further behind


@dataclass(frozen=True)
class _Request:
    """A request of a peer, and the time until which the peer waits."""

    fetch: Fetch
    reply: Reply
    expires: float


@dataclass
class _Serving:
    request: _Request
    session: ServeSession
    lease: Lease
    is_blocked: bool = False  # the socket to this peer is full, or it is not the peer's turn
    receipts: list[Receipt] = field(default_factory=list)  # of data that ZeroMQ still needs

    def release_snapshot(self) -> None:
        """Release the snapshot after ZeroMQ has sent all data that were lent to it."""
        if self.receipts:
            self.lease.release(once=lambda: all(receipt.done for receipt in self.receipts))
        else:
            self.lease.release()


class SnapshotService(Service):
    """Serves the newest snapshot to each peer that fetches. Each connection has one session.

    A peer that can map shared memory gets the name of the memory. For other peers, a session holds
    a lease and sends the pieces. The session ends when the last chunk is sent, when the peer
    cancels or starts a new fetch, and at the latest when the peer's deadline has passed. So a
    stopped peer never keeps a slot for long.

    Each reader gets one chunk in turn, however many sessions it has. If a peer has more than
    `sessions_per_peer`, its oldest session ends. Without keys, the peer's name is not verified.
    """

    handles = (Fetch, Credit, Cancel)

    def __init__(self, context: NodeContext) -> None:
        config = context.config
        self._context = context
        self._pool, self._clock, self._upload = context.pool, context.runtime, context.upload
        self._longest_session_s = longest_s(config)  # whatever time the peer asks for
        self._codecs = cache(codec)
        self._sessions_per_peer = config.limits.sessions_per_peer  # maximum at once
        self._serving: dict[bytes, _Serving] = {}
        self._waiting: dict[bytes, _Request] = {}  # requests for versions not published yet
        self._description: tuple[Layout, bytes] | None = None
        self.served = 0

    def receive(
        self,
        sender: bytes,
        message: Fetch | Credit | Cancel,
        payload: Frame,  # noqa: ARG002
        reply: Reply,
    ) -> None:
        """Start, continue or end the session of this peer."""
        if isinstance(message, Fetch):
            if self._waiting or self._serving:
                self._end(sender)
                self._keep_to_share(message.name)
            self._answer(sender, self._request(message, reply))
            return
        waiting = self._waiting.get(sender)
        if waiting is not None and waiting.fetch.request == message.request:
            self._end(sender)
            return
        serving = self._serving.get(sender)
        if serving is None or serving.session.request != message.request:
            return  # the message belongs to a session that has ended
        if isinstance(message, Cancel):
            self._end(sender)
        else:
            serving.session.grant(message.chunks)

    def tick(self, now: float) -> bool:
        """End sessions whose peer no longer waits, and continue the other sessions."""
        shared = self._pool.shared  # read once, because the training thread may set it to `None`
        if shared is not None:
            shared.beat(now)
        self._pool.commit()
        for sender, serving in list(self._serving.items()):
            serving.is_blocked = False
            if serving.request.expires <= now:
                self._end(sender)
        for sender, waiting in list(self._waiting.items()):
            del self._waiting[sender]
            if waiting.expires > now:
                self._answer(sender, waiting)
        self._send_in_turn()
        if not self._serving:
            return bool(self._waiting)
        return bool(self._waiting) or any(s.is_blocked for s in self._serving.values())

    def _request(self, fetch: Fetch, reply: Reply) -> _Request:
        budget_s = min(fetch.budget_ms / 1000, self._longest_session_s)
        if self._upload.is_limited:
            reply = self._upload.shared(fetch.name, reply)
        return _Request(fetch, reply, self._clock.now() + budget_s)

    def _keep_to_share(self, reader: str) -> None:
        """End the oldest session of a peer before the peer has more sessions than allowed."""
        held = {**self._waiting, **{s: serving.request for s, serving in self._serving.items()}}
        own = [sender for sender, request in held.items() if request.fetch.name == reader]
        if len(own) >= self._sessions_per_peer:
            self._end(own[0])

    def _answer(self, sender: bytes, request: _Request) -> None:
        fetch, reply = request.fetch, request.reply
        self._context.peer_table.spoke(fetch.name)
        if fetch.news:
            self._context.receive_news(fetch.news)
        lease = self._lease(fetch)
        if lease is None:
            self._decline(sender, request)
            return
        if lease.snapshot.version == fetch.merged:
            lease.release()
            reply(NotReady(request=fetch.request))
            return
        layout = lease.snapshot.layout
        shared = self._pool.shared if fetch.can_map else None
        if layout.fingerprint != fetch.fingerprint:
            lease.release()
            reply(OtherModel(request=fetch.request), self._described(layout))
        elif lease.is_shared and shared is not None:
            lease.release()
            self.served += 1
            reply(SharedMemoryName(request=fetch.request, name=shared.name, nonce=shared.nonce))
        elif lease.snapshot.data.nbytes > fetch.chunk_bytes * limits.MAX_PIECES:
            lease.release()
            reply(Refused(request=fetch.request, reason="the chunks are too small"))
        else:
            self._start(sender, request, lease)

    def _lease(self, fetch: Fetch) -> Lease | None:
        """Lease the requested snapshot. Return `None` if the node has not published it yet."""
        lease = self._pool.at(fetch.version) if fetch.version else None
        lease = lease or self._pool.newest()
        # A peer does not wait for this node if this node is rounds behind, e.g. after a restart.
        if lease is not None and 0 < fetch.version - lease.snapshot.version <= MAX_ROUNDS_BEHIND:
            lease.release()
            return None
        return lease

    def _decline(self, sender: bytes, request: _Request) -> None:
        """Answer that there is no snapshot, or keep the request until the wanted version exists."""
        fetch = request.fetch
        if not fetch.version or len(self._waiting) >= limits.MAX_SESSIONS:
            request.reply(NotReady(request=fetch.request))
        else:
            self._waiting[sender] = request

    def _start(self, sender: bytes, request: _Request, lease: Lease) -> None:
        fetch, reply = request.fetch, request.reply
        if len(self._serving) >= limits.MAX_SESSIONS:
            self._end_one_of_most()
        try:
            session = ServeSession(
                fetch, lease.snapshot, self._codecs(fetch.codec), self._context.select_news()
            )
        except UnknownNameError:
            lease.release()
            reply(Refused(request=fetch.request, reason=f"unknown codec {printable(fetch.codec)}"))
            return
        except BaseException:
            lease.release()
            raise
        self._serving[sender] = _Serving(request, session, lease)

    def _end_one_of_most(self) -> None:
        readers = {sender: serving.request.fetch.name for sender, serving in self._serving.items()}
        counts = Counter(readers.values())
        self._end(max(readers, key=lambda sender: counts[readers[sender]]))

    def _described(self, layout: Layout) -> bytes:
        """Pack a layout, and keep the result to answer every peer whose layout differs."""
        if self._description is None or self._description[0] is not layout:
            self._description = layout, pack_layout(layout)
        return self._description[1]

    def _send_in_turn(self) -> None:
        """Send chunks to peers in turn, as far as credit, sockets and the upload limit allow."""
        sessions: dict[str, deque[bytes]] = {}
        for sender, serving in self._serving.items():
            sessions.setdefault(serving.request.fetch.name, deque()).append(sender)
        turns = deque(sessions.values())
        while turns:
            senders = turns.popleft()
            try:
                may_go_on = self._send_next(senders[0])
            except BaseException:
                self._end(senders[0])  # otherwise, it would hold up the others again and again
                raise
            if may_go_on:
                senders.rotate(-1)
            else:
                senders.popleft()
            if senders:
                turns.append(senders)

    def _send_next(self, sender: bytes) -> bool:
        """Send one message of a session, and return whether more may be sent."""
        serving, is_sent = self._serving[sender], False
        if serving.receipts:
            serving.receipts = [receipt for receipt in serving.receipts if not receipt.done]
        for message, data in serving.session.next_outgoing():
            if is_sent:
                return True
            payload = None if data is None else data.data
            receipt = serving.request.reply(message, payload, is_lent=data is not None)
            if receipt is None:
                serving.is_blocked = True  # the socket is full, or it is not the peer's turn
                return False
            if not receipt.done:
                serving.receipts.append(receipt)
            is_sent = True
            if payload is not None:
                self._context.peer_table.sent(serving.request.fetch.name, len(payload))
        if serving.session.finished:
            self.served += 1
            self._end(sender)
        return False

    def _end(self, sender: bytes) -> None:
        self._waiting.pop(sender, None)
        serving = self._serving.pop(sender, None)
        if serving is None:
            return
        serving.release_snapshot()
        if not self._upload.is_limited:
            return
        reader, others = serving.request.fetch.name, self._serving.values()
        if all(other.request.fetch.name != reader for other in others):
            self._upload.forget_reader(reader)
