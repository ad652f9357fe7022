"""GossipRounds: the rounds of the training thread, which publishes, asks, waits and merges."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from dpwa.algorithms import Ask, Terms, Values
from dpwa.clock import Deadline
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Snapshot, SnapshotCopy
from dpwa.errors import MismatchError, UserError
from dpwa.lifecycle import tell_launcher
from dpwa.node.arrival import Arrival, FetchRequest, IsFinite, Merge
from dpwa.node.assembly import algorithm_of, neighbours_in
from dpwa.node.context import NodeContext
from dpwa.node.fetching.tx_thread import TxThread
from dpwa.node.merger import LossWatch, Merger
from dpwa.node.trainer_fetches import TrainerFetches
from dpwa.node.training_figures import Activity
from dpwa.policy.beginners import LEAD, Doubt
from dpwa.policy.finishing import MAX_PEERS_READ
from dpwa.policy.health import Outcome
from dpwa.policy.interpolation import interpolation
from dpwa.transport.link import LinkState
from dpwa.types import TrainingProgress
from dpwa.wire import limits
from dpwa.wire.shards import WHOLE, Shard, shard_of

log = logging.getLogger("dpwa.node")


class NodeView:
    """Gives an algorithm access to the state of its node. See `dpwa.algorithms.View`."""

    def __init__(self, context: NodeContext) -> None:
        config = context.config
        self.name = context.name
        self.rng = context.rng("fetch")
        self.fetch_probability = config.fetch_probability
        self.keeps_local_step = config.merge == "delta"
        self.asks_leader = interpolation(config.interpolation).asks_leader
        self.updates = 0  # calls of `update_send`, with the one under way
        self._groups = {node.name: node.group for node in config.nodes}
        self._model: Values | None = None
        self._runtime = context.runtime
        self._peer_table = context.peer_table
        self._leader_table = context.leader_table

    @property
    def model(self) -> Values:
        if self._model is None:
            raise LookupError(
                "this node publishes raw bytes, so an algorithm has no model to change"
            )
        return self._model

    @model.setter
    def model(self, model: Values) -> None:
        self._model = model

    @property
    def now(self) -> float:
        return self._runtime.now()

    @property
    def peers(self) -> tuple[str, ...]:
        return self._peer_table.names

    def leader(self, *, of_all: bool = True) -> str | None:
        """Return the node with the lowest running loss among all nodes or in this node's group."""
        able = {self.name, *self._peer_table.mergeable}
        return self._leader_table.leader(of_all=of_all, among=able)

    def has_groups(self) -> bool:
        names, own = self._peer_table.names, self._groups.get(self.name)
        is_configured = any(self._groups.get(name, own) != own for name in names)
        return is_configured or self._leader_table.has_groups(names)

    def total_updates(self) -> float:
        """Return the number of updates of all nodes together, as far as this node knows it."""
        return self._leader_table.total_updates(self._peer_table.names)


class ShardGroup(Protocol):
    """The processes (ranks) of a member with a sharded model. Each rank exchanges its own shards.

    All ranks call each method at the same place of the same round.
    """

    def agreed(self, ask: Ask | None, draw: Callable[[Collection[str]], str | None]) -> Ask | None:
        """Return the request that all ranks make in this round, or `None` for no request.

        `ask` is the request that the algorithm of this rank would make. `draw` lets flow control
        pick a peer that is not in the given collection.
        """
        ...

    def same_for_all(
        self, arrival: Arrival | None, older: Callable[[Arrival, int], Arrival | None]
    ) -> Arrival | None:
        """Return a snapshot that has the same peer and version on all ranks, or `None`.

        Other snapshots are released. `older` returns an earlier version of a snapshot, if the peer
        still has that version.
        """
        ...

    def all(self, own: bool) -> bool:
        """Tell whether `own` is true on all ranks."""
        ...


SAID_EVERY_S = 60.0  # from one message on the state of this node to the next that says the same
LOOKED_EVERY_S = 2.0  # for whether all peers are refused, which nodes may be only for a moment
MAX_REFUSALS = 5  # in one message
MAX_UNPAIRED_CALLS = 20  # calls of one kind in a row, of which each step needs both
# whole values next to what a codec sends of them, for which `timeout_ms` is set
MAX_TIMES_LONGER = 4
UNNAMED = "parameters"  # name of raw values, which says nothing in a message
MAX_ROUNDS_ASKED_AGAIN = 3  # rounds in which another peer is to bear out what a first one has said


class GossipRounds:
    """The gossip of a node, on its training thread.

    In each update: `begin_update`, `publish_snapshot` and `ask` as the algorithm wants it, a
    training step, `wait_and_merge`. Most methods raise `ClosedError` once the node is closed.
    """

    def __init__(self, context: NodeContext, tx: TxThread, check_open: Callable[[], None]) -> None:
        self.algorithm = algorithm_of(context.config)
        self.view = NodeView(context)
        self.began_at: float | None = None  # when the first update began; `None` before
        # The loop takes a step before the update that counts it. Between `wait_and_merge` and
        # `begin_update`, it has then taken one step more than `view.updates`.
        self.is_ahead = False
        # the other ranks of a member whose model is sharded; `None`: it is not
        self.shard_group: ShardGroup | None = None
        self._context = context
        self.is_finite: IsFinite | None = None  # see `guard`
        self.fraction = 1.0  # share of the parameters; each fetch gets a different part
        self._tx = tx
        self.check_open = check_open
        self._fetches = TrainerFetches(context, tx.fetch)
        self._neighbours = neighbours_in(context.config, context.name)
        default = "merge" if self.algorithm.repeats else "skip"
        self._skips_repeats = (context.config.repeat or default) == "skip"
        self._next_shard = 0  # which shard of the parameters is next
        self._losses = LossWatch(context, tx.pass_on_news)
        # where the training stands, and what was merged
        self.merger = Merger(context, self._losses, uses_rule=self.algorithm.uses_rule)
        self.figures = self.merger.figures
        self._request: FetchRequest | None = None  # that is to be waited for
        self.published: Snapshot | None = None  # in this round
        self._wants_all = False  # of a peer, to take over its parameters
        self._publications = 0  # tried, by all ranks of a shard group alike
        self._begins = 0  # in a row, without a wait between
        self._waits = 0  # likewise, with nothing begun
        self._has_warned = False  # of such
        self._doubted = ""  # a peer that others are to bear out
        self._bears_out = ""  # the same, of the fetch under way
        self._asked_again = 0  # how often in a row
        self._has_diverged = False  # at the last `wait_and_merge`
        self._said_so_at = self._look_at = -math.inf
        self._are_refused = False  # all peers, when that was looked for last
        is_one = not context.config.is_open and len(context.config.nodes) == 1
        self._needs_finish = context.config.needs_finish and not is_one

    def begin_update(self, loss: float | None) -> NodeView:
        """Begin an update: end the previous update, advance the clock, and pass on loss reports.

        `loss` is `None` if it was not measured. Raises `MismatchError` if every peer is refused and
        `if_refused` is `raise`.
        """
        self.check_open()
        self.look_for_refusals()
        self._end_round()
        self._waits = 0
        self._begins += 1
        if self._begins == MAX_UNPAIRED_CALLS:
            self._unpaired("update_send", "update_wait", "this node merges nothing")
        if self.began_at is None:
            self.began_at = self._context.runtime.now()
        self.figures.begin_update()
        clock = self.merger.progress.clock + 1.0
        self.merger.progress = replace(self.merger.progress, clock=clock, loss=loss)
        self.view.updates += 1
        if self._needs_finish and not self._has_diverged:
            tell_launcher(self.view.updates)
        if self._losses.is_used:
            self._losses.begin_update(loss, self.view.updates, clock)
        return self.view

    def publish_snapshot(
        self, layout: Layout, nbytes: int, write: Callable[[ByteArray], SnapshotCopy]
    ) -> bool:
        """Publish a snapshot for peers to read. Return whether the pool had a free slot.

        Never waits. `write` fills the snapshot, shape `(nbytes,)`, or starts to. If slow readers
        hold every slot of the pool, nothing is published this time.
        """
        self.merger.fingerprint = layout.fingerprint
        self._publications += 1
        if self.shard_group is not None:  # versions go together, whoever has to skip one
            self._context.pool.resume(self._publications - 1)
        before = self.figures.turn_to(Activity.PUBLISH)
        try:
            own = self._context.pool.publish_snapshot(layout, nbytes, self.merger.progress, write)
        finally:
            self.figures.turn_to(before)
        self._request, self.published = None, own
        return own is not None

    def ask(self, ask: Ask | None, layout: Layout) -> None:
        """Choose a peer and start a fetch, unless `ask` is `None`. Never waits.

        `layout` is the layout that the peer's snapshot must have.
        """
        if ask is not None and (problem := self._problem_of(ask)):
            who = f"algorithm {self._context.config.algorithm!r}: asks"
            raise UserError(f"{who} returned {ask!r}. Expected {problem} [DPWA-E118]")
        doubted = self._bears_out = self._doubted
        if ask is not None and doubted:
            ask = Ask()  # anybody else, without a transaction, for which others may have no time
        if self.shard_group is not None:
            ask = self.shard_group.agreed(ask, self._draw)
        if ask is None:
            return
        self._doubted = ""
        pool, peer_table = self._context.pool, self._context.peer_table
        is_pull = ask.terms is Terms.PULL
        among: Collection[str] | None = None
        if doubted:
            among = [name for name in peer_table.names if name != doubted]
        elif not ask.peer and not self._neighbours.are_everybody:
            among = self._neighbours.among(peer_table.names, self.view.updates - 1)
        version = 0
        if ask.peer is None and self._neighbours.are_tagged and not doubted:
            version = pool.version if self.published is None else self.published.version
        is_whole = self._wants_all or bool(doubted) or not is_pull or self.fraction >= 1.0
        self._next_shard += 1
        self._request = self._start_fetch(
            layout,
            WHOLE if is_whole else shard_of(layout, self.fraction, self._next_shard - 1),
            Deadline(self._context.runtime, self._context.config.timeout_ms / 1000),
            terms=ask.terms,
            only=ask.peer,
            among=among,
            version=version,
            clock=self.merger.own_clock,
            merged=peer_table.merged if is_pull and self._skips_repeats and not doubted else None,
        )

    def _start_fetch(
        self, layout: Layout, shard: Shard, deadline: Deadline, **fields: Any
    ) -> FetchRequest:
        """Start a fetch of finite values. `fields` are further fields of the returned request."""
        runtime, is_finite = self._context.runtime, self.is_finite
        request = FetchRequest(layout, deadline, runtime, shard, is_finite, **fields)
        self._fetches.start(request)
        return request

    def _problem_of(self, ask: object) -> str:
        """Return what a custom algorithm must request instead of `ask`, or "" if `ask` is valid."""
        if not isinstance(ask, Ask):
            return "an Ask, or None"
        # If peers come and go, the peer may have left since the algorithm chose it.
        is_lost = ask.peer is not None and not self._context.peer_table.knows(ask.peer)
        if is_lost and not self._context.config.is_open:
            return f"one of the peers in view: {', '.join(self.view.peers) or 'none'}"
        terms = type(self.algorithm).terms
        return "" if ask.terms is terms else f"the terms of the class, {terms}"

    def _draw(self, barred: Collection[str]) -> str | None:
        """Return a neighbour in this round that flow control picks, excluding `barred`."""
        among = self._neighbours.among(self.view.peers, self.view.updates - 1)
        return self._fetches.choose(barred, among)

    def wait_and_merge(self, loss: float | None, merge: Merge) -> Arrival | None:
        """Wait for the fetch that the last `ask` started, and merge its snapshot.

        This waits at most until `timeout_ms` after that. Clock and parameters are merged on this
        thread. `merge` merges the parameters and returns its factor. A peer whose loss or
        parameters have diverged is not merged. `loss` is the loss at this moment. `None` stands for
        the one passed to `begin_update`. Returns the last merged snapshot, or `None`. Raises
        `UserError` if a custom rule returned an impossible factor.
        """
        self.check_open()
        if loss is not None:
            self._measured(loss)
        diverged = self._context.pool.is_finite is False or self.merger.progress.loss == math.inf
        if diverged is not self._has_diverged:
            self._diverges(diverged)
        request, published = self._request, self.published
        self._request = self.published = None
        self._begins = 0
        if request is None and published is None:
            self._waits += 1
            if self._waits == MAX_UNPAIRED_CALLS:
                self._unpaired(
                    "update_wait", "update_send", "this node publishes and fetches nothing"
                )
        if request is None:
            return None
        before = self.figures.turn_to(Activity.WAIT)
        try:
            arrival = self._fetched(request, published)
            if arrival is None:
                return None
            self.figures.turn_to(Activity.MERGE)
            return self.merger.merge(arrival, merge)
        finally:
            if self._fetches.reads is not None:
                self._fetches.let_go()
            self.figures.turn_to(before)

    def _fetched(self, request: FetchRequest, published: Snapshot | None) -> Arrival | None:
        """Wait for a fetch. Return the snapshot with a merge factor, or `None` for no merge."""
        began = self._context.runtime.now()
        self._context.pool.settle()
        arrival = self._fetches.result(request)
        waited_s = self._context.runtime.now() - began
        self.figures.waits.observe(waited_s)
        if arrival is not None:
            arrival = self._judged(arrival, request, published, waited_s)
        if self.shard_group is not None:
            older = partial(self._older, request, published)
            arrival = self.shard_group.same_for_all(arrival, older)
        return self._believed(arrival, terms=request.terms, is_second=bool(self._bears_out))

    def _judged(
        self, arrival: Arrival, request: FetchRequest, published: Snapshot | None, waited_s: float
    ) -> Arrival | None:
        """Return the snapshot with its merge factor, or `None` to merge nothing."""
        arrival.published, arrival.shard, arrival.waited_s = published, request.shard, waited_s
        self.merger.judge(arrival)
        self._wants_all = arrival.takes_over and arrival.data.nbytes < arrival.nbytes
        if self._wants_all or (request.terms is not Terms.PULL and not arrival.takes_over):
            arrival.release()  # a part will not do; without a transaction, only a take-over
            return None
        return arrival

    def _older(
        self, request: FetchRequest, published: Snapshot | None, arrival: Arrival, version: int
    ) -> Arrival | None:
        """Return this version of the peer's snapshot, so that all ranks merge the same version."""
        older, waited_s = self._fetches.older(arrival.peer, request, version), arrival.waited_s
        return None if older is None else self._judged(older, request, published, waited_s)

    def _believed(
        self,
        arrival: Arrival | None,
        *,
        terms: Terms = Terms.PULL,
        factor: float | None = None,  # `None`: that of the interpolation
        is_second: bool = False,  # asked for to confirm another: it is taken over, or nothing
    ) -> Arrival | None:
        """Return the snapshot, unless the peer may report a false clock. See `policy.beginners`."""
        own = self.merger.progress.clock
        if arrival is None or (arrival.progress.clock - own < LEAD and not is_second):
            return arrival
        doubt, clock = self.merger.doubt(arrival)
        waits = arrival.takes_over and self._asked_again < MAX_ROUNDS_ASKED_AGAIN
        is_sound = doubt is Doubt.NONE or (doubt is Doubt.UNCONFIRMED and not waits)
        is_sharded = self.shard_group is not None  # who must all come to the same, and count alike
        if self._all(is_sound):
            self._asked_again = 0
            if arrival.takes_over or not is_second:
                return arrival
        elif is_sharded or doubt is Doubt.UNCONFIRMED:
            self._asked_again += 1
            self._doubted = "" if is_sharded else arrival.peer
        elif doubt is Doubt.IMPOSSIBLE:
            told = f"its clock rose to {arrival.progress.clock:.6g}, faster than any training can"
            self._context.peer_table.record(arrival.peer, Outcome.MISBEHAVED, told)
        elif self.merger.is_beginner(clock) and (factor is None or arrival.takes_over):
            self._doubted = arrival.peer  # there are others ahead
        elif terms is Terms.PULL and not is_second:
            arrival.progress, arrival.takes_over = replace(arrival.progress, clock=clock), False
            self.merger.judge(arrival, factor, may_take_over=False)
            return arrival
        arrival.release()
        return None

    def _measured(self, loss: float) -> None:
        self.merger.set_progress(loss=loss)
        if self._losses.is_used:
            self._losses.measured(loss)

    # The rest of its life

    @property
    def progress(self) -> TrainingProgress:
        return self.merger.progress

    @property
    def merges(self) -> int:
        return self.merger.merges

    @property
    def is_under_way(self) -> bool:
        """Whether an update has begun without a call of `wait_and_merge` since then."""
        return self._begins > 0

    @property
    def is_to_finish(self) -> bool:
        """Whether this node has trained together with peers, and therefore must call `finish`."""
        heard = map(self._context.peer_table.was_heard, self.view.peers)
        return self._needs_finish and self.began_at is not None and any(heard)

    def choose_leaders_by(self, loss: float | None) -> None:
        """From now on, use this loss instead of the training loss to choose leaders."""
        self._losses.choose_leaders_by(loss)

    def begin_with(self, trace: bytes) -> None:
        """Set `trace`, which identifies this node's initial parameters. See `policy.beginners`."""
        self.merger.set_progress(trace=trace)

    def resume(self, clock: float, updates: int) -> None:
        """Set clock and update count, to continue peers' training or an earlier run of this node.

        Versions continue from there, too, because peers ask for versions if neighbours change with
        the round.
        """
        self.merger.progress = TrainingProgress(clock=clock)
        self.view.updates = updates
        self._publications = updates
        self._context.pool.resume(updates)

    def guard(self, is_finite: IsFinite | None) -> None:
        """Do not exchange values that fail the test `is_finite`. With `None`, nothing is tested."""
        self.is_finite = is_finite

    def skip(self) -> None:
        """Drop the results of the last `ask`."""
        self.check_open()
        self._end_round()
        self._begins = 0

    def end_training(self, loss: float | None) -> None:
        """Drop the result of the last `ask`, because no training step follows.

        `loss` is the loss at the end. `None` stands for the last one.
        """
        self.check_open()
        self._end_round()
        if loss is not None:
            self._measured(loss)
        self._has_warned = True  # those who go on to serve only wait
        self.figures.turn_to(Activity.IDLE)

    def settle(self, is_published: bool) -> bytes | None:
        """Wait until the published snapshot is complete, and return a digest of it.

        `None` if some rank has published nothing.
        """
        pool = self._context.pool
        pool.settle()
        newest = pool.newest() if self._all(is_published) else None
        if newest is None:
            return None
        with newest as snapshot:
            digest = hashlib.blake2b(snapshot.data.data, digest_size=limits.MAX_DIGEST_BYTES)
            digest.update(snapshot.layout.fingerprint)
            return digest.digest()

    def fetch_and_merge(
        self,
        peer: str,
        layout: Layout,
        shard: Shard,
        factor: float,
        merge: Merge,
    ) -> Arrival | None:
        """Read a peer's newest snapshot and merge it, independently of the gossip algorithm.

        All values are exact, whatever the codec. Of peers that have never trained with this node,
        one that is far behind is not merged, and one that is far ahead is copied with factor 1.
        Returns `None` if nothing was merged.
        """
        self.check_open()
        runtime = self._context.runtime
        deadline = Deadline(runtime, MAX_TIMES_LONGER * self._context.config.timeout_ms / 1000)
        began, clock = runtime.now(), self.merger.final_clock(peer)
        request = self._start_fetch(layout, shard, deadline, only=peer, clock=clock, is_exact=True)
        arrival = self._fetches.result(request)
        if arrival is not None:
            arrival.waited_s = runtime.now() - began
            self.merger.judge(arrival, factor, may_take_over=not self.merger.has_shared(peer))
        if self.shard_group is not None:
            arrival = self.shard_group.same_for_all(arrival, lambda *_: None)
        arrival = self._believed(arrival, factor=factor)
        if arrival is None:
            return None
        with self.figures.doing(Activity.MERGE):
            return self.merger.merge(arrival, merge)

    def read_all(self, layout: Layout, shard: Shard) -> Iterator[Arrival]:
        """Yield `shard` of each connected peer's newest snapshot, valid until the next iteration.

        If there are more than `MAX_PEERS_READ`, some are picked at random. Waits at most
        `timeout_ms` for all of them. The factors 1/2, 1/3 and so on give the mean of these peers
        and this node.
        """
        context, factor = self._context, 0.5
        able = sorted(context.peer_table.mergeable)
        names = [name for name in able if self._tx.state_of(name) is LinkState.UP]
        deadline = Deadline(context.runtime, context.config.timeout_ms / 1000)
        for peer in self.view.rng.sample(names, min(len(names), MAX_PEERS_READ)):
            with self.figures.doing(Activity.WAIT):
                clock = self.merger.own_clock
                request = self._start_fetch(layout, shard, deadline, only=peer, clock=clock)
                arrival = self._fetches.result(request)
            if arrival is not None:
                arrival.factor = factor
                try:
                    yield arrival
                finally:
                    arrival.release()
                factor /= 1.0 + factor

    def renew_algorithm(self) -> None:
        """Create the algorithm again, because the parameters were replaced."""
        self.algorithm = algorithm_of(self._context.config)

    def divergence(self) -> str:
        """Describe this node's NaN or infinite values, which no peer merges, or return ""."""
        pool, is_finite = self._context.pool, self.is_finite
        newest = pool.newest() if pool.is_finite is False else None
        if newest is None:
            return "its loss is not finite" if self.progress.loss == math.inf else ""
        with newest as snapshot:
            parts = zip(snapshot.layout.tensors, snapshot.layout.offsets, strict=True)
            bad = [
                repr(tensor.name)
                for tensor, start in parts
                if is_finite is not None
                and tensor.name != UNNAMED
                and not is_finite(snapshot.data[start : start + tensor.nbytes], tensor.dtype, start)
            ]
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        return f"its parameters are not finite{f' ({bad[0]}{more})' if bad else ''}"

    def _diverges(self, diverged: bool) -> None:
        """Log that this node has diverged, or that all values are finite again."""
        self._has_diverged, divergence = diverged, self.divergence()
        tell_launcher(divergence or (self.view.updates if self._needs_finish else ""))
        now, name = self._context.runtime.now(), self._context.name
        if not diverged:
            log.info("%s: its loss and parameters are finite again", name)
        elif now - self._said_so_at >= SAID_EVERY_S:
            self._said_so_at = now
            gossips = not self.algorithm.averages_gradients
            log.error(
                "%s: %s at update %d. %s the learning rate, or continue from a checkpoint "
                "[DPWA-W068]",
                name,
                divergence,
                self.view.updates,
                "No peer merges this node now. Lower" if gossips else "If this lasts, lower",
            )

    def look_for_refusals(self) -> None:
        """While all peers refuse this node or are refused, warn each minute, or raise an error."""
        now = self._context.runtime.now()
        if now < self._look_at:
            return
        refusals, were_refused = self._context.peer_table.refusals, self._are_refused
        self._are_refused = bool(refusals)
        lasts = self._are_refused and were_refused
        self._look_at = now + (SAID_EVERY_S if lasts else LOOKED_EVERY_S)
        if not lasts:
            return
        told, more = ". ".join(refusals[:MAX_REFUSALS]), len(refusals) - MAX_REFUSALS
        told += f". Other refused peers: {more}" if more > 0 else ""
        if self._context.config.if_refused == "raise":
            raise MismatchError(
                f"{self._context.name}: no peer can train with this node. {told} [DPWA-E314]"
            )
        log.warning(
            "%s: no peer can train with this node, so this node trains alone. %s [DPWA-W095]",
            self._context.name,
            told,
        )

    def _unpaired(self, called: str, other: str, therefore: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        log.warning(
            "%s: the script has made %d calls of %s, but none of %s, so %s. Call update_send "
            "before each training step and update_wait after it, or only step(loss) [DPWA-W070]",
            self._context.name,
            MAX_UNPAIRED_CALLS,
            called,
            other,
            therefore,
        )

    def _all(self, own: bool) -> bool:
        """Return whether `own` is true on all ranks."""
        return own if self.shard_group is None else self.shard_group.all(own)

    def _end_round(self) -> None:
        self._request = self.published = None
        if self._fetches.reads is not None:  # what an interrupt has left
            self._fetches.let_go()
