"""LossWatch: what the losses of this node say of its peers, and to them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from dpwa.config import Config
from dpwa.data.shared_memory import NEWS_BYTES
from dpwa.message_codes import get_log
from dpwa.node.context import NodeContext
from dpwa.policy.far_apart import FarApart
from dpwa.policy.quarantine import Quarantine

log = get_log("dpwa.node")

NEWS_EVERY_S = 0.002
PATIENCE_UPDATES = 100


class LossWatch:
    """Tells the leader table and the quarantine of each loss, once; belongs to the training thread.

    Args:
        context: of the node.
        pass_on: has the news sent to a peer.
        spreads_news: whether to trade news at every update, and not only along with snapshots.
    """

    def __init__(
        self, context: NodeContext, pass_on: Callable[[], None], *, spreads_news: bool
    ) -> None:
        self._context = context
        self._pass_on = pass_on
        self._spreads_news = spreads_news
        self._rng: random.Random = context.rng("board")
        self._told_at = -math.inf
        self._updates_without_leader = 0
        self._has_measured = False  # whether the loss of this update was told already
        self._has_leader_loss = False
        self._fresh_merges: list[tuple[str, float]] = []  # made after the last loss
        duration_s = context.config.quarantine_s
        self._quarantine = Quarantine(duration_s=duration_s) if duration_s > 0.0 else None
        self._far_apart = _far_apart_of(context.config)

    def choose_leaders_by(self, loss: float | None) -> None:
        """Take a loss by which leaders are chosen, from now on, in place of the training loss."""
        self._has_leader_loss = True
        self._context.leader_table.measured(loss)

    def begin(self, loss: float | None, updates: int, clock: float) -> None:
        """Begin an update, after so many; the loss counts if none was told in the one before."""
        if not self._has_measured:
            self.measured(loss)
        self._has_measured = False
        self._blame_later()
        self._context.leader_table.tell(updates, clock)
        if self._spreads_news:
            self._spread_news()

    def measured(self, loss: float | None) -> None:
        """Take the loss of an update; it was computed before the merges of this update."""
        self._has_measured = loss is not None
        if not self._has_leader_loss:
            self._context.leader_table.measured(loss)
        warning = None if self._far_apart is None else self._far_apart.measured(loss)
        if warning:
            log.warning("%s: %s", self._context.name, warning)
        if self._quarantine is not None:
            now, peer_table = self._context.clock.now(), self._context.peer_table
            text = self._quarantine.measured(loss, now, len(peer_table.names))
            if text:
                log.warning("%s: %s", self._context.name, text)
            peer_table.quarantine(self._quarantine.quarantined(now))

    def merged(self, peer: str, factor: float) -> None:
        """Note a merge, for the next loss to tell what it has done."""
        self._fresh_merges.append((peer, factor))

    def _blame_later(self) -> None:
        for peer, factor in self._fresh_merges:
            if self._quarantine is not None:
                self._quarantine.merged(peer, factor)
            if self._far_apart is not None:
                self._far_apart.merged()
        self._fresh_merges.clear()

    def _spread_news(self) -> None:
        """Trade news with one peer at random, unless there was no time for it since."""
        context, now = self._context, self._context.clock.now()
        leader = context.leader_table.leader(of_all=True)
        if leader is not None:
            context.leader_table.note_leader(leader)
        self._updates_without_leader = 0 if leader else self._updates_without_leader + 1
        if self._updates_without_leader == PATIENCE_UPDATES:
            log.warning(
                "%s: no node has told a loss in %d updates, so nobody leads and nothing is merged: "
                "pass the loss to update_send, update_wait or step, or set leader_loss",
                context.name,
                PATIENCE_UPDATES,
            )
        if now - self._told_at < NEWS_EVERY_S:
            return
        self._told_at = now
        if context.pool.shared is not None:
            context.pool.shared.tell(context.leader_table.packed(NEWS_BYTES))
        mapped = context.peer_table.any_memory(self._rng)
        if mapped is not None:
            peer, memory = mapped
            context.leader_table.hear_packed(memory.news(), peer)
        if mapped is None or context.peer_table.has_unmapped:
            self._pass_on()


def _far_apart_of(config: Config) -> FarApart | None:
    """Return what watches the outer steps of a run; `None` if there are none."""
    if config.algorithm not in ("noloco", "local"):
        return None
    options: Any = config.options_of(config.algorithm)
    return FarApart(f"{config.algorithm}.period", options.period)
