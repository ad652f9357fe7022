"""Trainer publishes a model of any kind, requests peers' snapshots, and merges them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from dpwa.algorithms import Terms, Values
from dpwa.config import Config
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import MergeTerms, SnapshotCopy
from dpwa.errors import UserError
from dpwa.node.arrival import Arrival, IsFinite
from dpwa.node.assembly import clip_of
from dpwa.node.gossip_rounds import GossipRounds
from dpwa.types import TrainingProgress
from dpwa.wire.shards import Shard, shards_of

if TYPE_CHECKING:
    from dpwa.policy.clipping import ClipRadius


class Model(Protocol):
    """Parameters in training. `data` is bytes of a peer's snapshot, from `start` on.

    `base` is the whole of an own snapshot, to count from in place of the model.
    """

    @property
    def layout(self) -> Layout: ...
    def values(self) -> Values: ...
    # starts to write a snapshot of the model, with these values for the parameters
    def start_copy(self, data: ByteArray, check_finite: bool, values: Any) -> SnapshotCopy: ...
    # merges it; returns how far away the parameters were
    def merge(self, start: int, data: ByteArray, terms: MergeTerms) -> float: ...
    # measures how far away all of it is, buffers too
    def distance(self, data: ByteArray, start: int, base: ByteArray | None) -> float: ...
    def view_of(self, data: ByteArray) -> Values: ...
    # also returns how far away they are from those of the model
    def values_of(self, data: ByteArray, into: Any) -> tuple[Values, float]: ...
    def buffers_shard(self) -> Shard | None: ...
    # called before peers are merged into one mean
    def begin_mean(self) -> None: ...


class ReceivedSnapshot:
    """A snapshot that this node received from a peer. See `dpwa.algorithms.Received`."""

    def __init__(self, arrival: Arrival, model: Model, clip: ClipRadius | None) -> None:
        self.peer: str = arrival.peer
        self.standing: TrainingProgress = arrival.progress
        self.factor: float = arrival.factor
        self.ahead: float = arrival.ahead
        self.distance = 0.0  # to the peer, as far as measured
        self._arrival = arrival
        self._own = None if arrival.published is None else arrival.published.data
        self._model = model
        self._clip = clip  # shortens merges that go too far
        self._own_copy: Values | None = None
        self._scale: float | None = None

    @property
    def published(self) -> Values:
        """The values that this node published in the round, or a copy of the current parameters."""
        if self._own is not None:
            return self._model.view_of(self._own)
        if self._own_copy is None:
            self._own_copy = self._model.values().clone()
        return self._own_copy

    def merge(self, factor: float, *, delta: float = 0.0, buffers: float | None = None) -> float:
        return self._merge(factor, delta, factor if buffers is None else buffers)

    def merge_buffers(self, factor: float) -> None:
        distance = self.distance  # that of the merge of the parameters
        self._merge(0.0, 0.0, factor)
        self.distance = distance

    def values(self, into: Values | None = None) -> Values:
        """Return a copy of the peer's parameters.

        Raises `UserError` if the round fetches a part of the parameters only.
        """
        scale = 1.0 if self._clip is None else self._clipped(self._clip)
        values, self.distance = self._model.values_of(self._all(), into)
        if scale < 1.0:
            values.lerp_(self.published, 1.0 - scale)
        return values

    def _merge(self, factor: float, delta: float, buffers: float) -> float:
        for given in (factor, delta, buffers):
            if not 0.0 <= given <= 1.0:
                raise UserError(
                    f"received.merge: expected factors from 0 to 1 (got {given!r}) [DPWA-E116]"
                )
        arrival = self._arrival
        if self._clip is not None:
            scale = self._clipped(self._clip)
            factor, buffers = factor * scale, buffers * scale
        terms = MergeTerms(factor, self._own if delta else None, buffers, delta)
        self.distance = self._model.merge(arrival.start, arrival.data, terms)
        return factor

    def _all(self) -> ByteArray:
        if self._arrival.data.nbytes != self._arrival.nbytes:
            raise UserError(
                "`fraction` must be 1, because this algorithm or `robust: clip` needs all values "
                "of a peer [DPWA-E117]"
            )
        return self._arrival.data

    def _clipped(self, clip: ClipRadius) -> float:
        """Return the factor from 0 to 1 that keeps the merge within the clip radius."""
        if self._scale is None:
            self._scale = clip.scale(self._model.distance(self._all(), 0, self._own))
        return self._scale


class Trainer:
    """Runs the rounds of a gossip algorithm for the model of a node, on the training thread.

    Each update calls `update_send`, takes a training step, and calls `update_wait`. When nodes end
    together, `publish_model` and `merge_peer` average their models, and `go_on` serves the nodes
    that still train.
    """

    def __init__(
        self,
        rounds: GossipRounds,
        model: Model,
        clip: ClipRadius | None = None,
    ) -> None:
        self.rounds = rounds
        self.model = model
        self.consensus_distance = 0.0  # to the peer that was merged last, before that
        self._clip = clip
        # called when all of a peer's parameters were taken
        self.took_over: Callable[[], None] = lambda: None
        self._sent = model.layout  # of what was published last
        self._has_sent = False  # since the last `update_wait`

    @classmethod
    def from_config(
        cls, rounds: GossipRounds, model: Model, config: Config, is_finite: IsFinite
    ) -> Trainer:
        """Return a trainer for the settings. `is_finite` is the test for `guard`."""
        rounds.merger.knows_beginners = True
        rounds.fraction = config.fraction
        rounds.guard(is_finite if config.guard == "finite" else None)
        return cls(rounds, model, clip_of(config))

    def update_send(self, loss: float | None) -> None:
        """Publish a snapshot and start a fetch, if the algorithm asks for them. Never waits."""
        self._sent = self.model.layout
        rounds, view = self.rounds, self.rounds.view
        rounds.begin_update(loss)
        own = view.model = self.model.values()
        values = rounds.algorithm.publishes(view)
        is_published = values is None or self._publish(values)
        ask = rounds.algorithm.asks(view)
        # Whoever merges by what it has published needs that, if it is not simply the model.
        may_ask = is_published or values is own
        rounds.ask(ask if may_ask else None, self._sent)
        self._has_sent = True

    def _publish(self, values: Values) -> bool:
        checks = self.rounds.is_finite is not None
        write = partial(self.model.start_copy, check_finite=checks, values=values)
        return self.rounds.publish_snapshot(self._sent, self._sent.nbytes or 0, write)

    def update_wait(self, loss: float | None) -> Arrival | None:
        """Wait for the fetch of `update_send`, and merge. See `GossipRounds.wait_and_merge`.

        Returns the merged snapshot, the first if the algorithm asks for more. `None` also if the
        model's layout has changed since `update_send`.
        """
        rounds = self.rounds
        if self.model.layout != self._sent:
            rounds.skip()
            return None
        if self._has_sent:
            rounds.algorithm.after_step(rounds.view)
            self._has_sent = False
        arrival = rounds.wait_and_merge(loss, self._merge)
        for ask in rounds.algorithm.more:
            rounds.ask(ask, self._sent)
            second = rounds.wait_and_merge(None, self._merge)
            arrival = arrival or second
        # A clip needs all of a snapshot, to tell whether a peer lies.
        if rounds.algorithm.averages_buffers and self._clip is None:
            self._average_buffers()
        return arrival

    def _average_buffers(self) -> None:
        shard = self.model.buffers_shard()
        if shard is not None:
            for arrival in self.rounds.read_all(self._sent, shard):
                ReceivedSnapshot(arrival, self.model, None).merge_buffers(arrival.factor)

    def _merge(self, arrival: Arrival) -> float:
        received = ReceivedSnapshot(arrival, self.model, self._clip)
        if arrival.takes_over:
            factor = received.merge(1.0)
            self.took_over()
            self.rounds.renew_algorithm()
        else:
            factor = self.rounds.algorithm.merge(self.rounds.view, received)
        self.consensus_distance = self.rounds.figures.consensus_distance = received.distance
        return factor

    def publish_model(self) -> bytes | None:
        """Publish the model for averaging. Return a digest, or `None` if that failed."""
        self._sent, self._has_sent = self.model.layout, False
        self.model.begin_mean()
        return self.rounds.settle(self._publish(self.model.values()))

    def merge_peer(self, peer: str, weight: float) -> float | None:
        """Merge the complete snapshot of a peer, shard by shard.

        Returns the distance to the peer before the merge, or `None` if a shard is missing.
        """
        distances: list[float] = []

        def merge(arrival: Arrival) -> float:
            received = ReceivedSnapshot(arrival, self.model, self._clip)
            factor = received.merge(arrival.factor)
            distances.append(received.distance)
            return factor

        layout = self.model.layout
        for shard in shards_of(layout, self.rounds.fraction):
            read = self.rounds.fetch_and_merge(peer, layout, shard, weight, merge)
            if read is None:
                return None
            weight = max(weight, read.factor)  # all of it in full, if a part of it was
        distance = math.sqrt(sum(d * d for d in distances) / len(distances))
        self.consensus_distance = self.rounds.figures.consensus_distance = distance
        return distance

    def go_on(self, others_train: bool) -> bool:
        """Take part in rounds with peers that still train. Return whether a snapshot was merged."""
        rounds = self.rounds
        if others_train and rounds.algorithm.terms is Terms.SHARE:
            # Else those who train would draw all mass to themselves.
            ask = rounds.algorithm.asks(rounds.view)
            if ask is not None:
                rounds.ask(ask, self.model.layout)
        return rounds.wait_and_merge(None, self._merge) is not None
