"""Tables: creates and owns all tables of a node."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar, get_args

import numpy as np

from dpwa.collectives.contacts import Contacts
from dpwa.collectives.group import Group
from dpwa.connection import DpwaConnection
from dpwa.errors import DpwaError, UserError
from dpwa.lifecycle import Closeable, finalize
from dpwa.node.serving.service import Listener, Reply, Service
from dpwa.node.serving.upload import Upload
from dpwa.policy.group_views import Member
from dpwa.tables.channels import Tell
from dpwa.tables.engine import Engine, Settings
from dpwa.tables.operations import User
from dpwa.tables.pending import PendingOperations
from dpwa.tables.requests import Answers
from dpwa.tables.rows import as_values
from dpwa.tables.specs import TableSpec, make_spec
from dpwa.tables.table import ArrayTable, KeyValueTable
from dpwa.transport.link import LinkState
from dpwa.types import Frame
from dpwa.wire import limits
from dpwa.wire.messages import Message
from dpwa.wire.tables import FromMember, TableGot, TableMessage, TableRefused

log = logging.getLogger("dpwa.tables")

T = TypeVar("T")

TAG = "dpwa.tables"

_USED: weakref.WeakSet[DpwaConnection] = weakref.WeakSet()


class Tables(Closeable):
    """The tables of one node, which it shares with all other nodes that make the same tables.

    All nodes make the same tables in the same order. The rows of a table are divided into shards,
    which the nodes themselves hold, without a server. Each shard has `replicas` further copies on
    other nodes. If a node dies, the others continue, and no acknowledged addition is lost.

    Args:
        connection: the connection of this node.
        sync: whether all nodes call `add` and `get` in the same order and equally often. Then the
            i-th `get` returns the same values on all nodes, including the i-th additions of all.
        timeout_s: the maximum time of each call. By default, it is the setting
            `collective_timeout_s`.

    Raises:
        UserError: the connection has tables already.
    """

    def __init__(
        self, connection: DpwaConnection, *, sync: bool = False, timeout_s: float | None = None
    ) -> None:
        node, collectives = connection.node, connection.collectives
        if connection in _USED:
            raise UserError(
                f"node {node.name!r} already has a Tables object. A node can make only one, even "
                "after `close` [DPWA-E170]"
            )
        _USED.add(connection)
        self._connection = connection  # keeps the connection alive as long as this object
        self._contacts = collectives.contacts
        self._sync = sync
        self._made = 0
        self._group = group = collectives.group(TAG)
        group.admit_at_once()
        contacts, runtime = collectives.contacts, node.runtime
        self.runtime, self.own_life = runtime, contacts.own
        patience_s = node.config.collective_timeout_s if timeout_s is None else timeout_s
        contacts.offer_memory()
        pending = PendingOperations(group.view, runtime)
        answers = Answers()
        answer = partial(node.rx.call_soon, answers.add_answer)
        settings = Settings(runtime, patience_s, answer, node.rx.wake)
        engine = Engine(
            pending, group, contacts, _counted(node.tx.send_message, contacts), settings
        )
        with group.lock:  # so that no view starts between these two calls
            group.watch(engine.view_changed)
            engine.view_changed(group.view)
        self._user = User(node, pending, engine, group, contacts)
        self._user.timeout_s = patience_s
        engine.start()
        finalize(self._user, _retire, engine, group)
        service = TableService(engine, answers, node.upload, contacts)
        node.attach(service, TableListener(pending, engine))

    def array(
        self, size: int, init_value: Any = None, *, dtype: str = "float32", **options: Any
    ) -> ArrayTable:
        """Make a vector.

        Args:
            size: the number of values.
            init_value: the first values. Only those of the first node are used. `None` means zeros.
            dtype: float32 or float64.
            options: `updater`, `options` (of the updater), `replicas`.

        Raises:
            UserError: an argument is invalid.
            MismatchError: another node has made a different table with this number.
            TableTimeoutError: the first node does not make the table in time.
        """
        return self._array(make_spec(rows=size, dtype=dtype, **options), init_value)

    def matrix(
        self,
        rows: int,
        columns: int,
        init_value: Any = None,
        *,
        dtype: str = "float32",
        **options: Any,
    ) -> ArrayTable:
        """Make a matrix. See `array`."""
        spec = make_spec(rows=rows, columns=columns, dtype=dtype, **options)
        return self._array(spec, init_value)

    def key_value(
        self, columns: int | None = None, *, dtype: str = "float32", **options: Any
    ) -> KeyValueTable:
        """Make a table whose rows have keys. See `array`.

        Args:
            columns: the number of columns of a row. `None` means that a row is one number.
            dtype: float32 or float64.
            options: the options of `array`, and `default`.
        """
        spec = make_spec(kind="key_value", columns=columns, dtype=dtype, **options)
        return self._counted(
            lambda number: KeyValueTable(self._user, number, spec, None, is_in_step=self._sync)
        )

    def wait_for_all(self) -> None:
        """Wait until all nodes use tables."""
        self._user.present(self._user.deadline())

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the current members, in the order of ranks."""
        return self._group.view.names

    @property
    def lives(self) -> frozenset[Member] | None:
        """The processes of the current members. A restarted node is a different process.

        `None` as long as the process of a member is unknown.
        """
        view, contacts = self._group.view, self._contacts
        met = {Member(name, contacts.incarnation(name)) for name in view.names}
        lives = frozenset(m for m in {contacts.own, *met, *view.members} if m.incarnation)
        return lives if {life.name for life in lives} >= set(view.names) else None

    @property
    def timeout_s(self) -> float:
        """The maximum time of each call."""
        return self._user.timeout_s

    def barrier(self, timeout_s: float | None = None) -> None:
        """Wait until all nodes have called this. A later `get` includes every earlier addition.

        Raises:
            TableTimeoutError: a node has not called `barrier` in time.
        """
        self._user.barrier(self._user.deadline(timeout_s))
        self._user.waited_at = None

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context manager for code that waits for other nodes."""
        return self._connection.node.rx.unthrottled()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all copies of the shards contain all additions of this node."""
        self._user.flush(None, self._user.deadline(timeout_s))

    def close(self) -> None:
        """Wait until all shard copies contain all additions. Then leave the group of nodes.

        In a forked child process, this does nothing.
        """
        if self._user.is_closed or not self._connection.node.is_own:
            return
        try:
            self._user.flush(None, self._user.deadline())
        except DpwaError as error:
            log.warning("the last additions to the tables may be lost: %s [DPWA-W036]", error.text)
        finally:
            self._user.close()
            self._group.leave_group()

    def _counted(self, make: Callable[[int], T]) -> T:
        """Make and return the next table. After an error, the next call uses the same number."""
        self._user.check_open()
        if self._made >= limits.MAX_TABLES:
            raise UserError(f"a node can have at most {limits.MAX_TABLES} tables [DPWA-E171]")
        table = make(self._made)
        self._made += 1
        return table

    def _array(self, spec: TableSpec, init_value: Any) -> ArrayTable:
        first = None
        if init_value is not None:
            first = as_values(init_value, spec.shape(spec.rows), np.dtype(spec.dtype))
        return self._counted(
            lambda number: ArrayTable(self._user, number, spec, first, is_in_step=self._sync)
        )


def _counted(tell: Tell, contacts: Contacts) -> Tell:
    """Return a wrapper of `tell` that also counts the bytes sent to each member."""

    def tell_and_count(member: str, message: Message, data: Frame | None) -> None:
        contacts.count(member, sent=len(data or b""))
        tell(member, message, data)

    return tell_and_count


def _retire(engine: Engine, group: Group) -> None:
    """Stop the engine and leave the group when the tables are garbage-collected."""
    engine.stop()
    group.leave_group()


class TableService(Service):
    """Passes messages of members to the engine."""

    handles = tuple(kind for kind in get_args(TableMessage) if issubclass(kind, FromMember))

    def __init__(
        self, engine: Engine, answers: Answers, upload: Upload, contacts: Contacts
    ) -> None:
        self._contacts = contacts
        self._engine = engine
        self._answers = answers
        self._upload = upload

    def receive(self, sender: bytes, message: FromMember, payload: Frame, reply: Reply) -> None:  # noqa: ARG002
        self._contacts.count(message.name, received=len(payload))
        self._engine.receive_message(message, payload, self._upload.shared(message.name, reply))

    def tick(self, now: float) -> bool:
        return self._answers.send_answers(now)


class TableListener(Listener):
    """Receives the answers to reads."""

    handles = (TableGot, TableRefused)

    def __init__(self, pending: PendingOperations, engine: Engine) -> None:
        self._pending = pending
        self._engine = engine

    def link_changed(self, peer: str, state: LinkState) -> None:  # noqa: ARG002
        self._engine.link_changed(peer)

    def receive(self, peer: str, message: TableGot | TableRefused, payload: Frame) -> None:  # noqa: ARG002
        if isinstance(message, TableGot):
            data = np.frombuffer(payload, np.uint8)
            self._pending.answered(message.request, message.start, data, message.image)
        else:
            self._pending.refused(message.request, message.reason)
