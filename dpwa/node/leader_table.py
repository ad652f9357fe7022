"""LeaderTable: a node's knowledge of the losses and updates of all nodes, for all its threads."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Collection, Iterable

from dpwa.errors import ProtocolError
from dpwa.policy.leaders import LossReport, LossReports, RunningLoss
from dpwa.runtime import Runtime
from dpwa.types import JsonObject
from dpwa.wire.fields import News
from dpwa.wire.limits import MAX_NEWS
from dpwa.wire.messages import pack, unpack_news

MADE_EVERY_S = 0.002


class LeaderTable:
    """Receives loss reports and forwards them. Any thread may call every method."""

    def __init__(
        self,
        name: str,
        group: str,  # empty for none
        loss_window: int,  # number of updates whose mean loss counts
        silence_s: float,  # a node of which no news arrives for so long cannot be the leader
        most: int,  # maximum number of other nodes to remember
        runtime: Runtime,
        rng: random.Random,
    ) -> None:
        self._group = group
        self._clock = runtime
        self._rng = rng
        # Reentrant, because a signal handler may close the node while its thread holds the lock.
        self._lock = threading.RLock()
        self._loss = RunningLoss(loss_window)
        # Of the wall clock, because the number must be higher after a restart of this node.
        self._reports = LossReports(name, group, int(runtime.wall_time() * 1000), silence_s, most)
        self._news: News = ()
        self._made_at = -math.inf

    def measured(self, loss: float | None) -> None:
        with self._lock:
            self._loss.add_loss(loss)

    def report_own_loss(self, updates: int, clock: float) -> None:
        """Report this node's running loss, or no loss while this node is far behind other nodes.

        A node that has trained little may have a low loss by chance, or because its examples are
        easy. Such a node must not lead trained nodes.
        """
        with self._lock:
            now, mean = self._clock.now(), self._loss.mean
            can_lead = mean is not None and math.isfinite(mean)
            can_lead = can_lead and not self._reports.is_beginner(clock, now)
            self._reports.report_own_loss(mean if can_lead else None, updates, now)

    def receive_news(self, news: News, sender: str = "") -> None:
        """Receive loss reports. `sender` is the name of a peer that answered this node, or ""."""
        with self._lock:
            self._reports.receive_reports(
                (LossReport(*item) for item in news), self._clock.now(), sender
            )

    def hear_packed(self, news: bytes, sender: str = "") -> None:
        """Receive the loss reports in a peer's shared memory. Unreadable reports are ignored."""
        try:
            self.receive_news(unpack_news(news), sender)
        except ProtocolError:
            return  # the peer was writing them

    def select_news(self) -> News:
        """Return the loss reports to forward. They are renewed every few milliseconds."""
        with self._lock:
            now = self._clock.now()  # under the lock: reports may arrive while this thread waits
            if now - self._made_at >= MADE_EVERY_S:
                reports = self._reports.select_reports(now, self._rng, MAX_NEWS)
                self._news = tuple(
                    (r.node, r.group, r.loss, r.incarnation, r.version, r.age_s) for r in reports
                )
                self._made_at = now
            return self._news

    def packed(self, most_bytes: int) -> bytes:
        news = self.select_news()
        while len(packed := pack(news)) > most_bytes:
            news = news[: len(news) // 2]
        return packed

    def forget_node(self, node: str) -> None:
        with self._lock:
            self._reports.forget_node(node, self._clock.now())

    def welcome(self, nodes: Iterable[str]) -> None:
        with self._lock:
            for node in nodes:
                self._reports.welcome(node)

    def leader(self, *, of_all: bool, among: Collection[str] | None = None) -> str | None:
        """Return the node with the lowest running loss among all nodes or in this node's group."""
        with self._lock:
            group = None if of_all else self._group
            best = self._reports.leader(self._clock.now(), group, among)
        return None if best is None else best.node

    def total_updates(self, peers: Collection[str]) -> float:
        """Estimate the number of updates of this node and its peers."""
        with self._lock:
            return self._reports.total_updates(self._clock.now(), len(peers) + 1, peers)

    def has_groups(self, peers: Collection[str]) -> bool:
        with self._lock:
            return self._reports.has_groups(self._clock.now(), peers)

    def report(self) -> JsonObject:
        with self._lock:
            mean = self._loss.mean
            known = self._reports.known(self._clock.now())
        return {
            "running_loss": mean if mean is not None and math.isfinite(mean) else None,
            "leader": self.leader(of_all=True),
            "group_leader": self.leader(of_all=False),
            "known": len(known),
        }
