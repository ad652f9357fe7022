"""ShardStore: a node's table descriptions and its copies of table shards."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from dpwa.collectives.contacts import Contacts
from dpwa.errors import ProtocolError
from dpwa.tables.directory import HeldShard, Known, TablePlan, digest_of
from dpwa.tables.pending import Key
from dpwa.tables.shard_memory import ShardCopy, ShardMemory, new_copy
from dpwa.tables.specs import ID_BYTES
from dpwa.wire import limits
from dpwa.wire.tables import Numbered, TableAddition, TableGet, TableHoldings


class ShardStore:
    """The tables and shard copies of a node. Only the engine's thread uses it."""

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._own = contacts.own.name
        self.tables: dict[int, TablePlan] = {}  # by table number
        self.copies: dict[Key, ShardCopy] = {}  # copies that this node has, or will get
        self._former: dict[Key, ShardCopy] = {}  # old copies, until their replacements are complete

    def clear(self) -> None:
        self.drop_incomplete()
        for key in list(self.copies):
            self._drop(key)
        self.tables = {}

    def drop_incomplete(self) -> None:
        """Discard incomplete shard copies. The former copies have all acknowledged additions."""
        for key in [key for key, copy in self.copies.items() if not copy.state.is_whole]:
            self._drop(key)
        self.copies |= self._former
        self._former.clear()

    def left_out(self) -> None:
        """Record that the other nodes have continued without this node, and may have newer data."""
        self.tables = {n: replace(plan, needed=()) for n, plan in self.tables.items()}

    def completed(self, key: Key) -> None:
        """Drop the former copy of a shard, because a complete copy replaces it."""
        former = self._former.pop(key, None)
        if former is not None:
            former.close()

    def known(self) -> dict[int, Known]:
        return {
            number: Known(
                plan.spec,
                plan.shards,
                plan.is_ready,
                self._held(number),
                plan.placement.holders,
                tuple(self._needed(number, plan, shard) for shard in range(len(plan.needed))),
            )
            for number, plan in self.tables.items()
        }

    def memories(self) -> dict[Key, ShardMemory]:
        return {k: copy.memory for k, copy in self.copies.items() if copy.memory is not None}

    def settle(self, number: int, plan: TablePlan) -> None:
        """Make and drop shard copies of a table by the plan for a new membership view."""
        self.tables[number] = plan
        mine = plan.placement.held_by(self._own)
        for key in [k for k in self.copies if k[0] == number and k[1] not in mine]:
            self._drop(key)
        to_come = {copy.shard for copy in plan.copies if copy.target == self._own}
        for shard in mine:
            with suppress(MemoryError):  # `renew` and `own_primary` try again later
                self._place((number, shard), plan, is_to_come=shard in to_come)

    def renew(self, key: Key) -> None:
        """Start to replace this node's copy of a shard, because the copy has missed an addition.

        Until then, the former copy is used, because this node has confirmed no addition since.
        """
        copy = self.copies.get(key)
        if copy is not None and copy.incoming is not None:
            copy.incoming = copy.state.importing()
        else:
            self._place(key, self.tables[key[0]], is_to_come=True)

    def be_ready(self, number: int) -> bool:
        """Record that a table's initial values are stored. Return whether the table exists."""
        plan = self.tables.get(number)
        if plan is not None:
            self.tables[number] = replace(plan, is_ready=True)
        return plan is not None

    def holders(self, key: Key) -> tuple[str, ...]:
        plan = self.tables.get(key[0])
        if plan is None or key[1] >= plan.shards:
            raise ProtocolError(f"table {key[0]} has no shard {key[1]}")
        return plan.placement.holders[key[1]]

    def own_primary(self, key: Key) -> ShardCopy:
        """Return this node's primary copy of a shard, or raise `ProtocolError`."""
        if self.holders(key)[:1] != (self._own,):
            raise ProtocolError(f"{self._own} is not the primary of shard {key[1]}")
        if key not in self.copies:  # memory was short when the table was made, so no copy has data
            try:
                self._place(key, self.tables[key[0]], is_to_come=False)
            except MemoryError:
                raise ProtocolError(
                    f"{self._own} has too little memory for shard {key[1]} of table {key[0]}. "
                    f"Free memory on {self._own}"
                ) from None
        return self.copies[key]

    def own_replica(self, key: Key, primary: str) -> ShardCopy | None:
        """Return this node's replica of a shard, or `None` if its allocation failed."""
        holders = self.holders(key)
        if holders[:1] != (primary,) or self._own not in holders[1:]:
            raise ProtocolError(
                f"this node has no replica of shard {key[1]} whose primary is {primary}"
            )
        return self.copies.get(key)

    def most_bytes(self, message: Numbered) -> int:
        """Return the maximum number of bytes of a message."""
        if isinstance(message, TableHoldings):
            return limits.MAX_HOLDINGS_BYTES
        if isinstance(message, TableGet):
            return limits.MAX_KEYS_BYTES
        plan = None
        if isinstance(message, TableAddition):
            plan = self.tables.get(message.table)
        if plan is None:
            return limits.MAX_PUSH_BYTES
        if plan.spec.kind == "key_value":
            return limits.MAX_KEYS_BYTES
        rows = plan.spec.shards(plan.shards)[0].rows
        return rows * (ID_BYTES + plan.spec.row_bytes)

    def _place(self, key: Key, plan: TablePlan, *, is_to_come: bool) -> None:
        if is_to_come and key in self.copies:
            self._former[key] = self.copies.pop(key)
        if key not in self.copies:
            is_array = plan.spec.kind == "array"
            rows = plan.spec.shards(plan.shards)[key[1]].rows if is_array else 0
            copy = self.copies[key] = new_copy(plan.spec, rows, self._contacts)
            copy.incoming = copy.state.importing() if is_to_come else None
        self.copies[key].epoch = plan.epoch
        self.copies[key].rank = plan.placement.holders[key[1]].index(self._own)

    def _needed(self, number: int, plan: TablePlan, shard: int) -> int:
        """Return the first epoch whose copies have all acknowledged additions. See `Known`."""
        holders, copy = plan.placement.holders[shard], self.copies.get((number, shard))
        is_to_come = self._own in holders and (copy is None or copy.epoch < plan.epoch)
        return plan.needed[shard] if is_to_come or not holders else plan.epoch

    def _held(self, number: int) -> tuple[HeldShard, ...]:
        return tuple(
            HeldShard(shard, copy.epoch, copy.rank, digest_of(copy.state.applied))
            for (table, shard), copy in sorted(self.copies.items())
            if table == number
        )

    def _drop(self, key: Key) -> None:
        self.copies.pop(key).close()
