"""Requests sends this node's additions and reads to members, and answers members' requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dpwa import fault_points
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError, TableLostError
from dpwa.node.serving.service import Reply
from dpwa.policy.group_views import Member
from dpwa.tables.channels import Item
from dpwa.tables.pending import Addition, Key, PendingOperations, PendingRead
from dpwa.tables.shard_store import ShardStore
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.tables import TableAdded, TableAddition, TableGet, TableGot, TableRefused

KEPT_S = 5.0  # time to keep an answer that the other side does not read
MAX_ANSWER_BYTES = 1024**3  # maximum size of all waiting answers


@dataclass
class ReadAnswer:
    """Answer to a read: the requested rows, or the reason for a refusal."""

    request: int
    reply: Reply
    data: ByteArray = field(default_factory=lambda: np.empty(0, np.uint8))
    image: int = 0  # the shared memory with the values of the shard, or 0 for none
    refused: str | None = None  # the reason why there are no rows
    sent_bytes: int = 0  # the number of bytes of `data` that were sent
    until: float | None = None  # the time when the answer is given up

    def send_pieces(self, now: float) -> bool:
        """Send the rows. Return whether all rows were sent, or the receiver has stopped reading."""
        if self.refused is not None:
            reason = self.refused[: limits.MAX_REASON_CHARACTERS]
            self.reply(TableRefused(request=self.request, reason=reason))
            return True
        while self._send_piece():
            self.until = now + KEPT_S
            if self.sent_bytes >= self.data.nbytes:
                fault_points.reached("table.get.answered")
                return True
        self.until = now + KEPT_S if self.until is None else self.until
        return now > self.until

    def _send_piece(self) -> bool:
        start, total = self.sent_bytes, self.data.nbytes
        piece = self.data[start : start + limits.CHUNK_BYTES]
        got = TableGot(request=self.request, start=start, nbytes=total, image=self.image)
        if self.reply(got, piece.data, is_lent=True) is None:
            return False
        self.sent_bytes += piece.nbytes
        return True


class Answers:
    """Queue of this node's answers to reads. Belongs to the RxThread, which sends them."""

    def __init__(self) -> None:
        self._waiting: deque[ReadAnswer] = deque()

    def add_answer(self, answer: ReadAnswer) -> None:
        nbytes = sum(waiting.data.nbytes for waiting in self._waiting)
        if nbytes < MAX_ANSWER_BYTES:  # a node without an answer will ask again
            self._waiting.append(answer)

    def send_answers(self, now: float) -> bool:
        for _ in range(len(self._waiting)):
            answer = self._waiting.popleft()
            if not answer.send_pieces(now):
                self._waiting.append(answer)
        return bool(self._waiting)


class Requests:
    """Sends this node's additions and reads to members, and answers the requests of members.

    Only the engine's thread uses this object.
    """

    def __init__(
        self,
        own: Member,
        pending: PendingOperations,
        store: ShardStore,
        say: Callable[[str, Item], None],  # sends a message to a member
        answer: Callable[[ReadAnswer], None],  # sends the answer to a read
    ) -> None:
        self.acknowledged = 0  # additions of this node since a member was lost
        # by shard and member: the number of this node's last addition in the member's copy
        self._confirmed: dict[Key, dict[str, int]] = {}
        self._own = own.name
        self._client = f"{own.name}:{own.incarnation.hex()}"
        self._pending = pending
        self._store = store
        self._say = say
        self._answer = answer

    def begin_view(self) -> None:
        """Drop the old view's confirmations, because this node will send the additions again."""
        self._confirmed.clear()

    def route(self, addition: Addition) -> None:
        try:
            (primary, *_) = self._store.holders(addition.key)
        except (ProtocolError, ValueError):
            self._pending.fail(addition.key, addition.counter, lost_error(*addition.key))
            return
        fields = {
            "table": addition.key[0],
            "shard": addition.key[1],
            "client": self._client,
            "counter": addition.counter,
            "rows": addition.rows,
            "is_first": addition.is_first,
            "contained": 0,
        }
        self._say(primary, Item(TableAddition, fields, addition.data.data))
        fault_points.reached("table.add.sent")

    def added(self, message: TableAdded) -> None:
        """Acknowledge the additions that are in all replicas, which the primary has applied first.

        A shard without replicas has only the primary.
        """
        key = message.table, message.shard
        if message.client != self._client:  # an earlier process with this name
            return
        if message.refused:
            error = ProtocolError(f"an addition was refused: {message.refused}")
            self._pending.fail(key, message.counter, error)
            return
        confirmed = self._confirmed.setdefault(key, {})
        confirmed[message.name] = max(message.counter, confirmed.get(message.name, 0))
        holders = self._store.holders(key)
        counter = min((confirmed.get(name, 0) for name in holders[1:] or holders), default=0)
        self.acknowledged += self._pending.acknowledge(key, counter)

    def request_rows(self, request: int, ask: PendingRead, primary: str) -> None:
        if primary == self._own:
            self._get_own(request, ask)
            return
        fields = {
            "request": request,
            "table": ask.key[0],
            "shard": ask.key[1],
            "rows": None if ask.ids is None else len(ask.ids),
        }
        data = b"" if ask.ids is None else ask.ids.data.cast("B")
        self._say(primary, Item(TableGet, fields, data))
        fault_points.reached("table.get.asked")

    def _get_own(self, request: int, ask: PendingRead) -> None:
        try:
            rows = self._rows(ask.key, ask.ids)
        except ProtocolError as error:
            self._pending.refused(request, str(error))
        else:
            self._pending.answered(request, 0, rows, 0)

    def get(self, message: TableGet, data: Frame, reply: Reply | None) -> None:
        if reply is None:
            return
        key = message.table, message.shard
        try:
            ids = None if message.rows is None else np.frombuffer(data, np.int64)
            rows = self._rows(key, ids)
        except (ProtocolError, ValueError) as error:
            self._answer(ReadAnswer(message.request, reply, refused=str(error)))
        else:
            image = self._store.copies[key].image
            self._answer(ReadAnswer(message.request, reply, rows, image))

    def _rows(self, key: Key, ids: np.ndarray | None) -> ByteArray:
        rows = self._store.own_primary(key).state.read_rows(ids)
        data: ByteArray = rows.reshape(-1).view(np.uint8)
        return data


def lost_error(number: int, shard: int) -> TableLostError:
    return TableLostError(
        f"shard {shard} of table {number} is lost, because no member has a copy with all "
        "acknowledged additions. The members with such a copy are gone, or have not returned "
        "yet. To lose fewer shards, raise `replicas` [DPWA-E233]"
    )
