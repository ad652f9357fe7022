"""The RxThread's side of tables: owns this node's copies of shards, and all streams.

A view begins when all members have told each other what they have; until then nothing is taken. The
primary of a shard applies an addition, passes it on to the replicas, and acknowledges it when all
of them have applied it. So what was acknowledged is in every copy, and a node that is not of the
view any more can acknowledge nothing.
"""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dpwa import fault_points
from dpwa.clock import Clock
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import Group
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError, TableLostError
from dpwa.node.rx_thread import Reply, Service
from dpwa.policy.views import View
from dpwa.tables.desk import Addition, Ask, Desk, Key, Present
from dpwa.tables.directory import Held, Known, Plan, Told, digest_of, new_plan, plans, unpack_told
from dpwa.tables.specs import ID_BYTES, TableSpec, difference, unpack_spec
from dpwa.tables.storage import Copy, new_copy
from dpwa.tables.streams import Incoming, Item, Outgoing
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.messages import Message
from dpwa.wire.tables import (
    FromMember,
    Numbered,
    TableAdded,
    TableAddition,
    TableArrived,
    TableElsewhere,
    TableGet,
    TableGot,
    TableHoldings,
    TableMade,
    TableReady,
    TableRefused,
    TableReplicated,
    TableSeen,
    TableState,
    TableStateTaken,
)

log = logging.getLogger("dpwa.tables")

STALLED_S = 1.0  # after which a member that has not seen what it was told is doubted
UNREACHABLE_S = 0.3  # likewise, without a connection
DOUBT_EVERY_S = 0.5
ASK_AGAIN_S = 0.5  # at a barrier, to find out about members that have stopped
ANSWERS_KEPT_S = 5.0  # for somebody who does not take them
MAX_ANSWER_BYTES = 1024**3  # being sent at once

_FORWARDED_FIELDS = {"table", "shard", "client", "counter", "rows", "is_first"}

Tell = Callable[[str, Message, Frame | None], None]
Awaited = tuple[int, int, str, int]  # table, shard, client, counter


@dataclass
class _Answer:
    """Rows on their way to whoever has asked for them."""

    request: int
    reply: Reply
    data: ByteArray
    image: int
    until: float
    sent_bytes: int = 0


@dataclass(frozen=True)
class Settings:
    """What a `TableService` is told.

    Attributes:
        clock: what time is taken from.
        startup_s: how long to wait for all nodes at first.
    """

    clock: Clock
    startup_s: float


class TableService(Service):
    """Answers what members say of tables.

    Args:
        desk: shared with those who use the tables.
        group: says who takes part.
        contacts: who can be reached, and whose memory is shared.
        tell: sends a message to a peer.
        settings: what else there is to know.
    """

    handles = (
        TableSeen,
        TableElsewhere,
        TableHoldings,
        TableMade,
        TableReady,
        TableArrived,
        TableAddition,
        TableReplicated,
        TableAdded,
        TableState,
        TableStateTaken,
        TableGet,
    )

    def __init__(
        self, desk: Desk, group: Group, contacts: Contacts, tell: Tell, settings: Settings
    ) -> None:
        self._desk = desk
        self._group = group
        self._contacts = contacts
        self._own = contacts.own
        self._tell = tell
        self._startup_s = settings.startup_s
        self._clock = settings.clock
        self._client = f"{self._own.name}:{self._own.incarnation.hex()}"
        self._views: queue.SimpleQueue[tuple[View, int]] = queue.SimpleQueue()
        self._exits = 0
        self._has_part = False
        self._view = group.view
        self._tables: dict[int, Plan] = {}
        self._copies: dict[Key, Copy] = {}
        self._told: dict[str, Told] = {}
        self._out: dict[str, Outgoing] = {}
        self._in: dict[str, Incoming] = {}
        self._awaited: dict[Awaited, tuple[str, set[str]]] = {}
        self._copying: dict[Key, set[str]] = {}
        self._on_hold: dict[Key, list[tuple[TableAddition, Frame]]] = {}
        self._answers: deque[_Answer] = deque()
        self._barriers: dict[str, tuple[int, bool]] = {}
        self._passed = 0
        self._is_waiting = False
        self._arrived_at = 0.0
        self._began: float | None = None
        self._elsewhere_at: float | None = None
        self._doubted_at = 0.0
        self._told_elsewhere: dict[str, float] = {}
        self._links_up: set[str] = set()
        self._now = 0.0
        self._is_closed = False

    # Any thread

    def view_changed(self, view: View) -> None:
        """Take note of a view; called with the lock of the group held."""
        self._views.put((view, self._group.exits))
        self._desk.order(lambda: None)

    def link_came_up(self, peer: str) -> None:
        """Take note of a connection."""
        self._desk.order(lambda: self._resend(peer))

    # The RxThread

    def receive(self, sender: bytes, message: FromMember, payload: Frame, reply: Reply) -> None:  # noqa: ARG002
        """Take in one message."""
        if self._is_closed:
            return
        self._now = self._clock.now()
        self._follow_views()
        if isinstance(message, TableElsewhere):
            if message.view == self._view.identity and self._elsewhere_at is None:
                self._elsewhere_at = self._now
        elif not self._is_of_view(message):
            self._tell_elsewhere(message)
        elif isinstance(message, TableSeen):
            self._seen(message)
        elif isinstance(message, Numbered):
            self._hear(message, payload, reply)

    def tick(self, now: float) -> bool:
        """Go on with whatever is under way."""
        self._now = now
        if self._is_closed:
            return False
        self._follow_views()
        self._desk.take_orders()
        self._take_additions()
        self._send_answers()
        for name, incoming in self._in.items():
            if incoming.is_owed:
                self._tell_seen(name, incoming)
        for outgoing in self._out.values():
            outgoing.pump(now)
        is_waiting = self._wait_at_barrier()
        is_busy = any(outgoing.is_busy for outgoing in self._out.values())
        if self._has_doubts() and now - self._doubted_at >= DOUBT_EVERY_S:
            self._doubted_at = now
            log.info("%s: a member does not answer; the others are asked", self._own.name)
            self._group.doubt()
        return is_busy or is_waiting or not self._has_begun or bool(self._answers)

    def close(self) -> None:
        """Give all memory back; on the RxThread, or after it has ended."""
        self._is_closed = True
        for copy in self._copies.values():
            copy.close()
        self._copies.clear()
        self._out.clear()
        self._answers.clear()

    # Views

    @property
    def _has_begun(self) -> bool:
        return self._desk.present.is_ready

    def _follow_views(self) -> None:
        while not self._views.empty():
            view, exits = self._views.get()
            if self._began is not None and view == self._view:
                continue
            if exits != self._exits:
                self._exits = exits
                self._drop_all()
            self._begin(view)

    def _drop_all(self) -> None:
        """Forget all copies: the others have gone on without this node."""
        for copy in self._copies.values():
            copy.close()
        self._copies.clear()
        self._tables = {}

    def _begin(self, view: View) -> None:
        self._view = view
        self._began, self._elsewhere_at = self._now, None
        self._awaited.clear()
        self._copying.clear()
        self._on_hold.clear()
        self._told, self._barriers = {}, {}
        for key in [key for key, copy in self._copies.items() if not copy.state.is_whole]:
            self._copies.pop(key).close()
        self._desk.memories = self._memories()
        self._desk.publish(Present(view, is_ready=False, tables=self._tables, passed=self._passed))
        own = self._tell_of_own()
        header = {"request": 0, **self._signed}
        others = [name for name in view.names if name != self._own.name]
        self._in = {name: Incoming() for name in others}
        self._out = {name: Outgoing(header, partial(self._tell, name)) for name in others}
        for outgoing in self._out.values():
            outgoing.put([Item(TableHoldings, {}, own.pack())])
        fault_points.reached("table.holdings.told")
        self._hear_told(self._own.name, own)

    def _tell_of_own(self) -> Told:
        tables = {
            number: Known(plan.spec, plan.shards, plan.is_ready, self._held(number))
            for number, plan in self._tables.items()
        }
        return Told(tables, self._passed if self._has_part else None, self._is_waiting)

    def _held(self, number: int) -> tuple[Held, ...]:
        return tuple(
            Held(shard, copy.epoch, copy.rank, digest_of(copy.state.applied))
            for (table, shard), copy in sorted(self._copies.items())
            if table == number
        )

    def _hear_told(self, name: str, told: Told) -> None:
        self._told[name] = told
        if set(self._view.names) <= set(self._told):
            self._start()

    def _start(self) -> None:
        """Go on, as all members have told what they have."""
        names = self._view.names
        newest = max(told.passed or 0 for told in self._told.values())
        if not self._has_part:
            self._passed, self._has_part = newest, True
        for name, told in self._told.items():
            passed = newest if told.passed is None else told.passed
            self._barriers.setdefault(name, (passed, told.is_waiting))
        self._tables = plans(names, self._told)
        for number, plan in self._tables.items():
            self._settle(number, plan)
        self._publish()
        for incoming in self._in.values():
            incoming.is_owed = incoming.wants = True
        for addition in self._desk.take_again():
            self._route(addition)
        log.info("%s: tables among %s", self._own.name, ", ".join(names))

    def _publish(self) -> None:
        self._desk.memories = self._memories()
        self._desk.publish(
            Present(self._view, is_ready=True, tables=dict(self._tables), passed=self._passed)
        )

    def _memories(self) -> dict[Key, Any]:
        return {k: copy.memory for k, copy in self._copies.items() if copy.memory is not None}

    def _settle(self, number: int, plan: Plan) -> None:
        """Make and drop copies as planned."""
        own = self._own.name
        mine = set(plan.placement.held_by(own))
        for key in [k for k in self._copies if k[0] == number and k[1] not in mine]:
            self._copies.pop(key).close()
        for shard in mine:
            is_to_come = any(c.shard == shard and c.target == own for c in plan.copies)
            self._place(number, plan, shard, is_to_come=is_to_come)
        for copy in plan.copies:
            if copy.source == own:
                self._copying.setdefault((number, copy.shard), set()).add(copy.target)
                self._send_state((number, copy.shard), copy.target)

    def _place(self, number: int, plan: Plan, shard: int, *, is_to_come: bool) -> None:
        key = number, shard
        copy = self._copies.get(key)
        if copy is not None and is_to_come:
            self._copies.pop(key).close()
            copy = None
        if copy is None:
            rows = 0 if plan.spec.kind == "key_value" else plan.spec.shards(plan.shards)[shard].rows
            copy = self._copies[key] = new_copy(plan.spec, rows, self._contacts)
            copy.incoming = copy.state.importing() if is_to_come else None
        copy.epoch = self._view.since
        copy.rank = plan.placement.holders[shard].index(self._own.name)

    # Streams

    @property
    def _signed(self) -> dict[str, Any]:
        own = self._own
        view = self._view.identity
        return {"name": own.name, "incarnation": own.incarnation, "view": view}

    def _is_of_view(self, message: FromMember) -> bool:
        return message.view == self._view.identity and self._group.is_member(
            message.name, message.incarnation
        )

    def _tell_elsewhere(self, message: FromMember) -> None:
        if self._now - self._told_elsewhere.get(message.name, -1.0) < 0.05 or isinstance(
            message, TableSeen
        ):
            return
        if message.name in self._group.ranks and message.name != self._own.name:
            self._told_elsewhere[message.name] = self._now
            fields = {"request": 0, **self._signed, "view": message.view}
            self._tell(message.name, TableElsewhere(**fields), None)

    def _tell_seen(self, name: str, incoming: Incoming) -> None:
        seen = TableSeen(request=0, **self._signed, number=incoming.last, wants=incoming.wants)
        incoming.is_owed = incoming.wants = False
        self._tell(name, seen, None)

    def _seen(self, message: TableSeen) -> None:
        outgoing = self._out.get(message.name)
        if outgoing is not None:
            outgoing.seen(message.number, self._now)
            if message.wants:
                outgoing.resend(self._now)

    def _resend(self, peer: str) -> None:
        outgoing = self._out.get(peer)
        if outgoing is not None:
            outgoing.resend(self._now)

    def _hear(self, message: Numbered, payload: Frame, reply: Reply) -> None:
        incoming = self._in.get(message.name)
        if incoming is None or not incoming.is_next(message.number):
            return
        if not self._can_take(message):
            return
        data = incoming.take(message, payload, self._most_bytes(message))
        if data is not None:
            self._take(message, data, reply)

    def _can_take(self, message: Numbered) -> bool:
        """Tell whether the time has come for a message; it will be sent again."""
        if isinstance(message, TableHoldings):
            return True
        if not self._has_begun:
            return False
        if isinstance(message, TableAddition) and message.is_forwarded:
            return message.table in self._tables  # its maker may have told the primary first
        return True

    def _most_bytes(self, message: Numbered) -> int:
        if isinstance(message, TableHoldings):
            return limits.MAX_HOLDINGS_BYTES
        if not isinstance(message, TableAddition | TableGet):
            return limits.MAX_PUSH_BYTES
        plan = self._tables.get(message.table)
        if plan is None:
            return limits.MAX_PUSH_BYTES
        if plan.spec.kind == "key_value" or isinstance(message, TableGet):
            return limits.MAX_KEYS_BYTES
        rows = plan.spec.shards(plan.shards)[0].rows
        return rows * (ID_BYTES + plan.spec.row_bytes)

    def _say(self, name: str, item: Item) -> None:
        """Tell a member something; this node itself is a member, too."""
        if name != self._own.name:
            outgoing = self._out.get(name)
            if outgoing is not None:
                outgoing.put([item])
                outgoing.pump(self._now)
            return
        fields = {"request": 0, **self._signed, **item.fields, "number": 0}
        if "start" in item.kind.model_fields:
            fields |= {"start": 0, "nbytes": 0}
        self._take(item.kind(**fields), item.data or b"", None)

    def _say_to_all(self, item: Item) -> None:
        for name in self._out:
            self._say(name, item)

    def _take(self, message: Numbered, data: Frame, reply: Reply | None) -> None:
        match message:
            case TableHoldings():
                self._hear_told(message.name, unpack_told(data))
            case TableMade():
                self._make(message.table, unpack_spec(data), message.shards)
            case TableReady():
                self._be_ready(message.table)
            case TableArrived():
                self._barriers[message.name] = message.passed, message.is_waiting
            case TableAddition():
                if message.is_forwarded:
                    self._replicate(message, data)
                else:
                    self._add(message, data)
            case TableReplicated():
                self._replicated(message)
            case TableAdded():
                self._added(message)
            case TableState():
                self._take_state(message, data)
            case TableStateTaken():
                self._state_taken(message)
            case TableGet():
                self._get(message, data, reply)

    # Tables

    def make(self, number: int, spec: TableSpec) -> None:
        """Make a table, unless there is one of this number, and tell all others."""
        if not self._has_begun:
            return
        plan = self._tables.get(number)
        shards = len(self._view.names) if plan is None else plan.shards
        self._say_to_all(Item(TableMade, {"table": number, "shards": shards}, spec.pack()))
        self._make(number, spec, shards)

    def announce(self, number: int) -> None:
        """Say that the first values of a table are in place, if it is for this node to say so."""
        if self._has_begun and self._view.names[0] == self._own.name:
            self._say_to_all(Item(TableReady, {"table": number}))
            self._be_ready(number)

    def _make(self, number: int, spec: TableSpec, shards: int) -> None:
        plan = self._tables.get(number)
        if plan is not None:
            if plan.spec != spec:
                self._desk.note_mismatch(number, difference(plan.spec, spec))
            return
        plan = self._tables[number] = new_plan(spec, shards, self._view.names)
        self._settle(number, plan)
        self._publish()
        for incoming in self._in.values():  # something may have come before
            incoming.is_owed = incoming.wants = True

    def _be_ready(self, number: int) -> None:
        if number in self._tables:
            self._tables[number] = replace(self._tables[number], is_ready=True)
            self._publish()

    # Additions

    def _take_additions(self) -> None:
        if self._has_begun:
            for addition in self._desk.take_fresh():
                self._route(addition)

    def _route(self, addition: Addition) -> None:
        number, shard = addition.key
        try:
            primary = self._tables[number].placement.primary(shard)
        except (LookupError, KeyError):
            self._desk.acknowledge(addition.key, addition.counter, lost_error(number, shard))
            return
        fields = {
            "table": number,
            "shard": shard,
            "client": self._client,
            "counter": addition.counter,
            "rows": addition.rows,
            "is_first": addition.is_first,
            "is_forwarded": False,
        }
        self._say(primary, Item(TableAddition, fields, addition.data.data))
        fault_points.reached("table.add.sent")

    def _add(self, message: TableAddition, data: Frame) -> None:
        """Apply an addition as the primary."""
        key = message.table, message.shard
        if key in self._copying:
            self._on_hold.setdefault(key, []).append((message, bytes(data)))
            return
        plan = self._tables.get(message.table)
        if plan is None:
            self._acknowledge(message.name, message, f"there is no table {message.table}")
            return
        if message.is_first and (plan.is_ready or message.name != self._view.names[0]):
            # Of a node that was the first one before; it counts, and changes nothing.
            message, data = message.model_copy(update={"rows": 0}), b""
        try:
            holders = plan.placement.holders[message.shard]
            if holders[:1] != (self._own.name,):
                raise ProtocolError(f"{self._own.name} is not the primary of this shard")
            self._apply(message, data)
        except (ProtocolError, IndexError) as error:
            self._acknowledge(message.name, message, str(error) or "no such shard")
            return
        fault_points.reached("table.add.applied")
        if not holders[1:]:
            self._acknowledge(message.name, message)
            return
        self._awaited[_awaited(message)] = message.name, set(holders[1:])
        fields = {**message.model_dump(include=_FORWARDED_FIELDS), "is_forwarded": True}
        for replica in holders[1:]:
            self._say(replica, Item(TableAddition, fields, data))
        fault_points.reached("table.add.forwarded")

    def _apply(self, message: TableAddition, data: Frame) -> None:
        copy = self._copies[message.table, message.shard]
        spec = self._tables[message.table].spec
        ids_bytes = 0 if message.rows is None else message.rows * ID_BYTES
        if ids_bytes > len(data) or (len(data) - ids_bytes) % spec.row_bytes:
            raise ProtocolError(f"an addition of {message.rows} rows in {len(data)} bytes")
        view = memoryview(data)
        ids = None if message.rows is None else np.frombuffer(view[:ids_bytes], np.int64)
        flat = np.frombuffer(view[ids_bytes:], spec.dtype)
        delta = flat.reshape(spec.shape((len(data) - ids_bytes) // spec.row_bytes))
        copy.apply(message.client, message.counter, ids, delta, is_first=message.is_first)

    def _replicate(self, message: TableAddition, data: Frame) -> None:
        """Apply an addition as a replica."""
        holders = self._tables[message.table].placement.holders
        is_sent_by_primary = message.shard < len(holders) and holders[message.shard][:1] == (
            message.name,
        )
        if not is_sent_by_primary or (message.table, message.shard) not in self._copies:
            raise ProtocolError("an addition was forwarded by another node than the primary")
        self._apply(message, data)
        fault_points.reached("table.add.replicated")
        fields = {
            "table": message.table,
            "shard": message.shard,
            "client": message.client,
            "counter": message.counter,
        }
        self._say(message.name, Item(TableReplicated, fields))

    def _replicated(self, message: TableReplicated) -> None:
        awaited = self._awaited.get(_awaited(message))
        if awaited is None:
            return
        client, replicas = awaited
        replicas.discard(message.name)
        if not replicas:
            del self._awaited[_awaited(message)]
            self._acknowledge(client, message)

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

    def _added(self, message: TableAdded) -> None:
        error = ProtocolError(f"an addition was refused: {message.refused}")
        key = message.table, message.shard
        self._desk.acknowledge(key, message.counter, error if message.refused else None)

    # State for new replicas

    def _send_state(self, key: Key, target: str) -> None:
        outgoing = self._out.get(target)
        if outgoing is not None:
            outgoing.put(self._state_items(key))

    def _state_items(self, key: Key) -> Iterator[Item]:
        for part, piece in self._copies[key].state.export():
            yield Item(TableState, {"table": key[0], "shard": key[1], "part": part}, piece)
            fault_points.reached("table.state.sent")

    def _take_state(self, message: TableState, data: Frame) -> None:
        copy = self._copies.get((message.table, message.shard))
        if copy is None or copy.incoming is None:
            return
        fields: dict[str, Any] = {"table": message.table, "shard": message.shard}
        try:
            is_whole = copy.incoming.feed(message.part, memoryview(data))
        except ProtocolError as error:
            log.warning("%s: the state of a shard is sent again: %s", self._own.name, error)
            copy.incoming = copy.state.importing()
            self._say(message.name, Item(TableStateTaken, {**fields, "is_whole": False}))
            return
        if is_whole:
            copy.incoming = None
            fault_points.reached("table.state.taken")
            self._say(message.name, Item(TableStateTaken, {**fields, "is_whole": True}))

    def _state_taken(self, message: TableStateTaken) -> None:
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
                self._add(held, data)

    # Reads

    def order_rows(self, request: int, ask: Ask, primary: str) -> None:
        """Ask the primary of a shard for rows."""
        if not self._has_begun or ask.key[0] not in self._tables:
            return
        fields = {
            "request": request,
            "table": ask.key[0],
            "shard": ask.key[1],
            "rows": None if ask.ids is None else len(ask.ids),
        }
        data = b"" if ask.ids is None else ask.ids.data.cast("B")
        if primary == self._own.name:
            self._get_own(request, ask)
        else:
            self._say(primary, Item(TableGet, fields, data))
            fault_points.reached("table.get.asked")

    def _get_own(self, request: int, ask: Ask) -> None:
        try:
            rows = self._rows(ask.key, ask.ids)
        except ProtocolError as error:
            self._desk.refused(request, str(error))
        else:
            self._desk.answered(request, 0, rows, 0)

    def _get(self, message: TableGet, data: Frame, reply: Reply | None) -> None:
        if reply is None:
            return
        key = message.table, message.shard
        try:
            ids = None if message.rows is None else np.frombuffer(data, np.int64)
            rows = self._rows(key, ids)
        except (ProtocolError, ValueError) as error:
            reason = str(error)[: limits.MAX_REASON_CHARACTERS]
            reply(TableRefused(request=message.request, reason=reason))
            return
        image = self._copies[key].image
        until = self._now + ANSWERS_KEPT_S
        if sum(answer.data.nbytes for answer in self._answers) < MAX_ANSWER_BYTES:
            self._answers.append(_Answer(message.request, reply, rows, image, until))
        self._send_answers()

    def _rows(self, key: Key, ids: np.ndarray | None) -> ByteArray:
        copy, plan = self._copies.get(key), self._tables.get(key[0])
        if copy is None or plan is None or plan.placement.primary(key[1]) != self._own.name:
            raise ProtocolError(f"{self._own.name} is not the primary of this shard")
        rows: ByteArray = copy.state.read(ids).reshape(-1).view(np.uint8)
        return rows

    def _send_answers(self) -> None:
        for _ in range(len(self._answers)):
            answer = self._answers.popleft()
            if not self._send_answer(answer) and self._now < answer.until:
                self._answers.append(answer)

    def _send_answer(self, answer: _Answer) -> bool:
        """Send what is taken; return whether that was all."""
        total = answer.data.nbytes
        while True:
            start = answer.sent_bytes
            piece = answer.data[start : start + limits.CHUNK_BYTES]
            got = TableGot(request=answer.request, start=start, nbytes=total, image=answer.image)
            if answer.reply(got, piece.data, is_lent=True) is None:
                return False
            answer.sent_bytes += piece.nbytes
            answer.until = self._now + ANSWERS_KEPT_S
            if answer.sent_bytes >= total:
                fault_points.reached("table.get.answered")
                return True

    # Barriers

    def arrive(self) -> None:
        """Say that this node has come to a barrier."""
        if not self._is_waiting:
            self._is_waiting = True
            self._arrived_at = self._now - ASK_AGAIN_S

    def give_up_barrier(self) -> None:
        """Say that it does not wait any more."""
        if self._is_waiting:
            self._is_waiting = False
            self._tell_barrier()

    def _wait_at_barrier(self) -> bool:
        if not self._is_waiting or not self._has_begun:
            return self._is_waiting
        if self._now - self._arrived_at >= ASK_AGAIN_S:
            self._arrived_at = self._now
            self._tell_barrier()
        others = [self._barriers.get(name, (0, False)) for name in self._out]
        here = self._passed
        if all(passed > here or (passed == here and waits) for passed, waits in others):
            self._passed, self._is_waiting = here + 1, False
            self._tell_barrier()
            self._publish()
        return self._is_waiting

    def _tell_barrier(self) -> None:
        fields = {"passed": self._passed, "is_waiting": self._is_waiting}
        self._say_to_all(Item(TableArrived, fields))

    # Doubts

    def _has_doubts(self) -> bool:
        """Tell whether a member has been silent for too long."""
        if self._group.is_outside:
            return False
        if self._elsewhere_at is not None and self._now - self._elsewhere_at > UNREACHABLE_S:
            self._elsewhere_at = None
            return True
        if not self._has_begun and self._began is not None:
            is_first = not self._has_part and self._view.since == 0
            return self._now - self._began > (self._startup_s if is_first else STALLED_S)
        return any(
            outgoing.stalled_s(self._now)
            > (STALLED_S if self._contacts.is_up(name) else UNREACHABLE_S)
            for name, outgoing in self._out.items()
        )


def _awaited(message: TableAddition | TableReplicated) -> Awaited:
    return message.table, message.shard, message.client, message.counter


def lost_error(number: int, shard: int) -> TableLostError:
    """Return what to raise for rows that nobody has any more."""
    return TableLostError(
        f"shard {shard} of table {number} is lost: all nodes that held a copy of it are gone "
        "(`replicas` says how many copies there are besides the first)"
    )
