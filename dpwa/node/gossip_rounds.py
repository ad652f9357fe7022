"""GossipRounds: what the training thread does with its node: publish, ask, wait, merge."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dpwa.algorithms import Algorithm, Ask, Terms
from dpwa.clock import Deadline
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Lease, Snapshot, SnapshotCopy
from dpwa.errors import UserError
from dpwa.node.arrival import WHOLE_SNAPSHOT, Arrival, FetchTerms, Merge, Source, settled
from dpwa.node.assembly import algorithm_of, neighbours_of
from dpwa.node.context import NodeContext
from dpwa.node.fetching.commands import PassOnNews
from dpwa.node.fetching.fetch_request import FetchRequest, FetchTarget, Found
from dpwa.node.fetching.incoming import IsFinite
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.loss_watch import LossWatch
from dpwa.node.sources import Sources
from dpwa.node.transaction_record import Settled
from dpwa.node.view import NodeView
from dpwa.policy.beginners import began_apart, is_far_behind
from dpwa.policy.health import Outcome
from dpwa.policy.interpolation import interpolation, merge_factor, mixed_clock
from dpwa.types import TrainingProgress
from dpwa.wire.fetching import share_of
from dpwa.wire.shards import WHOLE, Shard, shard_of

log = logging.getLogger("dpwa.node")


@dataclass(frozen=True)
class _Round:
    """What is to be waited for: the fetch, if any, and what this node has published."""

    order: FetchRequest | None
    published: Lease | None

    @property
    def snapshot(self) -> Snapshot | None:
        return None if self.published is None else self.published.snapshot

    def end(self) -> None:
        if self.published is not None:
            self.published.release()


_NO_ROUND = _Round(None, None)


class GossipRounds:
    """The gossip of a node, on its training thread.

    In each update: `begin`, `publish` and `ask` as the algorithm wants it, a training step, `wait`.

    Args:
        context: of the node.
        tx: the thread that asks.
        check_open: raises `ClosedError` once the node is closed.

    Attributes:
        algorithm: what the node runs.
        view: what the algorithm may know of the node.
        standing: its clock and loss.
        merges: how many there were that changed something.
        began_at: when the first update began; `None` before.
        knows_beginners: whether nodes at the beginning are told apart; see `policy.beginners`.
        follows_leaders: whether news of leaders is traded at every update.
    """

    def __init__(self, context: NodeContext, tx: TxThread, check_open: Callable[[], None]) -> None:
        config, name = context.config, context.name
        self.algorithm = algorithm_of(config)
        self.view = NodeView(
            name, config, context.peer_table, context.leader_table, context.rng("fetch")
        )
        self.standing = TrainingProgress(clock=0.0)
        self.merges = 0
        self.knows_beginners = False
        self.began_at: float | None = None
        self._context = context
        self._tx = tx
        self._check_open = check_open
        self._method = interpolation(config.interpolation)
        self._options = config.options_of(config.interpolation)
        self._neighbours = neighbours_of(config, name)
        self._rng = context.rng("peer")
        self._sources = Sources(context.peer_table, tx.order, context.clock)
        self.follows_leaders = self.algorithm.follows_leaders or self.view.asks_leader
        self._losses = LossWatch(
            context, lambda: tx.order(PassOnNews()), spreads_news=self.follows_leaders
        )
        self._round = _NO_ROUND
        self._deadline: Deadline | None = None  # of all fetches of this update
        self._turn = 0  # which shard of the parameters is next
        self._fingerprint = b""  # of the layout of the model
        default = "merge" if self.algorithm.repeats else "skip"
        self._repeats = (config.repeat or default) == "merge"
        self._wants_all = False  # of a peer, to take over its parameters
        self._taken_over_at = 0  # the last version that was published before that
        self._has_warned = False  # that nodes began with unrelated parameters

    def choose_leaders_by(self, loss: float | None) -> None:
        """Take a loss by which leaders are chosen, from now on, in place of the training loss."""
        self._losses.choose_leaders_by(loss)

    def begin_with(self, trace: bytes) -> None:
        """Say what this training began with, if that is its own; see `policy.beginners`."""
        self._stand(trace=trace)

    def resume(self, clock: float, updates: int) -> None:
        """Begin where another training has come to: that of peers, or an earlier one of this node.

        Versions go on from there, too: with neighbours that change with the round, peers ask for
        those.

        Args:
            clock: the training clock.
            updates: how many there were.
        """
        self.standing = TrainingProgress(clock=clock)
        self.view.updates = updates
        self._context.pool.resume(updates)

    def guard_transactions(self, is_finite: IsFinite | None) -> None:
        """Refuse exchanges of values that are not finite, by this test of the values of a dtype."""
        self._context.transactions.is_finite = is_finite

    def begin(self, loss: float | None) -> NodeView:
        """Begin an update: end the one before, advance the clock, tell the news.

        Args:
            loss: of this node now; `None` when it has not measured one.

        Returns:
            What this node knows, for the algorithm.

        Raises:
            ClosedError: the node was closed.
        """
        self._check_open()
        self._end_round()
        if self.began_at is None:
            self.began_at = self._context.clock.now()
        self._stand(clock=self.standing.clock + 1.0, loss=loss)
        self.view.updates += 1
        self._deadline = None
        self._losses.begin(loss, self.view.updates, self.standing.clock)
        return self.view

    def publish(
        self, layout: Layout, nbytes: int, write: Callable[[ByteArray], SnapshotCopy]
    ) -> bool:
        """Publish a snapshot that `write` fills; peers read it until the next one.

        Never waits. When slow readers hold every slot of the pool, nothing is published this time.

        Args:
            layout: what the bytes mean.
            nbytes: how many there are.
            write: fills the snapshot, shape `(nbytes,)`, or starts to.

        Returns:
            Whether it is published.
        """
        self._fingerprint = layout.fingerprint
        lease = self._context.pool.publish(layout, nbytes, self.standing, write)
        if lease is not None:
            self._context.transactions.published(lease.snapshot.version)
        self._end_round()
        self._round = _Round(None, lease)
        return lease is not None

    def ask(self, ask: Ask, layout: Layout, terms: FetchTerms = WHOLE_SNAPSHOT) -> None:
        """Start a fetch. Never waits.

        Args:
            ask: whom, and for what.
            layout: what the peer's snapshot must be like.
            terms: of the fetch.
        """
        context = self._context
        self._require_ask(ask)
        is_more = self._deadline is not None  # gossip within one update
        if self._deadline is None:
            self._deadline = Deadline(context.clock, context.config.timeout_ms / 1000)
        # Mixing more is wanted then, and those who are there may have published nothing since.
        skips = ask.terms is Terms.PULL and not self._repeats and not is_more
        order = FetchRequest(self._wanted(ask, layout, terms, skips=skips), self._deadline)
        self._round = replace(self._round, order=order)
        if ask.terms is Terms.EXCHANGE and context.transactions.is_engaged:
            order.end()
        elif ask.terms is not Terms.PULL:
            self._tx.order(order)
        else:
            self._pull(order)

    def ask_anew(self, ask: Ask, layout: Layout, terms: FetchTerms) -> None:
        """Start a fetch outside of an update, with `timeout_ms` of its own."""
        self._deadline = None
        self.ask(ask, layout, terms)

    def send(
        self,
        layout: Layout,
        nbytes: int,
        loss: float | None,
        write: Callable[[ByteArray], SnapshotCopy],
        terms: FetchTerms = WHOLE_SNAPSHOT,
    ) -> None:
        """Begin an update, publish, and ask whom the algorithm wants to ask; never waits.

        Raises:
            ClosedError: the node was closed.
        """
        view = self.begin(loss)
        self.publish(layout, nbytes, write)
        ask = self.algorithm.asks(view)
        if ask is not None:
            self.ask(ask, layout, terms)

    def wait(self, loss: float | None, merge: Merge) -> Arrival | None:
        """Wait for the fetch that the last `ask` started, and merge what comes.

        Waits at most until `timeout_ms` after that. The clock is merged here, the parameters by
        `merge`, on this thread, and so is what other nodes have agreed on with this one. A peer
        that has diverged, by its loss or its parameters, is not merged.

        Args:
            loss: this node's at the moment of merging; `None` stands for the one passed to `begin`.
            merge: merges an arrival; returns the factor that it took.

        Returns:
            What was merged, the last if there was more; `None` when nothing was, whatever the
            reason.

        Raises:
            ClosedError: the node was closed.
            UserError: a rule of the user's own returned an impossible factor.
        """
        self._check_open()
        self._measured(loss)
        round_, self._round = self._round, _NO_ROUND
        try:
            arrival = self._fetched(round_.order, round_.snapshot, merge)
            while (transaction := self._context.transactions.take()) is not None:
                self._context.pool.settle()
                # What was merged before has moved this node away from what it has published.
                own = round_.snapshot if arrival is None else None
                arrival = self._merge_transaction(transaction, own, merge) or arrival
            return arrival
        finally:
            round_.end()

    def skip(self) -> None:
        """Do without what the last `ask` started, and without what was agreed on.

        Raises:
            ClosedError: the node was closed.
        """
        self._check_open()
        self._end_round()
        while (transaction := self._context.transactions.take()) is not None:
            self._context.transactions.factor(transaction)  # its mass counts all the same
            transaction.release()

    def end_training(self, loss: float | None) -> None:
        """Do without what the last `ask` started: there is no training step that follows.

        Args:
            loss: of this node at the end; `None` stands for the last one.

        Raises:
            ClosedError: the node was closed.
        """
        self._check_open()
        self._end_round()
        self._measured(loss)

    def settle(self) -> None:
        """Wait until what was published is complete."""
        self._context.pool.settle()

    def read(
        self,
        peer: str,
        layout: Layout,
        shard: Shard,
        factor: float,
        merge: Merge,
        is_finite: IsFinite | None = None,
    ) -> Arrival | None:
        """Read a peer's newest snapshot and merge it, beside what the algorithm does.

        Waits for it, at most `timeout_ms`. A peer that is far behind is not merged, and one that is
        far ahead is taken in full.

        Args:
            peer: whose.
            layout: what it must be like.
            shard: which part of it.
            factor: to merge it with, from 0 to 1.
            merge: merges an arrival; returns the factor that it took.
            is_finite: tells whether values are finite numbers; `None` to take any.

        Returns:
            What was merged; `None` when nothing was, whatever the reason.

        Raises:
            ClosedError: the node was closed.
        """
        self._check_open()
        context = self._context
        wanted = FetchTarget(
            layout=layout,
            shard=shard,
            is_finite=is_finite,
            only=peer,
            clock=self._own_clock,
        )
        order = FetchRequest(wanted, Deadline(context.clock, context.config.timeout_ms / 1000))
        before = context.clock.now()
        self._pull(order)
        source = self._sources.wait(order)
        if source is None:
            return None
        arrival = self._arrival(source, None, factor, context.clock.now() - before)
        if self._is_to_take_over(arrival):
            arrival = replace(arrival, factor=1.0, takes_over=True)
        return self._merge(arrival, merge, share_of(layout, arrival.nbytes, shard))

    def renew_algorithm(self) -> Algorithm:
        """Begin anew with the algorithm, as the parameters are others than before."""
        self.algorithm = algorithm_of(self._context.config)
        return self.algorithm

    def _measured(self, loss: float | None) -> None:
        if loss is not None:
            self._stand(loss=loss)
            self._losses.measured(loss)

    def _require_ask(self, ask: object) -> None:
        """Refuse what an algorithm of the user's own cannot mean.

        Raises:
            UserError: it is no `Ask`, or is for a node that is not in view.
        """
        who = f"algorithm {self._context.config.algorithm!r}: asks"
        peers = self._context.peer_table.names
        if not isinstance(ask, Ask):
            raise UserError(f"{who} returned {ask!r}; expected an Ask, or None")
        # Where peers come and go, one may have gone since the algorithm looked.
        is_lost = ask.peer is not None and ask.peer not in peers
        if is_lost and not self._context.config.is_open:
            known = ", ".join(peers) or "none"
            raise UserError(f"{who} returned {ask!r}; expected one of the peers in view: {known}")
        if ask.terms is not self.algorithm.terms:
            raise UserError(
                f"{who} returned {ask!r}; expected the terms of the class, {self.algorithm.terms}"
            )

    def _pull(self, order: FetchRequest) -> None:
        peer_table = self._context.peer_table
        if order.first is None:
            order.first = peer_table.choose(self._rng, (), order.wanted.among)
        memory = None if order.first is None else peer_table.memory_of(order.first)
        if order.first is not None and memory is not None:
            order.offer(Found(order.first, memory))  # it lies there: nobody needs to be asked
        else:
            self._tx.order(order)

    def _wanted(self, ask: Ask, layout: Layout, terms: FetchTerms, *, skips: bool) -> FetchTarget:
        is_whole = ask.terms is not Terms.PULL or self.algorithm.keeps or self._wants_all
        context = self._context
        peers, own = context.peer_table.names, self._round.snapshot
        version = context.pool.version if own is None else own.version
        is_tagged = ask.peer is None and self._neighbours.are_tagged
        self._turn += 1
        return FetchTarget(
            layout=layout,
            shard=WHOLE if is_whole else shard_of(layout, terms.fraction, self._turn - 1),
            is_finite=terms.is_finite,
            terms=ask.terms,
            only=ask.peer,
            among=None if ask.peer else self._neighbours.among(peers, self.view.updates - 1),
            version=version if is_tagged else 0,
            own_version=context.pool.version,  # that is complete
            keeps=self.algorithm.keeps,
            clock=self._own_clock,
            merged=context.peer_table.merged if skips else None,
        )

    def _fetched(
        self, order: FetchRequest | None, published: Snapshot | None, merge: Merge
    ) -> Arrival | None:
        if order is None:
            return None
        before = self._context.clock.now()
        self._context.pool.settle()
        source = self._sources.wait(order)
        if source is None:
            return None
        factor = merge_factor(
            self._method,
            self._options,
            self.standing,
            source.standing,
            self._context.config.divergence_threshold,
        )
        arrival = self._arrival(source, published, factor, self._context.clock.now() - before)
        share = share_of(order.layout, arrival.nbytes, order.wanted.shard)
        takes_over = self._is_to_take_over(arrival)
        self._wants_all = takes_over and share < 1.0
        if takes_over:
            arrival = replace(arrival, factor=1.0, takes_over=True)
        if self._wants_all or (order.wanted.terms is not Terms.PULL and not arrival.takes_over):
            arrival.release()  # a part will not do; without a transaction, only a take-over
            return None
        merged = self._merge(arrival, merge, share)
        if merged is not None and merged.factor > 0.0:
            self._context.peer_table.merged.add(merged.peer, merged.version, order.wanted.shard)
        return merged

    def _is_to_take_over(self, arrival: Arrival) -> bool:
        """Tell whether the peer is so far ahead that its parameters are taken in full.

        Not if the rule of the configuration takes nothing of it, or merges are to be short.
        """
        is_refused = self.algorithm.uses_rule and arrival.factor == 0.0
        is_clipped = self._context.config.robust != "none"
        is_behind = is_far_behind(self.standing.clock, arrival.standing.clock)
        return self.knows_beginners and is_behind and not is_refused and not is_clipped

    @property
    def _own_clock(self) -> float:
        """The clock that peers must not be far behind; 0 for any."""
        return self.standing.clock if self.knows_beginners else 0.0

    def _merge_transaction(
        self, transaction: Settled, published: Snapshot | None, merge: Merge
    ) -> Arrival | None:
        is_other_model = transaction.theirs.snapshot.layout.fingerprint != self._fingerprint
        factor = self._context.transactions.factor(transaction)
        if factor == 0.0 or is_other_model or self._is_of_before(transaction):
            transaction.release()
            return None
        own = published if transaction.own is None else transaction.own.snapshot
        return self._merge(self._arrival(settled(transaction), own, factor), merge)

    def _is_of_before(self, transaction: Settled) -> bool:
        """Tell whether this node has given up the parameters that it put into a transaction."""
        mine = transaction.own if transaction.returned is None else transaction.theirs
        return mine is not None and mine.snapshot.version <= self._taken_over_at

    def _merge(self, arrival: Arrival, merge: Merge, share: float = 1.0) -> Arrival | None:
        """Merge parameters and clock; a shard moves the clock by its `share` of the parameters."""
        try:
            factor = merge(arrival)
        finally:
            arrival.release()
        if not isinstance(factor, (int, float)) or not 0.0 <= factor <= 1.0:
            raise UserError(
                f"algorithm {self._context.config.algorithm!r}: merge returned {factor!r}; "
                "expected the factor that the clock is moved by, from 0 to 1"
            )
        if arrival.peer != self._context.name:  # else it is a share that came back
            self._context.peer_table.record(arrival.peer, Outcome.FETCHED)
        if arrival.takes_over:
            self._took_over(arrival)
        elif arrival.peer != self._context.name:
            self._losses.merged(arrival.peer, factor)
            self._compare_beginnings(arrival, factor)
        own = self.standing
        self._stand(clock=mixed_clock(own.clock, arrival.standing.clock, factor * share))
        self.merges += factor > 0.0
        log.debug(
            "%s: merged %s: factor=%.4g clock=%.6g peer_clock=%.6g loss=%s peer_loss=%s "
            "new_clock=%.6g",
            self._context.name,
            arrival.peer,
            factor,
            own.clock,
            arrival.standing.clock,
            own.loss,
            arrival.standing.loss,
            self.standing.clock,
        )
        return replace(arrival, factor=factor)

    def _took_over(self, arrival: Arrival) -> None:
        text = "%s: was far behind (clock %.0f) and takes over the parameters of %s (clock %.0f)"
        clocks = self.standing.clock, arrival.standing.clock
        log.info(text, self._context.name, clocks[0], arrival.peer, clocks[1])
        self._taken_over_at = self._context.pool.version
        self._stand(trace=b"")

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
            self._context.name,
            arrival.peer,
        )

    def _stand(self, **changed: Any) -> None:
        self.standing = replace(self.standing, **changed)

    def _arrival(
        self,
        source: Source,
        published: Snapshot | None,
        factor: float,
        waited_s: float = 0.0,
    ) -> Arrival:
        return Arrival(
            **vars(source),
            factor=factor,
            published=published,
            staleness=self.standing.clock - source.standing.clock,
            waited_s=waited_s,
        )

    def _end_round(self) -> None:
        round_, self._round = self._round, _NO_ROUND
        round_.end()
