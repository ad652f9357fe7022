"""Requests: what members want of shards, and who has to be asked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpwa import fault_points
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError, TableLostError
from dpwa.node.serving.service import Reply
from dpwa.policy.groups.views import Member
from dpwa.tables.answers import ReadAnswer
from dpwa.tables.pending import Addition, Key, PendingOperations, PendingRead
from dpwa.tables.shard_store import ShardStore
from dpwa.tables.streams import Item
from dpwa.types import Frame
from dpwa.wire.tables import TableAdded, TableAddition, TableGet


class Requests:
    """Additions and reads: those of this node on their way, those of others answered.

    Belongs to the thread of the engine.

    Args:
        own: this node.
        pending: what its users wait for.
        store: its copies of shards.
        say: tells a member something.
        answer: takes the answer to a read, to send it.

    Attributes:
        acknowledged: additions of this node since a member was lost.
    """

    def __init__(
        self,
        own: Member,
        pending: PendingOperations,
        store: ShardStore,
        say: Callable[[str, Item], None],
        answer: Callable[[ReadAnswer], None],
    ) -> None:
        self.acknowledged = 0
        self._own = own.name
        self._client = f"{own.name}:{own.incarnation.hex()}"
        self._pending = pending
        self._store = store
        self._say = say
        self._answer = answer

    def route(self, addition: Addition) -> None:
        """Send an addition of this node to the primary."""
        try:
            (primary, *_) = self._store.holders(addition.key)
        except (ProtocolError, ValueError):
            self._pending.acknowledge(addition.key, addition.counter, lost_error(*addition.key))
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
        """Take note of what became of an addition of this node."""
        error = ProtocolError(f"an addition was refused: {message.refused}")
        key = message.table, message.shard
        refusal = error if message.refused else None
        self.acknowledged += self._pending.acknowledge(key, message.counter, refusal)

    def order(self, request: int, ask: PendingRead, primary: str) -> None:
        """Ask the primary of a shard for rows."""
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
        """Answer a member that wants rows."""
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
        rows = self._store.own_primary(key).state.read(ids)
        data: ByteArray = rows.reshape(-1).view(np.uint8)
        return data


def lost_error(number: int, shard: int) -> TableLostError:
    """Return what to raise for rows that nobody has any more."""
    return TableLostError(
        f"shard {shard} of table {number} is lost: no member has a copy with all that was "
        "acknowledged; those that had one are gone, or not back yet (`replicas` says how many "
        "copies there are besides the first)"
    )
