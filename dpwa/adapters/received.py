"""ReceivedSnapshot: a peer's snapshot as an algorithm merges it into a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dpwa.adapters.merging import MergeTerms
from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.values import TensorValues
from dpwa.algorithms import Values
from dpwa.data.segments import ByteArray
from dpwa.errors import UserError
from dpwa.node.arrival import Arrival
from dpwa.policy.clipping import ClipRadius
from dpwa.types import TrainingProgress
from dpwa.wire.shards import Shard


class ReceivedSnapshot:
    """What came of one fetch or transaction; see `dpwa.algorithms.Received`."""

    def __init__(
        self,
        arrival: Arrival,
        state: ModuleState,
        clip: ClipRadius | None = None,  # shortens merges that go too far; `None`: none are
    ) -> None:
        self.peer: str = arrival.peer
        self.standing: TrainingProgress = arrival.progress
        self.factor: float = arrival.factor
        self.consensus_distance = 0.0  # distance to the peer, as far as measured
        self._arrival = arrival
        self._state = state
        self._clip = clip
        self._own_copy: TensorValues | None = None
        self._scale: float | None = None

    @property
    def published(self) -> TensorValues:
        """What this node has published in the same round, or if it could not, its parameters."""
        own = self._arrival.published
        if own is not None:
            return self._state.view_of(own.data)
        if self._own_copy is None:
            self._own_copy = self._state.values().clone()
        return self._own_copy

    def merge(self, factor: float, *, delta: bool = False, buffers: float | None = None) -> float:
        _require_factor("merge", factor)
        _require_factor("merge(buffers=...)", 0.0 if buffers is None else buffers)
        scale = self._scale_of_clip()
        published = self._arrival.published if delta else None
        weight = factor if buffers is None else buffers
        return self._merge(
            MergeTerms(
                factor=factor * scale,
                published=None if published is None else published.data,
                buffers=weight * scale,
            )
        )

    def merge_buffers(self, factor: float) -> None:
        _require_factor("merge_buffers", factor)
        weight = factor * self._scale_of_clip()
        self._merge(MergeTerms(factor=0.0, buffers=weight, parameters=False))

    def values(self, into: Values | None = None) -> TensorValues:
        """Return a copy of the peer's parameters.

        Raises `UserError` if the round fetches a part of the parameters only.
        """
        scale, whole = self._scale_of_clip(), self._all()
        room = into if isinstance(into, TensorValues) else None
        values = self._state.values_of(whole, room)
        own = self._state.values()
        self.consensus_distance = self._state.whole(values.distance(own))
        if scale < 1.0:
            values.lerp_(own, 1.0 - scale)
        return values

    def _merge(self, terms: MergeTerms) -> float:
        merging = self._state.merging(terms)
        merging.take(self._arrival.start, self._arrival.data)
        self.consensus_distance = self._state.whole(merging.consensus_distance)
        return terms.factor

    def _all(self) -> ByteArray:
        if self._arrival.data.nbytes != self._arrival.nbytes:
            raise UserError(
                "an algorithm that needs all values of a peer needs `fraction: 1`, and so "
                "does `robust: clip` [DPWA-E117]"
            )
        return self._arrival.data

    def _scale_of_clip(self) -> float:
        """Return by how much the merge is shortened, from 0 to 1."""
        if self._clip is None:
            return 1.0
        if self._scale is None:
            own = self._arrival.published
            distance = self._state.distance(self._all(), 0, None if own is None else own.data)
            self._scale = self._clip.scale(distance)
        return self._scale


def _require_factor(method: str, factor: float) -> None:
    if not 0.0 <= factor <= 1.0:
        raise UserError(
            f"received.{method}: expected a factor from 0 to 1 (got {factor!r}) [DPWA-E116]"
        )


def merge_whole(
    # fetches a shard with this weight and passes it on; `None` if it does not come
    read: Callable[[Shard, float, Callable[[Arrival], float]], Arrival | None],
    shards: Iterable[Shard],
    weight: float,  # of the peer, from 0 to 1
    state: ModuleState,
    clip: ClipRadius | None,  # shortens merges that go too far; `None`: none are
) -> float | None:
    """Merge all of a peer's snapshot; return the distance before, `None` if not all of it came."""
    distances: list[float] = []

    def merge(arrival: Arrival) -> float:
        received = ReceivedSnapshot(arrival, state, clip)
        factor = received.merge(arrival.factor)
        distances.append(received.consensus_distance)
        return factor

    factor = weight
    for shard in shards:
        arrival = read(shard, factor, merge)
        if arrival is None:
            return None
        factor = max(factor, arrival.factor)  # all of it in full, if a part of it was
    return math.sqrt(sum(d * d for d in distances) / len(distances))
