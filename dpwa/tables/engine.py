"""Engine: the thread that reads and changes this node's copies of table shards.

A membership view starts when all members have sent each other their reports. Until then, the engine
accepts no other message. A node that is no longer in the view can acknowledge nothing, because its
replicas ignore its messages.

The engine is a separate thread because large additions take long, and meanwhile the RxThread must
vote on members.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from dpwa import fault_points
from dpwa.clock import AwakeClock
from dpwa.collectives.admission import ASK_EVERY_S, MEET_S
from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import Group
from dpwa.errors import ProtocolError
from dpwa.node.serving.service import Reply
from dpwa.policy import ballots
from dpwa.policy.group_views import GroupView
from dpwa.runtime import Runtime
from dpwa.tables.barriers import Barriers
from dpwa.tables.channels import (
    ACKNOWLEDGE_AFTER_S,
    UNREACHABLE_S,
    WINDOW,
    Item,
    ReliableChannels,
    Tell,
)
from dpwa.tables.directory import Told, new_plan, plans, unpack_told
from dpwa.tables.pending import PendingOperations, PendingRead, Present
from dpwa.tables.replication import Replication
from dpwa.tables.requests import ReadAnswer, Requests
from dpwa.tables.shard_store import ShardStore
from dpwa.tables.specs import TableSpec, difference, unpack_spec
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.tables import (
    FromMember,
    Numbered,
    TableAdded,
    TableAddition,
    TableArrived,
    TableGet,
    TableHoldings,
    TableMade,
    TableReady,
    TableState,
    TableStateTaken,
)

log = logging.getLogger("dpwa.tables")

DOUBT_EVERY_S = 0.5
IDLE_S, BUSY_S = 1.0, 0.01
LOOK_EVERY_S = ACKNOWLEDGE_AFTER_S  # between two looks at the group and its members
STOOD_STILL_S = 0.9 * ballots.STALLED_S  # other nodes may suspect this node after such a stop
DOUBTFUL_FOR_S = 2 * ballots.STALLED_S
RECONNECTED_S = 2.0  # time to reconnect after a stop, which may have broken all connections


@dataclass(frozen=True)
class Settings:
    """The settings of an `Engine`."""

    runtime: Runtime
    startup_s: float  # maximum time that callers wait for all nodes at the start
    answer: Callable[[ReadAnswer], None]  # sends the answer to a read
    wake: Callable[[], None]  # makes the RxThread check for a ballot


class Engine:
    """Executes the reads and additions of other members, and of the program on this node."""

    def __init__(
        self,
        pending: PendingOperations,
        group: Group,
        contacts: Contacts,  # the connections to members, and their shared memory
        tell: Tell,
        settings: Settings,
    ) -> None:
        own, runtime = contacts.own, settings.runtime
        self._thread = runtime.thread(self._run, f"dpwa-tables-{own.name}")
        self._own = own.name
        self._pending = pending
        self._group = group
        self._settings = settings
        self._inbox: SimpleQueue[Callable[[], None] | None] = runtime.queue()
        self._most_messages = 2 * WINDOW * (len(group.ranks) or limits.MAX_MEMBERS)
        self._mail = ReliableChannels(group, contacts, tell)
        self._store = ShardStore(contacts)
        self.requests = Requests(own, pending, self._store, self._say, settings.answer)
        self._replication = Replication(self._store, self._mail, self._say, group.note_work)
        self.barriers = Barriers(own.name, self._mail.say_to_all)
        self._exits = 0
        self._told: dict[str, Told] = {}  # the reports of members in this view
        self._began: float | None = None
        self._has_begun = False
        self._is_first_view = True  # whether no view has started yet
        self._has_waited = False  # whether a call has timed out because some nodes are missing
        self._has_company = bool(group.ranks)  # whether other nodes exist, as far as known
        self._was_left_out = self._has_given_up = False
        self._was_counted_on = False  # whether members that excluded this node had met it
        self._awake = AwakeClock(runtime, IDLE_S, STOOD_STILL_S)
        self._doubted_at = self._asked_at = self._looked_at = -math.inf
        self._patience_s = IDLE_S  # maximum time until the next turn
        self._is_stopping = False

    # On any thread

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def view_changed(self, view: GroupView) -> None:
        """Change to a new membership view. Called with the lock of the group held."""
        self.submit(partial(self._follow, view, self._group.exits))

    def link_changed(self, peer: str) -> None:
        self.submit(partial(self._mail.link_changed, peer))

    def receive_message(self, message: FromMember, payload: Frame, reply: Reply) -> None:
        """Enqueue a member's message. A full queue drops the message, and the sender repeats it."""
        if self._inbox.qsize() < self._most_messages and not self._is_stopping:
            self.submit(partial(self._receive, message, payload, reply))

    def submit(self, act: Callable[[], None]) -> None:
        self._inbox.put(act)

    def wake(self) -> None:
        """Wake the engine's thread, so that it applies queued additions of this node."""
        self._inbox.put(None)

    def stop(self) -> None:
        """Ask the engine's thread to end. When the thread ends, it frees all memory."""
        self._is_stopping = True
        self.wake()

    # On this thread

    def _run(self) -> None:
        while not self._is_stopping:
            with suppress(Empty):
                self._do(self._inbox.get(timeout=self._patience_s))
                for _ in range(self._inbox.qsize()):
                    self._do(self._inbox.get_nowait())
            self._patience_s = BUSY_S  # also after an error
            self._do(self._go_on)
        self._store.clear()
        self._pending.memories = {}

    def _do(self, act: Callable[[], None] | None) -> None:
        """Call a function and log its errors, because no message may end the engine's thread."""
        if act is None or self._is_stopping:
            return
        self._awake.note_awake()
        self._mail.now = self._awake.now()
        try:
            act()
        except ProtocolError as error:
            log.debug("ignored a message: %s", error)
        except Exception:
            log.exception(
                "tables: an unexpected error occurred, and the tables continue. Report this bug"
                " [DPWA-W019]"
            )

    @property
    def _has_stood_still(self) -> bool:
        """Whether this process was recently suspended for longer than `STOOD_STILL_S`."""
        return self._mail.now - self._awake.woke_at < DOUBTFUL_FOR_S

    def _go_on(self) -> None:
        now = self._mail.now
        if not self._has_begun:
            self._start_if_told()
            self._mail.want_in_vain()
        if self._has_begun:
            for addition in self._pending.take_fresh():
                self.requests.route(addition)
            if self.barriers.advance(now):
                self._publish()
        has_looked = now - self._looked_at >= LOOK_EVERY_S
        if has_looked:
            self._looked_at = now
            self._look()
        is_under_way = self._mail.pump()
        is_waiting = self.barriers.is_waiting or not self._has_begun or self._mail.is_in_doubt
        if not is_waiting and not self._group.is_evicted:
            self._patience_s = LOOK_EVERY_S if is_under_way or not has_looked else IDLE_S

    def _look(self) -> None:
        """Look at the group and its members. Act on a change that no message has reported."""
        now = self._mail.now
        if self._has_begun:
            if self._group.look_out():
                self._has_given_up = True
                if self.requests.acknowledged and self._has_company:
                    self._pending.note_parted(self._own)
            if self._replication.ask_again():
                self._publish()
        if self._group.is_evicted and now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            self._group.ask_to_join()
        if now - self._doubted_at >= DOUBT_EVERY_S and self._has_doubts():
            self._doubted_at = now
            log.info("%s: a member does not answer, so the group votes on it", self._own)
            self._group.doubt()
            self._settings.wake()

    def _has_doubts(self) -> bool:
        if self._group.is_evicted or self._began is None:
            return False
        if self._mail.is_elsewhere():
            return True
        unreachable_s = RECONNECTED_S if self._has_stood_still else UNREACHABLE_S
        if self._has_begun:
            return self._mail.has_silent_members(unreachable_s)
        waited_s, names = self._mail.now - self._began, set(self._mail.view.names)
        if self._mail.view.since or not self._is_first_view:
            return waited_s > ballots.STALLED_S and not names <= set(self._told)
        if self._has_waited and waited_s > self._settings.startup_s:
            return True
        left = names - self._mail.lost(unreachable_s)  # nodes that never connected may still come
        return left < names and left <= set(self._told) and not self._is_minority(left)

    # Views

    def _follow(self, view: GroupView, exits: int) -> None:
        if self._began is not None and view == self._mail.view:
            return
        if exits != self._exits:  # the other nodes have continued without this node
            self._exits = exits
            if self._has_given_up:  # this node adopts the tables of a larger part of the cluster
                self._store.clear()
            self._store.left_out()
            self._has_given_up = False
            self._was_left_out = self._has_company
            self._was_counted_on |= len(self._told) > 1
            self.requests.acknowledged = 0
        if not set(self._mail.view.names) <= set(view.names):
            self.requests.acknowledged = 0
            if self._has_stood_still and len(view.names) == 1:  # no other member can report it
                self._pending.note_stood_still(self._own, self._mail.others)
        self._has_company |= len(view.names) > 1
        self._begin(view)

    def _begin(self, view: GroupView) -> None:
        self._mail.begin_view(view)
        self._replication.begin_view()
        self.requests.begin_view()
        self._store.drop_incomplete()
        self._began, self._has_begun, self._told = self._mail.now, False, {}
        self._publish()
        own = Told(self._store.known(), self.barriers.known, self.barriers.is_waiting)
        self._mail.say_to_all(Item(TableHoldings, {}, own.pack()))
        fault_points.reached("table.holdings.told")
        self._hear_told(self._own, own)

    def _hear_told(self, name: str, told: Told) -> None:
        self._told[name] = told
        self._start_if_told()

    def _start_if_told(self) -> None:
        if self._began is None or not set(self._mail.view.names) <= set(self._told):
            return
        if not self._is_first_view or self._may_be_first(self._began):
            self._start()

    def _may_be_first(self, began: float) -> bool:
        """Return whether this node may start its first membership view now.

        If other nodes have started a different view, the changes in this node's view get lost.
        """
        view = self._mail.view
        if self._group.is_outranked or self._is_minority(view.names):
            self._group.look_out()
        if self._group.is_evicted or self._is_minority(view.names):
            return False
        meet_s = min(MEET_S, self._settings.startup_s / 2)
        return not self._group.may_meet() or self._mail.now - began >= meet_s

    def _is_minority(self, names: Collection[str]) -> bool:
        """Return whether `names` are at most half of all nodes, so other nodes could start, too.

        After a call has timed out, a minority may start.
        """
        return 2 * len(names) <= len(self._group.ranks) and not self._has_waited

    def _start(self) -> None:
        """Start the membership view, because all members have sent their reports."""
        view = self._mail.view
        self._has_begun, self._is_first_view = True, False
        is_old = self.barriers.known is not None or self._has_stood_still or self._was_counted_on
        missed = self.barriers.missed(self._told)
        if self._was_left_out and is_old and missed:
            self._pending.note_missed_barriers(self._own, missed)
        knowing = [t.needed for one in self._told.values() for t in one.tables.values()]
        if self._was_left_out and knowing and not any(knowing):  # no member knows these additions
            self._pending.note_stood_still(self._own, self._group.others)
        self._was_left_out = False
        if len(view.names) > 1:  # these nodes have not continued without this node
            self._awake.woke_at = -math.inf
        self.barriers.begin_view(self._told)
        for number, plan in plans(view.names, self._told, view.since).items():
            self._store.settle(number, plan)
            self._replication.copy(number, plan, self._own)
        self._publish()
        self._mail.want_all()
        for addition in self._pending.take_again():
            self.requests.route(addition)
        log.info("%s: tables among %s", self._own, ", ".join(view.names))

    def _publish(self) -> None:
        self._pending.memories = self._store.memories()
        tables, passed = dict(self._store.tables), self.barriers.passed
        self._pending.set_present(Present(self._mail.view, self._has_begun, tables, passed))

    # Messages

    def _receive(self, message: FromMember, payload: Frame, reply: Reply) -> None:
        incoming = self._mail.admit(message)
        if incoming is None or not isinstance(message, Numbered) or not self._can_take(message):
            return
        data = incoming.accept_message(message, payload, self._store.most_bytes(message))
        if data is not None:
            self._take(message, data, reply)

    def _can_take(self, message: Numbered) -> bool:
        """Return whether this node can handle a message now. If not, the sender repeats it."""
        if isinstance(message, TableAddition | TableGet):
            # The sender may know the table before this node does, because the node that makes the
            # table notifies nodes in turn.
            return self._has_begun and message.table in self._store.tables
        return self._has_begun or isinstance(message, TableHoldings)

    def _say(self, name: str, item: Item) -> None:
        if name == self._own:
            self._take(self._mail.to_self(item), item.data or b"", None)
        else:
            self._mail.say(name, item)

    def _take(self, message: Numbered, data: Frame, reply: Reply | None) -> None:
        match message:
            case TableHoldings():
                self._hear_told(message.name, unpack_told(data))
            case TableMade():
                self._make(message.table, unpack_spec(data), message.shards)
            case TableReady():
                self._be_ready(message.table)
            case TableArrived():
                self.barriers.record_passed(
                    message.name, message.passed, is_waiting=message.is_waiting
                )
            case TableAddition(contained=0):
                self._replication.receive_addition(message, data)
            case TableAddition():
                self._replication.replicate(message, data)
            case TableAdded():
                self.requests.added(message)
            case TableState():
                self._replication.take_state(message, data)
            case TableStateTaken():
                self._replication.state_taken(message)
            case TableGet():
                self.requests.get(message, data, reply)

    # Requests of users

    def make(self, number: int, spec: TableSpec) -> None:
        """Make table `number` if this node does not have it, and notify all other members."""
        if self._has_begun:
            plan = self._store.tables.get(number)
            names = self._group.ranks or self._group.view.names
            shards = len(names) if plan is None else plan.shards
            made = Item(TableMade, {"table": number, "shards": shards}, spec.pack())
            self._mail.say_to_all(made)
            fault_points.reached("table.made")
            self._make(number, spec, shards, is_own=True)

    def announce(self, number: int) -> None:
        """If this is the first member, notify all members that a table has its initial values."""
        if self._has_begun and self._mail.view.names[0] == self._own:
            self._mail.say_to_all(Item(TableReady, {"table": number}))
            fault_points.reached("table.ready")
            self._be_ready(number)

    def arrive(self) -> None:
        self.barriers.arrive(self._mail.now)

    def wait_no_longer(self) -> None:
        """Let tables start without missing nodes after `startup_s`, since a call has timed out."""
        self._has_waited = True

    def request_rows(self, request: int, ask: PendingRead, primary: str) -> None:
        """Request rows of a shard from its primary."""
        if self._has_begun:
            self.requests.request_rows(request, ask, primary)

    # Tables

    def _make(self, number: int, spec: TableSpec, shards: int, *, is_own: bool = False) -> None:
        plan = self._store.tables.get(number)
        if plan is not None:
            if plan.spec != spec:
                here, there = (spec, plan.spec) if is_own else (plan.spec, spec)
                self._pending.note_mismatch(number, difference(here, there))
            return
        view = self._mail.view
        self._store.settle(number, new_plan(spec, shards, view.names, view.since))
        self._publish()
        self._mail.want_all()  # messages for this table may have come before

    def _be_ready(self, number: int) -> None:
        if self._store.be_ready(number):
            self._publish()
