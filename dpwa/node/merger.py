"""Merger judges peers' snapshots (factor, staleness, little training), and merges them."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dpwa.data.shared_memory import NEWS_BYTES
from dpwa.errors import UserError
from dpwa.node.arrival import Arrival, Merge
from dpwa.node.assembly import quarantine_of
from dpwa.node.context import NodeContext
from dpwa.node.training_figures import TrainingFigures
from dpwa.policy.beginners import (
    BEGINNING,
    LEAD,
    SAME_BATCHES,
    Doubt,
    began_apart,
    is_far_behind,
    stepped_alike,
)
from dpwa.policy.health import Outcome
from dpwa.policy.interpolation import interpolation, merge_factor, mixed_clock, read_ahead
from dpwa.types import TrainingProgress

log = logging.getLogger("dpwa.node")

BEGAN_APART = (
    "%s: began with other parameters than %s. Until the nodes converge, their average is worse "
    "than either model. Use the same seed on all nodes before you make the model, such as "
    "torch.manual_seed(0), or load the same weights. See docs/state.md [DPWA-W027]"
)

NEWS_EVERY_S = 0.002
PATIENCE_UPDATES = 100


class LossWatch:
    """Reports each loss once to the leader table and to the quarantine, on the training thread."""

    def __init__(self, context: NodeContext, pass_on: Callable[[], None]) -> None:
        self._context = context
        self._pass_on = pass_on
        self._rng: random.Random = context.rng("board")
        self._told_at = -math.inf
        self._updates_without_leader = 0
        self._has_measured = False  # whether the loss of this update was told already
        self._has_leader_loss = False
        self._fresh_merges: list[tuple[str, float]] = []  # made after the last loss
        self._quarantine = quarantine_of(context.config)
        # else nothing needs to be told
        self.is_used = context.follows_leaders or self._quarantine is not None

    def choose_leaders_by(self, loss: float | None) -> None:
        """Choose leaders by this loss from now on, in place of the training loss."""
        self._has_leader_loss = True
        self._context.leader_table.measured(loss)

    def begin_update(self, loss: float | None, updates: int, clock: float) -> None:
        """Begin an update. The loss counts if there was none in the update before."""
        if not self._has_measured:
            self.measured(loss)
        self._has_measured = False
        self._blame_later()
        if self._context.follows_leaders:
            self._context.leader_table.report_own_loss(updates, clock)
            self._spread_news()

    def measured(self, loss: float | None) -> None:
        """Note the loss of an update, which was computed before the merges of this update."""
        self._has_measured = loss is not None
        if self._context.follows_leaders and not self._has_leader_loss:
            self._context.leader_table.measured(loss)
        if self._quarantine is not None:
            now, peer_table = self._context.runtime.now(), self._context.peer_table
            text = self._quarantine.measured(loss, now, len(peer_table.names))
            if text:
                log.warning("%s: %s", self._context.name, text)
            peer_table.quarantine(self._quarantine.quarantined(now))

    def merged(self, peer: str, factor: float) -> None:
        self._fresh_merges.append((peer, factor))

    def _blame_later(self) -> None:
        for peer, factor in self._fresh_merges:
            if self._quarantine is not None:
                self._quarantine.merged(peer, factor)
        self._fresh_merges.clear()

    def _spread_news(self) -> None:
        """Exchange loss reports with a random peer, at most every `NEWS_EVERY_S`."""
        context, now = self._context, self._context.runtime.now()
        leader = context.leader_table.leader(of_all=True)
        self._updates_without_leader = 0 if leader else self._updates_without_leader + 1
        if self._updates_without_leader == PATIENCE_UPDATES:
            log.warning(
                "%s: no node has reported a loss in %d updates, so there is no leader, and no "
                "merge. Pass the loss to update_send, update_wait or step, or set leader_loss "
                "[DPWA-W012]",
                context.name,
                PATIENCE_UPDATES,
            )
        if now - self._told_at < NEWS_EVERY_S:
            return
        self._told_at = now
        if context.pool.shared is not None:
            context.pool.shared.post_news(context.leader_table.packed(NEWS_BYTES))
        mapped = context.peer_table.any_memory(self._rng)
        if mapped is not None:
            peer, memory = mapped
            context.leader_table.hear_packed(memory.read_news(), peer)
        if mapped is None or context.peer_table.has_unmapped:
            self._pass_on()


_LIES = (Doubt.CONTRADICTED, Doubt.IMPOSSIBLE)


class Merger:
    """Merges snapshots, and keeps this node's training progress. Belongs to the training thread."""

    def __init__(self, context: NodeContext, losses: LossWatch, *, uses_rule: bool) -> None:
        config = context.config
        self.progress = TrainingProgress(clock=0.0)  # clock and loss of the node
        self.merges = 0  # those that changed something
        self.figures = TrainingFigures(context.runtime)
        self.knows_beginners = False  # tell nodes at the beginning apart; see `policy.beginners`
        self.fingerprint = b""  # of the layout of the model; empty before the first
        self._name = context.name
        self._config = config
        self._peer_table = context.peer_table
        self._pool = context.pool
        self._losses = losses
        self._uses_rule = uses_rule
        self._method = interpolation(config.interpolation)
        self._options = config.options_of(config.interpolation)
        self.taken_over_at = 0  # the last version that was published before that
        self._has_warned = False  # that nodes began with unrelated parameters
        # clocks of peers when they were merged last, or had the same parameters; of any thread
        self._shared: dict[str, float] = {}

    def set_progress(self, **changed: Any) -> None:
        self.progress = replace(self.progress, **changed)

    @property
    def own_clock(self) -> float:
        """This node's clock, to exclude peers far behind it, or 0 if such peers are merged, too."""
        return self.progress.clock if self.knows_beginners else 0.0

    def parted(self, peer: str) -> None:
        """Record that this node and a peer have had the same parameters until now."""
        self._shared[peer] = self.progress.clock

    def has_shared(self, peer: str) -> bool:
        """Return whether this node has merged a peer, or once had the peer's parameters."""
        return peer in self._shared

    def final_clock(self, peer: str) -> float:
        """Return the clock to exclude peers far behind it after training, or 0 to merge any peer.

        A peer that has trained with this node and stopped earlier is no beginner.
        """
        return min(self.own_clock, self._shared.get(peer, math.inf))

    def judge(
        self, arrival: Arrival, factor: float | None = None, *, may_take_over: bool = True
    ) -> None:
        """Set the merge factor of a snapshot, which is 1 (a full copy) if this node is far behind.

        Without a given factor, it is that of the interpolation rule. Raises `UserError` if a custom
        rule misbehaves.
        """
        own, theirs, threshold = self.progress, arrival.progress, self._config.divergence_threshold
        if factor is None:
            factor = merge_factor(self._method, self._options, own, theirs, threshold)
        arrival.factor = factor
        arrival.staleness = self.progress.clock - arrival.progress.clock
        if arrival.is_read_late:
            arrival.ahead = read_ahead(-arrival.staleness, arrival.factor)
        if may_take_over and self.knows_beginners and self._is_to_take_over(arrival):
            arrival.factor, arrival.takes_over = 1.0, True

    def doubt(self, arrival: Arrival) -> tuple[Doubt, float]:
        """Return the reason to distrust a snapshot's clock, and the clock to use for the merge."""
        own, clock = self.progress.clock, arrival.progress.clock
        if clock - own < LEAD:  # as nearly always
            return Doubt.NONE, clock
        doubt, most = self._peer_table.doubt(arrival.peer, clock, own)
        return doubt, min(clock, most) if doubt in _LIES else clock

    def _is_to_take_over(self, arrival: Arrival) -> bool:
        """Return whether the peer is so far ahead that its parameters are copied with factor 1.

        Not if the configured rule's factor is 0, or merges are clipped.
        """
        is_refused = self._uses_rule and arrival.factor == 0.0
        is_clipped = self._config.robust != "none"
        is_behind = self.is_beginner(arrival.progress.clock)
        return is_behind and not is_refused and not is_clipped

    def is_beginner(self, clock: float) -> bool:
        return self.knows_beginners and is_far_behind(self.progress.clock, clock)

    def merge(self, arrival: Arrival, merge: Merge) -> Arrival:
        """Merge parameters and clock, and release the snapshot. Return it with the used factor.

        `merge` merges the parameters and returns the factor that it used.
        """
        try:
            factor = merge(arrival)
        finally:
            arrival.release()
        if not isinstance(factor, (int, float)) or not 0.0 <= factor <= 1.0:
            raise UserError(
                f"algorithm {self._config.algorithm!r}: merge must return a factor from 0 to 1 "
                f"(got {factor!r}) [DPWA-E119]"
            )
        if arrival.takes_over:
            self._took_over(arrival)
        own = self.progress
        share = arrival.data.nbytes / arrival.nbytes  # of the parameters came
        clock = mixed_clock(own.clock, arrival.progress.clock, factor * share)
        self.progress = replace(own, clock=clock)
        self.merges += factor > 0.0
        arrival.factor = factor
        if arrival.peer != self._name:  # else it is a share that came back
            self._record(arrival)
        log.debug(
            "%s: merged %s: factor=%.4g clock=%.6g peer_clock=%.6g loss=%s peer_loss=%s "
            "new_clock=%.6g",
            self._name,
            arrival.peer,
            factor,
            own.clock,
            arrival.progress.clock,
            own.loss,
            arrival.progress.loss,
            self.progress.clock,
        )
        return arrival

    def _record(self, arrival: Arrival) -> None:
        """Note that a peer's snapshot was merged."""
        peer, nbytes = arrival.peer, arrival.data.nbytes
        self._peer_table.record(peer, Outcome.FETCHED)
        self._shared[peer] = arrival.progress.clock
        if self._losses.is_used:
            self._losses.merged(peer, arrival.factor)
        if arrival.factor == 0.0:
            return
        if self.progress.trace and not (self._has_warned or arrival.takes_over):
            self._compare_beginnings(arrival)
        self.figures.merged(peer, nbytes, arrival.staleness, arrival.progress, arrival.version)
        if arrival.shard is not None:
            self._peer_table.merged.record_merge(peer, arrival.version, arrival.shard)
        if arrival.is_read_late:  # it was mapped
            self._peer_table.exchanged(peer, mapped=nbytes)

    def _took_over(self, arrival: Arrival) -> None:
        text = (
            "%s: was far behind (clock %.0f), so it copies the parameters of %s (clock %.0f)"
            " [DPWA-W073]"
        )
        own, theirs = self.progress.clock, arrival.progress.clock
        # Nodes that start together differ by some updates at first, which no user has to know.
        level = logging.INFO if theirs < BEGINNING else logging.WARNING
        log.log(level, text, self._name, own, arrival.peer, theirs)
        self.taken_over_at = self._pool.version
        self.set_progress(trace=b"")

    def _compare_beginnings(self, arrival: Arrival) -> None:
        """Warn once if merged models began with unrelated parameters or train on equal batches."""
        own, theirs = self.progress.trace, arrival.progress.trace
        is_same = stepped_alike(own, theirs)
        self._has_warned = is_same or began_apart(own, theirs)
        if is_same:
            log.warning(SAME_BATCHES, self._name, arrival.peer)
        elif self._has_warned:
            log.warning(BEGAN_APART, self._name, arrival.peer)
