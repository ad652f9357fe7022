"""Replication: how an addition gets into all copies of a shard, and a state to a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpwa import fault_points
from dpwa.errors import ProtocolError
from dpwa.message_codes import get_log
from dpwa.tables.channels import ReliableChannels
from dpwa.tables.directory import TablePlan
from dpwa.tables.pending import Key
from dpwa.tables.shard_store import ShardStore
from dpwa.tables.specs import ID_BYTES
from dpwa.tables.streams import Item
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.tables import (
    TableAdded,
    TableAddition,
    TableReplicated,
    TableState,
    TableStateTaken,
)

log = get_log("dpwa.tables")

_FORWARDED_FIELDS = {"table", "shard", "client", "counter", "rows", "is_first"}

Say = Callable[[str, Item], None]
Awaited = tuple[Key, str, int]  # shard, client, counter


class Replication:
    """What a node does as the primary, and as a replica.

    The primary applies an addition, passes it on to the replicas, and acknowledges it when all of
    them have applied it. While a new replica gets the state, additions to the shard wait.

    Args:
        store: has the copies.
        mail: whose members are told.
        say: tells a member something, be it this node.
        note: called for every addition that is applied here.
    """

    def __init__(
        self, store: ShardStore, mail: ReliableChannels, say: Say, note: Callable[[], None]
    ) -> None:
        self._store = store
        self._mail = mail
        self._say = say
        self._note = note
        self._awaited: dict[Awaited, tuple[str, set[str]]] = {}
        self._copying: dict[Key, set[str]] = {}
        self._on_hold: dict[Key, list[tuple[TableAddition, Frame]]] = {}

    def begin(self) -> None:
        """Forget what was under way in the view before: it is sent again."""
        self._awaited.clear()
        self._copying.clear()
        self._on_hold.clear()

    # The primary

    def add(self, message: TableAddition, data: Frame) -> None:
        """Apply an addition, and pass it on."""
        key = message.table, message.shard
        if key in self._copying:
            self._on_hold.setdefault(key, []).append((message, data))
            return
        try:
            self._store.own_primary(key)
            message, data = self._as_it_counts(message, data)
            self._apply(message, data)
        except ProtocolError as error:
            self._acknowledge(message.name, message, str(error))
            return
        fault_points.reached("table.add.applied")
        replicas = self._store.holders(key)[1:]
        if not replicas:
            self._acknowledge(message.name, message)
            return
        self._awaited[_awaited(message)] = message.name, set(replicas)
        fields = {**message.model_dump(include=_FORWARDED_FIELDS), "is_forwarded": True}
        for replica in replicas:
            self._say(replica, Item(TableAddition, fields, data))
        fault_points.reached("table.add.forwarded")

    def replicated(self, message: TableReplicated) -> None:
        """Take note that a replica has applied an addition."""
        awaited = self._awaited.get(_awaited(message))
        if awaited is None:
            return
        client, replicas = awaited
        replicas.discard(message.name)
        if not replicas:
            del self._awaited[_awaited(message)]
            self._acknowledge(client, message)

    def _as_it_counts(self, message: TableAddition, data: Frame) -> tuple[TableAddition, Frame]:
        """Leave first values of a node that was the first one before: they come too late."""
        is_ready = self._store.tables[message.table].is_ready
        if message.is_first and (is_ready or message.name != self._mail.view.names[0]):
            return message.model_copy(update={"rows": 0}), b""
        return message, data

    def _apply(self, message: TableAddition, data: Frame) -> None:
        copy = self._store.copies[message.table, message.shard]
        spec = self._store.tables[message.table].spec
        ids_bytes = 0 if message.rows is None else message.rows * ID_BYTES
        count, rest = divmod(len(data) - ids_bytes, spec.row_bytes)
        if count < 0 or rest:
            raise ProtocolError(f"an addition to {message.rows} rows has {len(data)} bytes")
        view = memoryview(data)
        ids = None if message.rows is None else np.frombuffer(view[:ids_bytes], np.int64)
        delta = np.frombuffer(view[ids_bytes:], spec.dtype).reshape(spec.shape(count))
        copy.apply(message.client, message.counter, ids, delta, is_first=message.is_first)
        self._note()

    def _acknowledge(
        self, client: str, message: TableAddition | TableReplicated, refused: str = ""
    ) -> None:
        fields = {
            "table": message.table,
            "shard": message.shard,
            "counter": message.counter,
            "refused": refused[: limits.MAX_REASON_CHARACTERS],
        }
        self._say(client, Item(TableAdded, fields))
        fault_points.reached("table.add.acknowledged")

    # The replica

    def replicate(self, message: TableAddition, data: Frame) -> None:
        """Apply an addition that the primary has passed on.

        Raises:
            ProtocolError: somebody else has, or it is malformed.
        """
        key = message.table, message.shard
        if self._store.holders(key)[:1] != (message.name,) or key not in self._store.copies:
            raise ProtocolError("an addition was passed on by another node than the primary")
        self._apply(message, data)
        fault_points.reached("table.add.replicated")
        fields = message.model_dump(include={"table", "shard", "client", "counter"})
        self._say(message.name, Item(TableReplicated, fields))

    # States

    def copy(self, number: int, plan: TablePlan, own: str) -> None:
        """Send the states that new replicas of a table need."""
        for copy in plan.copies:
            if copy.source == own:
                key = number, copy.shard
                self._copying.setdefault(key, set()).add(copy.target)
                self._send_state(key, copy.target)

    def take_state(self, message: TableState, data: Frame) -> None:
        """Take a piece of the state of a copy that is to come."""
        copy = self._store.copies.get((message.table, message.shard))
        if copy is None or copy.incoming is None:
            return
        fields: dict[str, Any] = {"table": message.table, "shard": message.shard}
        try:
            is_whole = copy.incoming.feed(message.part, memoryview(data))
        except ProtocolError as error:
            log.warning("the state of a shard is sent again: %s", error)
            copy.incoming = copy.state.importing()
            self._say(message.name, Item(TableStateTaken, {**fields, "is_whole": False}))
            return
        if is_whole:
            copy.incoming = None
            self._store.completed((message.table, message.shard))
            fault_points.reached("table.state.taken")
            self._say(message.name, Item(TableStateTaken, {**fields, "is_whole": True}))

    def state_taken(self, message: TableStateTaken) -> None:
        """Go on with additions once all new replicas have the state."""
        key = message.table, message.shard
        if message.name not in self._copying.get(key, ()):
            return
        if not message.is_whole:
            self._send_state(key, message.name)
            return
        self._copying[key].discard(message.name)
        if not self._copying[key]:
            del self._copying[key]
            for held, data in self._on_hold.pop(key, []):
                self.add(held, data)

    def _send_state(self, key: Key, target: str) -> None:
        stream = self._mail.stream(target)
        if stream is not None:
            stream.put(self._state_items(key))

    def _state_items(self, key: Key) -> Iterator[Item]:
        for part, piece in self._store.copies[key].state.export():
            yield Item(TableState, {"table": key[0], "shard": key[1], "part": part}, piece)
            fault_points.reached("table.state.sent")


def _awaited(message: TableAddition | TableReplicated) -> Awaited:
    return (message.table, message.shard), message.client, message.counter
