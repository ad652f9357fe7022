"""Recorder keeps the events and samples of a node, sends them on request, and can log them."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dpwa.lifecycle import Closeable
from dpwa.node.node import Node
from dpwa.node.report import EndingReport, NodeReport, PaceReport, PeerReport
from dpwa.node.serving.service import Listener, Reply, Service
from dpwa.observe.events import EventLog, RunEvent, before_all_came, changes
from dpwa.observe.figures import GONE_S, NAMES, OTHER_NAMES, figures_of, figures_of_peer
from dpwa.observe.history import OTHER_NODE, SampleHistory
from dpwa.runtime import Runtime
from dpwa.types import JsonObject
from dpwa.wire.messages import pack
from dpwa.wire.watching import IDENTITY, MEMBER_ENTRY, PEER_ENTRY, AskHistory, HistoryMessage

if TYPE_CHECKING:
    from dpwa.observe.run_log import RunLog

log = logging.getLogger("dpwa.observe")

PERIOD_S = 1.0
EARLY_S = 0.02
# Samples with thousands of peers take milliseconds, so nodes with many peers take fewer samples.
# But a node whose log gets no line for 4 s counts as lost if other nodes cannot reach the node.
PEERS_PER_S = 512  # maximum number of peers that samples describe per second
MAX_PERIOD_S = 3.0
MAX_OTHERS = 256  # peers with a history
MAX_SAMPLES = 800  # samples in one answer, which has at most `limits.MAX_HISTORY_BYTES` in all
MAX_EVENTS_TOLD = 200  # events in one answer
MAX_PEERS = 512  # peers in one answer
MAX_AWAITED = 16  # in one answer, peers for which the node waits in `finish`
MAX_TEXT_CHARS = 500  # characters of the problem of the end
MAX_ONLOOKERS = 64  # commands that get a last answer when the node ends: those that asked last
SCHEMA = 1


class NodeRecord(Service):
    """The record of a node, as a service that takes samples and sends them on request.

    The service takes a sample every second. With more than `PEERS_PER_S` peers it takes fewer
    samples, but at least one every `MAX_PERIOD_S`.

    Args:
        condition: returns the report of the node, or `None` once the node is gone.
        wall: returns the seconds since the epoch.
        log: the run log into which the service also writes.
    """

    handles = (AskHistory,)

    def __init__(
        self,
        condition: Callable[[], NodeReport | None],
        wall: Callable[[], float],
        log: RunLog | None = None,
    ) -> None:
        self._condition = condition
        self._wall = wall
        self._log = log
        self._started = wall()
        self._lock = threading.Lock()  # any thread may take a sample
        self._ticked_at, self._period_s = -math.inf, PERIOD_S
        self._latest: NodeReport | None = None
        self._own = SampleHistory(len(NAMES))
        self._others: dict[str, SampleHistory] = {}
        self._events = EventLog()
        self._problem = ""  # the problem of the log at the last sample
        self._onlookers: dict[bytes, tuple[AskHistory, Reply]] = {}  # the last request of each
        self._ended: str | None = None  # the problem of the end. `None`: the node has not ended

    def tick(self, now: float) -> bool:
        """Take a sample if the sampling period has passed."""
        if now - self._ticked_at >= self._period_s - EARLY_S:
            self._ticked_at = now
            self.sample()
        return False

    def sample(self) -> None:
        """Take a sample now. Any thread may call this."""
        report = self._condition()
        if report is not None:
            with self._lock:
                self._take(report)

    def write_end(self) -> None:
        """Take the last sample, and log the totals with each peer and the node's final problem."""
        if self._log is None and not self._onlookers:
            return
        self._ended = self._problem_of_end()
        if self._log is not None:
            if self._latest is not None:
                self._log.write_peers(self._wall(), self._latest)
            self._log.write_end(self._ended)

    def _problem_of_end(self) -> str:
        self.sample()
        ending = None if self._latest is None else self._latest.ending
        return "" if ending is None else ending.problem

    def ended(self) -> bool:
        """Send a last answer to commands that watch the run, as perhaps no peer is left to ask."""
        if self._onlookers and self._ended is None:  # the program did not close the node
            self._ended = self._problem_of_end()
        for message, reply in self._onlookers.values():
            self._answer(message, reply)
        return bool(self._onlookers)

    def _take(self, report: NodeReport) -> None:
        at = self._wall()
        before = self._latest or before_all_came(report)
        self._latest = report
        self._period_s = min(max(PERIOD_S, len(report.peers) / PEERS_PER_S), MAX_PERIOD_S)
        values = figures_of(report)
        self._own.add_sample(at, values)
        self._hear_of(at, report.peers)
        events = self._events.add_events(changes(before, report, at))
        if self._log is not None:
            self._log.write_sample(at, values, report, events)
            problem, name = self._log.take_problem(), report.name
            if problem and problem != self._problem:  # a full disk must not fill the list
                self._events.add_events([RunEvent(at, name, "log_failed", name, problem)])
                log.warning("%s: the run log cannot be written (%s) [DPWA-W101]", name, problem)
            self._problem = problem

    def report(self) -> JsonObject:
        return {"problem": f"the run log cannot be written ({self._problem})" * bool(self._problem)}

    def handle(self, sender: bytes, message: AskHistory, reply: Reply) -> None:
        """Answer with samples after `message.since` and events after `message.events_after`."""
        if not message.of:
            self._onlookers.pop(sender, None)
            self._onlookers[sender] = message, reply
            if len(self._onlookers) > MAX_ONLOOKERS:
                del self._onlookers[next(iter(self._onlookers))]
        self._answer(message, reply)

    def _answer(self, message: AskHistory, reply: Reply) -> None:
        if self._latest is None:
            self.sample()
        report = self._latest
        if report is None:  # the node is gone
            return
        history = self._others.get(message.of) if message.of else self._own
        answer = {
            "schema": SCHEMA,
            **identity_of(report),
            "started": self._started,
            "now": self._wall(),
            "figures": OTHER_NAMES if message.of else NAMES,
            "samples": b"" if history is None else _packed(history, message.since),
            "last": -math.inf if history is None else history.last,
            "events": [
                [event.number, event.time, event.node, event.kind, event.about, event.text]
                for event in self._events.after(message.events_after, MAX_EVENTS_TOLD)
            ],
            "peers": [] if message.of else _entries(report.peers, PEER_ENTRY),
            "members": [] if message.of else _entries(report.members, MEMBER_ENTRY),
            "ending": None if message.of else _ending(report.ending),
            "sync": None if message.of else _sync(report.pace),
            "ended": None if message.of or self._ended is None else self._ended[:MAX_TEXT_CHARS],
        }
        reply(HistoryMessage(request=message.request), pack(answer))

    def _hear_of(self, at: float, peers: Sequence[PeerReport]) -> None:
        long_gone = self._long_gone(at, peers)
        for peer in peers:
            if not peer.is_alive:
                continue
            name, values = peer.name, figures_of_peer(peer)
            if name not in self._others:
                if all(math.isnan(value) for value in values) or not self._has_room(long_gone):
                    continue
                self._others[name] = SampleHistory(len(OTHER_NAMES), OTHER_NODE)
            self._others[name].add_sample(at, values)

    def _long_gone(self, at: float, peers: Sequence[PeerReport]) -> Iterator[str]:
        """Yield the peers that have been gone for `GONE_S`, the longest gone first."""
        there = {peer.name for peer in peers if not peer.is_gone}
        last = {name: other.last for name, other in self._others.items() if name not in there}
        gone = [name for name, last_at in last.items() if at - last_at >= GONE_S]
        yield from sorted(gone, key=last.__getitem__)

    def _has_room(self, long_gone: Iterator[str]) -> bool:
        """Return whether one more peer's history fits. If needed, remove the longest gone peer."""
        if len(self._others) < MAX_OTHERS:
            return True
        longest = next(long_gone, None)
        if longest is None:
            return False
        del self._others[longest]
        return True


def wall_from(runtime: Runtime) -> Callable[[], float]:
    """Return a clock of seconds since the epoch, which advances with the monotonic clock.

    So no sample is lost or gets a wrong time if the machine's clock is set.
    """
    wall, began = runtime.wall_time(), runtime.now()
    return lambda: wall + runtime.now() - began


class Recorder(Closeable):
    """Records the samples and events of a node until the node is closed.

    Args:
        node: the node to record.

    Raises:
        UserError: the folder of the run log is not writable.
    """

    def __init__(self, node: Node) -> None:
        config = node.config
        self._log: RunLog | None = None
        if config.run_log:
            from dpwa.observe.run_log import RunLog, told_of_run

            self._log = RunLog(config.run_log, identity_of(node.condition()) | told_of_run(config))
        self._owner, self._runtime = os.getpid(), node.runtime
        self.record = NodeRecord(node.weak_condition, wall_from(node.runtime), self._log)
        node.attach(self.record, Listener())
        node.describe("run_log", self.record.report)

    def close(self) -> None:
        """Record the end of the node, for the run log and for watching commands. Idempotent."""
        if os.getpid() == self._owner:
            with self._runtime.uninterrupted():
                self.record.write_end()
                if self._log is not None:
                    self._log.close()


def _packed(history: SampleHistory, since: float) -> bytes:
    return history.since(since, MAX_SAMPLES).astype("<f8").tobytes()


def identity_of(report: NodeReport) -> JsonObject:
    """Return the fields of a report that identify the node and its process."""
    return {key: getattr(report, key) for key in IDENTITY}


def _entries(told: Sequence[object], keys: Sequence[str]) -> list[list[Any]]:
    return [[getattr(each, key) for key in keys] for each in told[:MAX_PEERS]]


def _ending(ending: EndingReport | None) -> list[Any] | None:
    """Return [is_over, peers that the node waits for], or `None` while the node trains."""
    return None if ending is None else [ending.is_over, ending.waits_for[:MAX_AWAITED]]


def _sync(pace: PaceReport | None) -> list[Any] | None:
    """Return the values of a `SyncEntry`, or `None` if the node averages no gradients."""
    return None if pace is None else [pace.in_sync[:MAX_PEERS], pace.out_of_sync_s]
