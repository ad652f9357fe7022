"""Replication sends additions to all replicas of a shard, and whole shards to new replicas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from dpwa import fault_points
from dpwa.errors import ProtocolError
from dpwa.tables.channels import Item, ReliableChannels
from dpwa.tables.directory import TablePlan
from dpwa.tables.pending import Key
from dpwa.tables.shard import HEADER
from dpwa.tables.shard_memory import ShardCopy
from dpwa.tables.shard_store import ShardStore
from dpwa.tables.specs import ID_BYTES
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.tables import (
    TableAdded,
    TableAddition,
    TableState,
    TableStateTaken,
)

log = logging.getLogger("dpwa.tables")

_FORWARDED_FIELDS = {"table", "shard", "client", "counter", "rows", "is_first"}
RETRY_S = 1.0  # after memory for a copy was short, or its state could not be stored

Say = Callable[[str, Item], None]


class Replication:
    """The tasks of a node as the primary of some shards, and as a replica of others.

    The primary applies an addition, and sends it to the replicas. Each replica applies the
    addition, and confirms it to the client itself. Without replicas, the primary confirms it. A
    refused addition is in no copy. After a refusal, further additions of the client wait until the
    client knows of it. Otherwise the client might repeat the addition at a different primary that
    already has later additions. While a new replica gets the state, additions to the shard wait. If
    a replica cannot apply an addition, or has missed one, its copy is made again. When the state
    has arrived, the replica confirms all additions in it.

    `note` is called for every addition that this node applies.
    """

    def __init__(
        self, store: ShardStore, mail: ReliableChannels, say: Say, note: Callable[[], None]
    ) -> None:
        self._store = store
        self._mail = mail
        self._say = say
        self._note = note
        self._copying: dict[Key, set[str]] = {}
        self._refused: set[tuple[Key, str]] = set()  # clients that do not know of a refusal yet
        self._on_hold: dict[Key, list[tuple[TableAddition, Frame]]] = {}
        self._missed: dict[Key, float] = {}  # by shard: the time to request the state of its copy
        self._warned: set[Key] = set()  # shards with a warning, until their copies are complete

    def begin_view(self) -> None:
        """Drop the old view's operations, because nodes will send the operations again."""
        self._copying.clear()
        self._refused.clear()
        self._on_hold.clear()
        self._missed.clear()
        self._warned.clear()

    # As primary

    def receive_addition(self, message: TableAddition, data: Frame) -> None:
        key = message.table, message.shard
        if key in self._copying or (key, message.name) in self._refused:
            self._on_hold.setdefault(key, []).append((message, data))
            return
        try:
            copy = self._store.own_primary(key)
            message, data = self._as_it_counts(message, data)
            self._apply(copy, message, data)
        except ProtocolError as error:
            self._confirm(message.client, key, message.counter, str(error))
            return
        fault_points.reached("table.add.applied")
        replicas = self._store.holders(key)[1:]
        if not replicas:
            self._confirm(message.client, key, message.counter)
            return
        fields = message.model_dump(include=_FORWARDED_FIELDS)
        fields["contained"] = copy.state.additions
        for replica in replicas:
            self._say(replica, Item(TableAddition, fields, data))
        fault_points.reached("table.add.forwarded")

    def _as_it_counts(self, message: TableAddition, data: Frame) -> tuple[TableAddition, Frame]:
        """Drop initial values that a node sends too late, when it is no longer the first member."""
        is_ready = self._store.tables[message.table].is_ready
        if message.is_first and (is_ready or message.name != self._mail.view.names[0]):
            return message.model_copy(update={"rows": 0}), b""
        return message, data

    def _apply(self, copy: ShardCopy, message: TableAddition, data: Frame) -> None:
        spec = self._store.tables[message.table].spec
        ids_bytes = 0 if message.rows is None else message.rows * ID_BYTES
        count, rest = divmod(len(data) - ids_bytes, spec.row_bytes)
        if count < 0 or rest:
            raise ProtocolError(
                f"an addition has a wrong size ({len(data)} bytes, rows: {message.rows})"
            )
        view = memoryview(data)
        ids = None if message.rows is None else np.frombuffer(view[:ids_bytes], np.int64)
        delta = np.frombuffer(view[ids_bytes:], spec.dtype).reshape(spec.shape(count))
        copy.apply(message.client, message.counter, ids, delta, is_first=message.is_first)
        self._note()

    def _confirm(self, client: str, key: Key, counter: int, refused: str = "") -> None:
        """Tell a client that this copy has its additions up to `counter`, or refuses this one."""
        fields = {
            "table": key[0],
            "shard": key[1],
            "client": client,
            "counter": counter,
            "refused": refused[: limits.MAX_REASON_CHARACTERS],
        }
        node, _, _ = client.rpartition(":")
        told = None
        if refused and self._mail.stream(node) is not None:
            self._refused.add((key, node))
            told = partial(self._refusal_told, key, node)
        self._say(node, Item(TableAdded, fields, seen=told))
        fault_points.reached("table.add.acknowledged")

    def _refusal_told(self, key: Key, client: str) -> None:
        self._refused.discard((key, client))
        self._add_held(key)

    def _add_held(self, key: Key) -> None:
        for held, data in self._on_hold.pop(key, []):
            self.receive_addition(held, data)

    # As replica

    def replicate(self, message: TableAddition, data: Frame) -> None:
        """Apply an addition from the primary to this node's replica of the shard."""
        key = message.table, message.shard
        copy = self._own_replica(key, message.name)
        if copy is None or copy.incoming is not None:
            return  # the addition is in the state that will arrive
        try:
            last, _ = copy.state.applied.get(message.client, (0, 0))
            if copy.state.additions + (message.counter > last) != message.contained:
                raise ProtocolError("the copy on this node has missed an earlier addition")
            self._apply(copy, message, data)
        except Exception as error:  # noqa: BLE001  # this copy then differs from the primary's
            self._miss(key, error)
            return
        fault_points.reached("table.add.replicated")
        self._confirm(message.client, key, message.counter)

    def _own_replica(self, key: Key, primary: str) -> ShardCopy | None:
        """Return this node's replica, or `None` if the primary must send the shard's state."""
        copy = self._store.own_replica(key, primary)
        if copy is None:
            self._missed.setdefault(key, self._mail.now)
        return None if key in self._missed else copy

    def _miss(self, key: Key, error: Exception, after_s: float = 0.0) -> None:
        self._missed[key] = self._mail.now + after_s
        reason: object = error
        if isinstance(error.__cause__ or error, MemoryError):
            reason = (
                f"this node has too little memory for shard {key[1]} of table {key[0]}. Additions "
                "to the shard wait until memory is free. A table with fewer `replicas` needs less "
                "memory"
            )
        if key not in self._warned:
            self._warned.add(key)
            log.warning("this node requests the state of a shard again: %s [DPWA-W037]", reason)

    def ask_again(self) -> bool:
        """Request new states for replicas that missed an addition. Return whether any is due."""
        keys = [key for key, due in self._missed.items() if due <= self._mail.now]
        for key in keys:
            try:
                self._store.renew(key)
            except MemoryError as error:
                self._miss(key, error, RETRY_S)
                continue
            del self._missed[key]
            self._say_taken(key, is_whole=False)
        return bool(keys)

    def _say_taken(self, key: Key, *, is_whole: bool) -> None:
        fields = {"table": key[0], "shard": key[1], "is_whole": is_whole}
        self._say(self._store.holders(key)[0], Item(TableStateTaken, fields))

    # Transfer of states

    def copy(self, number: int, plan: TablePlan, own: str) -> None:
        """Send the shards' states from this node to the new replicas of a table."""
        for copy in plan.copies:
            if copy.source == own:
                key = number, copy.shard
                self._copying.setdefault(key, set()).add(copy.target)
                self._send_state(key, copy.target)

    def take_state(self, message: TableState, data: Frame) -> None:
        """Store a piece of a shard's state in this node's replica."""
        key = message.table, message.shard
        copy = self._own_replica(key, message.name)
        if copy is None or copy.incoming is None:
            return
        if message.part != HEADER and not copy.incoming.has_begun:
            return  # the piece belongs to an import that was given up
        try:
            is_whole = copy.incoming.feed(message.part, memoryview(data))
        except Exception as error:  # noqa: BLE001
            self._miss(key, error, RETRY_S)
            return
        if is_whole:
            copy.incoming = None
            self._warned.discard(key)
            self._store.completed(key)
            fault_points.reached("table.state.taken")
            for client, (last, _) in copy.state.applied.items():
                self._confirm(client, key, last)
            self._say_taken(key, is_whole=True)

    def state_taken(self, message: TableStateTaken) -> None:
        """Continue with additions as soon as all replicas have the state."""
        key = message.table, message.shard
        self._store.own_primary(key)
        if message.name not in self._store.holders(key):
            raise ProtocolError("a node without a replica has requested the state of a shard")
        if not message.is_whole:
            self._copying.setdefault(key, set()).add(message.name)
            self._send_state(key, message.name)
            return
        waiting = self._copying.get(key, set())
        waiting.discard(message.name)
        if not waiting:
            self._copying.pop(key, None)
            self._add_held(key)

    def _send_state(self, key: Key, target: str) -> None:
        stream = self._mail.stream(target)
        if stream is not None:
            stream.queue_items(self._state_items(key))

    def _state_items(self, key: Key) -> Iterator[Item]:
        for part, piece in self._store.copies[key].state.export():
            yield Item(TableState, {"table": key[0], "shard": key[1], "part": part}, piece)
            fault_points.reached("table.state.sent")
