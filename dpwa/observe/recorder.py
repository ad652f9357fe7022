"""Recorder: keeps what happens to a node, for whoever asks, and writes it down if wanted."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from dpwa.clock import Clock, SystemClock
from dpwa.lifecycle import Closeable, uninterrupted
from dpwa.node.node import Node
from dpwa.node.serving.service import Listener, Reply, Service
from dpwa.observe.changes import changes
from dpwa.observe.events import EventLog, RunEvent
from dpwa.observe.figures import (
    NAMES,
    OTHER_NAMES,
    figures_of,
    figures_of_peer,
    is_alive,
)
from dpwa.observe.history import OTHER_NODE, SampleHistory
from dpwa.observe.run_log import RunLog
from dpwa.types import JsonObject
from dpwa.wire.messages import pack
from dpwa.wire.watching import AskHistory, HistoryMessage

PERIOD_S = 1.0
EARLY_S = 0.02
MOST_OTHERS = 256  # nodes of which a history is kept
MOST_SAMPLES = 800  # in one answer, which has at most `limits.MAX_HISTORY_BYTES` in all
MOST_EVENTS_TOLD = 200  # likewise
MOST_PEERS = 512  # in one answer
SCHEMA = 1


class NodeRecord(Service):
    """What a node has recorded; a service that takes a sample every second and tells of it.

    Args:
        report: describes the node; `{}` once it is gone.
        told: what stands in each answer, beside what `report` has.
        clock: time source.
        wall: seconds since the epoch; by default those of the start, and as `clock` goes on.
        log: where it is written down, too.
    """

    handles = (AskHistory,)

    def __init__(
        self,
        report: Callable[[], JsonObject],
        told: JsonObject,
        clock: Clock,
        wall: Callable[[], float] | None = None,
        log: RunLog | None = None,
    ) -> None:
        self._report = report
        self._clock = clock
        self._wall = wall or wall_from(clock)
        self._log = log
        self._told = {**told, "started": self._wall()}
        self._lock = threading.Lock()  # of `sample`: the last one is taken by whoever closes it
        self._due = -math.inf
        self._latest: JsonObject = {}
        self._own = SampleHistory(len(NAMES))
        self._others: dict[str, SampleHistory] = {}
        self._events = EventLog()
        self._problem = ""  # of the log, at the last sample

    def tick(self, now: float) -> bool:
        """Take a sample if it is time."""
        if now >= self._due:
            self._due = now + PERIOD_S - EARLY_S
            self.sample()
        return False

    def sample(self) -> None:
        """Take a sample now; from any thread."""
        report = self._report()
        if not report:
            return
        with self._lock:
            self._take(report)

    def end(self) -> None:
        """Take the last sample, and write down what was merged of whom."""
        self.sample()
        if self._log is not None and self._latest:
            self._log.write_peers(self._wall(), self._latest)

    def _take(self, report: JsonObject) -> None:
        at, before = self._wall(), self._latest
        self._latest = report
        values = figures_of(report)
        self._own.add(at, values)
        for peer in report["peers"]:
            self._hear_of(at, peer)
        events = self._events.add(changes(before, report, at)) if before else []
        if self._log is not None:
            self._log.write_sample(at, values, report, events)
            problem, name = self._log.take_problem(), report["name"]
            if problem and problem != self._problem:  # a full disk must not fill the list
                self._events.add([RunEvent(at, name, "log_failed", name, problem)])
            self._problem = problem

    def handle(self, sender: bytes, message: AskHistory, reply: Reply) -> None:  # noqa: ARG002
        """Tell what came after that."""
        if not self._latest:
            self.sample()
        history = self._others.get(message.of) if message.of else self._own
        answer = {
            "schema": SCHEMA,
            **self._told,
            "now": self._wall(),
            "figures": OTHER_NAMES if message.of else NAMES,
            "samples": b"" if history is None else _packed(history, message.since),
            "last": -math.inf if history is None else history.last,
            "events": [
                [event.number, event.time, event.node, event.kind, event.about, event.text]
                for event in self._events.after(message.events_after, MOST_EVENTS_TOLD)
            ],
            "peers": [] if message.of else _peers(self._latest),
            "members": [] if message.of else _members(self._latest),
        }
        reply(HistoryMessage(request=message.request), pack(answer))

    @property
    def nbytes(self) -> int:
        """Memory of the samples."""
        return self._own.nbytes + sum(other.nbytes for other in self._others.values())

    def _hear_of(self, at: float, peer: JsonObject) -> None:
        name, values = peer["name"], figures_of_peer(peer)
        if name not in self._others:
            if len(self._others) >= MOST_OTHERS or all(math.isnan(value) for value in values):
                return
            self._others[name] = SampleHistory(len(OTHER_NAMES), OTHER_NODE)
        if is_alive(peer):
            self._others[name].add(at, values)


def wall_from(clock: Clock) -> Callable[[], float]:
    """Return seconds since the epoch as they are now, and then go on with a clock.

    Else samples would be lost, or would be of no time, when somebody sets the machine's clock.
    """
    wall, began = time.time(), clock.now()
    return lambda: wall + clock.now() - began


class Recorder(Closeable):
    """Records what happens to a node, as long as it lives.

    Args:
        node: which one.
        clock: time source.

    Raises:
        UserError: the folder of the run log cannot be written to.
    """

    def __init__(self, node: Node, clock: Clock | None = None) -> None:
        config = node.config
        told = {
            "name": node.name,
            "endpoint": node.endpoint,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "algorithm": config.algorithm,
            "topology": config.topology,
            "group": config.group_of(node.name),
        }
        self._log = RunLog(config.run_log, told) if config.run_log else None
        self._owner = os.getpid()
        self.record = NodeRecord(node.weak_report, told, clock or SystemClock(), log=self._log)
        node.attach(self.record, Listener())

    def close(self) -> None:
        """Write down what happened last; idempotent."""
        if self._log is not None and os.getpid() == self._owner:
            with uninterrupted():
                self.record.end()
                self._log.close()


def _packed(history: SampleHistory, since: float) -> bytes:
    return history.since(since, MOST_SAMPLES).astype("<f8").tobytes()


def _peers(report: JsonObject) -> list[list[Any]]:
    """Return what a view needs to know of each peer, a list each; see `watch.PeerRow`."""
    return [
        [
            peer["name"],
            peer["endpoint"],
            peer["health"],
            peer["quarantined"],
            peer["score"],
            peer["merges"],
            peer.get("merged_s"),
            peer.get("staleness"),
            peer["bytes_received"],
            peer["bytes_sent"],
            peer["latency_ms"],
            peer["bandwidth_mbps"],
            peer["heard_s"],
        ]
        for peer in report["peers"][:MOST_PEERS]
    ]


def _members(report: JsonObject) -> list[list[str]]:
    membership: JsonObject = report.get("membership") or {}
    entries = membership.get("members", [])[:MOST_PEERS]
    return [[entry["name"], entry["endpoint"], entry["status"]] for entry in entries]
