"""Merger: merges what comes into the model and the clock, and keeps beginners from doing harm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpwa.data.snapshot import Snapshot
from dpwa.errors import UserError
from dpwa.message_codes import get_log
from dpwa.node.arrival import Arrival, Merge, Source, settled
from dpwa.node.context import NodeContext
from dpwa.node.loss_watch import LossWatch
from dpwa.node.training_figures import Activity, TrainingFigures
from dpwa.node.transactions.record import Settled
from dpwa.policy.beginners import LEAD, Doubt, began_apart, is_far_behind
from dpwa.policy.health import Outcome
from dpwa.policy.interpolation import interpolation, merge_factor, mixed_clock
from dpwa.types import TrainingProgress

log = get_log("dpwa.node")

_LIES = (Doubt.CONTRADICTED, Doubt.IMPOSSIBLE)


class Merger:
    """Where a training stands, and how it changes with what is merged; on the training thread.

    Args:
        context: of the node.
        losses: is told who was merged.
        uses_rule: whether the factor is that of the configuration's interpolation.

    Attributes:
        standing: clock and loss of the node.
        merges: how many there were that changed something.
        figures: what is counted of it.
        knows_beginners: whether nodes at the beginning are told apart; see `policy.beginners`.
        fingerprint: of the layout of the model; empty before the first.
    """

    def __init__(self, context: NodeContext, losses: LossWatch, *, uses_rule: bool) -> None:
        config = context.config
        self.standing = TrainingProgress(clock=0.0)
        self.merges = 0
        self.figures = TrainingFigures(context.clock)
        self.knows_beginners = False
        self.fingerprint = b""
        self._name = context.name
        self._config = config
        self._peer_table = context.peer_table
        self._pool = context.pool
        self._transactions = context.transactions
        self._losses = losses
        self._uses_rule = uses_rule
        self._method = interpolation(config.interpolation)
        self._options = config.options_of(config.interpolation)
        self._taken_over_at = 0  # the last version that was published before that
        self._has_warned = False  # that nodes began with unrelated parameters

    def stand(self, **changed: Any) -> None:
        """Change where the training stands."""
        self.standing = replace(self.standing, **changed)

    @property
    def own_clock(self) -> float:
        """The clock that peers must not be far behind; 0 for any."""
        return self.standing.clock if self.knows_beginners else 0.0

    def factor(self, source: Source) -> float:
        """Return the factor of the configuration's interpolation for what a peer has published.

        Raises:
            UserError: a rule of the user's own returned an impossible one.
        """
        threshold = self._config.divergence_threshold
        return merge_factor(self._method, self._options, self.standing, source.standing, threshold)

    def arrival(
        self,
        source: Source,
        published: Snapshot | None,
        factor: float,
        waited_s: float = 0.0,
    ) -> Arrival:
        """Describe what has come, as it would be merged."""
        return Arrival(
            **vars(source),
            factor=factor,
            published=published,
            staleness=self.standing.clock - source.standing.clock,
            waited_s=waited_s,
        )

    def doubt(self, source: Source) -> tuple[Doubt, float]:
        """Judge the clock of what has come: what is wrong with it, and how much it counts."""
        own, clock = self.standing.clock, source.standing.clock
        if clock - own < LEAD:  # as nearly always
            return Doubt.NONE, clock
        doubt, most = self._peer_table.doubt(source.peer, clock, own)
        return doubt, min(clock, most) if doubt in _LIES else clock

    def is_to_take_over(self, arrival: Arrival) -> bool:
        """Tell whether the peer is so far ahead that its parameters are taken in full.

        Not if the rule of the configuration takes nothing of it, or merges are to be short.
        """
        is_refused = self._uses_rule and arrival.factor == 0.0
        is_clipped = self._config.robust != "none"
        is_behind = self.is_beginner(arrival.standing.clock)
        return is_behind and not is_refused and not is_clipped

    def is_beginner(self, clock: float) -> bool:
        """Tell whether this node is far behind a training at a clock."""
        return self.knows_beginners and is_far_behind(self.standing.clock, clock)

    def merge(self, arrival: Arrival, merge: Merge, share: float = 1.0) -> Arrival:
        """Merge parameters and clock, and give the snapshot back.

        Args:
            arrival: what to merge.
            merge: merges the parameters; returns the factor that it took.
            share: of the parameters that came, by which the clock is moved.

        Returns:
            What was merged, with that factor.

        Raises:
            UserError: `merge` returned an impossible factor.
        """
        before = self.figures.turn_to(Activity.MERGE)
        try:
            factor = merge(arrival)
        finally:
            arrival.release()
            self.figures.turn_to(before)
        if not isinstance(factor, (int, float)) or not 0.0 <= factor <= 1.0:
            raise UserError(
                f"algorithm {self._config.algorithm!r}: merge returned {factor!r}; "
                "expected the factor that the clock is moved by, from 0 to 1"
            )
        if arrival.peer != self._name:  # else it is a share that came back
            self._peer_table.record(arrival.peer, Outcome.FETCHED)
            self._losses.merged(arrival.peer, factor)
        if arrival.takes_over:
            self._took_over(arrival)
        elif arrival.peer != self._name:
            self._compare_beginnings(arrival, factor)
        own = self.standing
        self.stand(clock=mixed_clock(own.clock, arrival.standing.clock, factor * share))
        self.merges += factor > 0.0
        if factor > 0.0 and arrival.peer != self._name:
            self.figures.merged(
                arrival.peer,
                arrival.data.nbytes,
                arrival.staleness,
                arrival.standing,
                arrival.version,
            )
        log.debug(
            "%s: merged %s: factor=%.4g clock=%.6g peer_clock=%.6g loss=%s peer_loss=%s "
            "new_clock=%.6g",
            self._name,
            arrival.peer,
            factor,
            own.clock,
            arrival.standing.clock,
            own.loss,
            arrival.standing.loss,
            self.standing.clock,
        )
        return replace(arrival, factor=factor)

    def merge_transaction(
        self, transaction: Settled, published: Snapshot | None, merge: Merge
    ) -> Arrival | None:
        """Merge what was agreed on with a peer, unless this node is another since then."""
        is_other_model = transaction.theirs.snapshot.layout.fingerprint != self.fingerprint
        factor = self._transactions.factor(transaction)
        if factor == 0.0 or is_other_model or self._is_of_before(transaction):
            transaction.release()
            return None
        own = published if transaction.own is None else transaction.own.snapshot
        source = settled(transaction)  # both ends merge, whatever it says of its clock
        standing = replace(source.standing, clock=self.doubt(source)[1])
        return self.merge(self.arrival(replace(source, standing=standing), own, factor), merge)

    def _is_of_before(self, transaction: Settled) -> bool:
        """Tell whether this node has given up the parameters that it put into a transaction."""
        mine = transaction.own if transaction.returned is None else transaction.theirs
        return mine is not None and mine.snapshot.version <= self._taken_over_at

    def _took_over(self, arrival: Arrival) -> None:
        text = "%s: was far behind (clock %.0f) and takes over the parameters of %s (clock %.0f)"
        clocks = self.standing.clock, arrival.standing.clock
        log.warning(text, self._name, clocks[0], arrival.peer, clocks[1])
        self._taken_over_at = self._pool.version
        self.stand(trace=b"")

    def _compare_beginnings(self, arrival: Arrival, factor: float) -> None:
        """Warn, once, when what is averaged began with unrelated parameters."""
        own, theirs = self.standing.trace, arrival.standing.trace
        if self._has_warned or factor == 0.0 or not began_apart(own, theirs):
            return
        self._has_warned = True
        log.warning(
            "%s: began with other parameters than %s: their average is worse than either, until "
            "they have grown together; use the same seed on all nodes before the model is made "
            "(such as torch.manual_seed(0)), or load the same weights; see docs/start-and-end.md",
            self._name,
            arrival.peer,
        )
