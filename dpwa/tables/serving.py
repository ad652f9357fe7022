"""What the network threads do for tables: pass on what comes, and send answers."""

from __future__ import annotations

import numpy as np

from dpwa.node.serving.service import Listener, Reply, Service
from dpwa.node.serving.upload import Upload
from dpwa.tables.answers import Answers
from dpwa.tables.engine import Engine
from dpwa.tables.pending import PendingOperations
from dpwa.types import Frame
from dpwa.wire.tables import (
    FromMember,
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


class TableService(Service):
    """Hands messages of members to the engine."""

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

    def __init__(self, engine: Engine, answers: Answers, upload: Upload) -> None:
        self._engine = engine
        self._answers = answers
        self._upload = upload

    def receive(
        self,
        sender: bytes,  # noqa: ARG002
        message: FromMember,
        payload: Frame,
        reply: Reply,
    ) -> None:
        """Pass on one message."""
        self._engine.hear(message, payload, self._upload.shared(message.name, reply))

    def tick(self, now: float) -> bool:
        """Send answers to reads."""
        return self._answers.send(now)


class TableListener(Listener):
    """Takes in the answers to reads."""

    handles = (TableGot, TableRefused)

    def __init__(self, pending: PendingOperations, engine: Engine) -> None:
        self._pending = pending
        self._engine = engine

    def link_changed(self, peer: str, *, is_up: bool) -> None:  # noqa: ARG002
        """Pass on what happened to a connection."""
        self._engine.link_changed(peer)

    def receive(
        self,
        peer: str,  # noqa: ARG002
        message: TableGot | TableRefused,
        payload: Frame,
    ) -> None:
        """Take in an answer."""
        if isinstance(message, TableGot):
            data = np.frombuffer(payload, np.uint8)
            self._pending.answered(message.request, message.start, data, message.image)
        else:
            self._pending.refused(message.request, message.reason)
