"""How the values of all members become one, shard by shard.

Every member owns a shard. It reduces that shard of all values, and the others take the result from
it: twice (N - 1)/N of a value go in and out of each, as in a ring, in two steps, not 2(N - 1). What
is on this host is read straight from shared memory; the rest is pulled in pieces.

The shard of a node that has joined, as it has no data left, is reduced by everybody. A broadcast is
a reduction of one value. Two nodes on one host do without shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpwa.collectives.pulling import BROUGHT, POLL_S, REDUCED, Arrived, Puller, PullRequest
from dpwa.data.layout import Layout, Piece
from dpwa.data.payload import Payload
from dpwa.data.reduction import TILE_BYTES, combine, reduce_into
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError
from dpwa.wire import limits

LEAST_PIECE_BYTES = 64 * 1024
MOST_PIECE_BYTES = limits.MAX_PULLED_BYTES
PIECES_PER_SHARD = 4
PAIR_PIECE_BYTES = 4 * 1024 * 1024  # cut into tiles where it is added up


@dataclass(frozen=True)
class ReducedShard:
    """A part of a buffer, and who reduces it; `None`: every node for itself."""

    pieces: tuple[Piece, ...]
    owner: str | None

    @property
    def start(self) -> int:
        return self.pieces[0].start if self.pieces else 0

    @property
    def stop(self) -> int:
        return self.pieces[-1].stop if self.pieces else 0

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


def cut(layout: Layout, nbytes: int, count: int) -> list[tuple[Piece, ...]]:
    """Cut a buffer into `count` shards of whole pieces; all who have the same layout cut alike."""
    piece_bytes = nbytes // (count * PIECES_PER_SHARD)
    piece_bytes = min(max(piece_bytes, LEAST_PIECE_BYTES), MOST_PIECE_BYTES)
    pieces = layout.pieces(nbytes, -(-piece_bytes // 64) * 64)
    ends = [len(pieces) * index // count for index in range(count + 1)]
    return [pieces[start:stop] for start, stop in itertools.pairwise(ends)]


@dataclass(frozen=True)
class Side:
    """Where the buffers of a member on this host are mapped; of one elsewhere they are `None`."""

    brought: ByteArray | None = None
    reduced: ByteArray | None = None


@dataclass(frozen=True)
class ExchangePlan:
    """Who does what in one exchange."""

    own: str
    op: str
    sources: tuple[str, ...]  # whose values are reduced, in order of rank
    shards: Sequence[ReducedShard]
    sides: Mapping[str, Side]  # the buffers of all members but this node

    @property
    def divisor(self) -> int:
        return len(self.sources) if self.op == "mean" else 1

    @property
    def own_shards(self) -> list[ReducedShard]:
        return [shard for shard in self.shards if shard.owner in (self.own, None) and shard.pieces]


class PairExchange:
    """The exchange of two nodes on one host: each adds the other's whole buffer to its own value.

    That moves less memory than shards do. The value changes before it is known whether the
    collective holds; if not, `undo` brings back what it was. `is_last`: this node comes after the
    other in rank.
    """

    def __init__(
        self, payload: Payload, brought: ByteArray, theirs: ByteArray, op: str, *, is_last: bool
    ) -> None:
        self._payload = payload
        self._brought = brought
        self._theirs = theirs
        self._op = op
        self._is_last = is_last
        self._changed = 0

    def run(self, look: Callable[[], None]) -> None:
        """Add up; `look` is called now and then, and may raise to end it."""
        by = 2 if self._op == "mean" else 1
        pieces = self._payload.layout.pieces(self._payload.nbytes, PAIR_PIECE_BYTES)
        for piece in pieces:
            place = self._payload.place(piece.start, piece.stop)
            own = self._brought[piece.start : piece.stop]
            target = own.copy() if place is None else place
            self._changed = piece.stop
            theirs = self._theirs[piece.start : piece.stop]
            is_last = self._is_last
            reduce_into(target, [theirs], piece.dtype, self._op, by=by, is_last=is_last)
            if place is None:
                self._payload.assign(piece.start, piece.stop, target)
            look()

    def complete(self) -> None:
        """Nothing is left to do."""

    def undo(self) -> None:
        self._payload.assign(0, self._changed, self._brought[: self._changed])


class Exchange:
    """This node's part in it."""

    def __init__(
        self,
        plan: ExchangePlan,
        payload: Payload,
        reduced: ByteArray,  # where this node's shard is reduced
        puller: Puller,  # gets what is on other hosts
        # called with how far, within the buffer, this node's shard has been reduced
        on_reduced: Callable[[int], None],
    ) -> None:
        self._plan = plan
        self._payload = payload
        self._reduced = reduced
        self._puller = puller
        self._on_reduced = on_reduced
        self._alone: dict[int, ByteArray] = {}  # shards without an owner, by their start
        self._pulled: dict[int, ByteArray] = {}  # results of other hosts, by their start
        self._pending: dict[int, dict[str, ByteArray]] = {}
        self._reduced_pieces: set[int] = set()  # by their start
        self._in_order = 0  # how many of this node's shard are there without a gap

    def run(self, look: Callable[[], None]) -> None:
        """Reduce this node's shards, and get those of others; `look` may raise to end it."""
        for shard in self._plan.shards:
            reduced = self._side(shard.owner or "").reduced
            if reduced is not None and reduced.nbytes < shard.nbytes:
                raise ProtocolError(f"the memory of {shard.owner} is smaller than its shard")
        far_sources = [name for name in self._others if self._side(name).brought is None]
        shards = self._plan.own_shards
        self._alone = {s.start: np.empty(s.nbytes, np.uint8) for s in shards if s.owner is None}
        self._ask(shards, far_sources)
        if far_sources:
            self._serve_arrivals(shards, far_sources, look)
            return
        for shard in shards:
            for piece in shard.pieces:
                self._reduce(shard, piece, {})
                look()
        self._serve_arrivals(shards, far_sources, look)

    def undo(self) -> None:
        """Nothing has been changed."""

    def complete(self) -> None:
        """Write the result into the value of this node; called when it is known to hold."""
        for shard in self._plan.shards:
            result = self._result(shard) if shard.pieces else None
            if result is not None:
                self._payload.assign(shard.start, shard.stop, result)
        for start, result in self._pulled.items():
            self._payload.assign(start, start + result.nbytes, result)

    @property
    def _others(self) -> list[str]:
        return [name for name in self._plan.sources if name != self._plan.own]

    def _side(self, name: str) -> Side:
        return self._plan.sides.get(name, Side())

    def _ask(self, shards: Sequence[ReducedShard], far_sources: Sequence[str]) -> None:
        for shard in shards:
            for piece in shard.pieces:
                for name in far_sources:
                    self._puller.request(PullRequest(name, BROUGHT, piece.start, piece.stop))
        for shard in self._plan.shards:
            owner = shard.owner
            if owner not in (None, self._plan.own) and self._side(owner or "").reduced is None:
                for start in range(shard.start, shard.stop, limits.MAX_PULLED_BYTES):
                    stop = min(start + limits.MAX_PULLED_BYTES, shard.stop)
                    self._puller.request(PullRequest(owner or "", REDUCED, start, stop))
        self._puller.start()

    def _serve_arrivals(
        self, shards: Sequence[ReducedShard], far_sources: Sequence[str], look: Callable[[], None]
    ) -> None:
        at = {piece.start: (shard, piece) for shard in shards for piece in shard.pieces}
        while self._puller.missing:
            look()
            arrived = self._puller.take(POLL_S)
            if arrived is None:
                continue
            if arrived.request.area == REDUCED:
                self._pulled[arrived.request.start] = arrived.data
            else:
                self._take(arrived, at, len(far_sources))

    def _take(
        self, arrived: Arrived, at: Mapping[int, tuple[ReducedShard, Piece]], sources: int
    ) -> None:
        start = arrived.request.start
        pending = self._pending.setdefault(start, {})
        pending[arrived.request.peer] = arrived.data
        if len(pending) == sources:
            self._reduce(*at[start], self._pending.pop(start))

    def _reduce(self, shard: ReducedShard, piece: Piece, pulled: Mapping[str, ByteArray]) -> None:
        place = self._reduced if shard.owner is not None else self._alone[shard.start]
        theirs = {name: self._theirs(name, piece, pulled) for name in self._others}
        for start in range(piece.start, piece.stop, TILE_BYTES):
            stop = min(start + TILE_BYTES, piece.stop)
            within = slice(start - piece.start, stop - piece.start)
            target = place[start - shard.start : stop - shard.start]
            values = [
                self._own_value(start, stop) if name == self._plan.own else theirs[name][within]
                for name in self._order(shard)
            ]
            combine(target, values, piece.dtype, self._plan.op, by=self._plan.divisor)
        if shard.owner is not None:
            self._done(shard, piece)

    def _order(self, shard: ReducedShard) -> Sequence[str]:
        """Return whose values come first; where everyone reduces for itself, all do so alike."""
        own, sources = self._plan.own, self._plan.sources
        if shard.owner is None or own not in sources:
            return sources
        return [own, *self._others]

    def _own_value(self, start: int, stop: int) -> ByteArray:
        view = self._payload.view(start, stop)
        if view is None:
            view = np.empty(stop - start, np.uint8)
            self._payload.copy_into(start, stop, view)
        return view

    def _theirs(self, name: str, piece: Piece, pulled: Mapping[str, ByteArray]) -> ByteArray:
        if name in pulled:
            return pulled[name]
        brought = self._side(name).brought
        if brought is None:
            raise AssertionError(f"nothing was pulled from {name}")
        return brought[piece.start : piece.stop]

    def _done(self, shard: ReducedShard, piece: Piece) -> None:
        """Let others have what has been reduced without a gap from the start of the shard."""
        self._reduced_pieces.add(piece.start)
        before = self._in_order
        while (
            self._in_order < len(shard.pieces)
            and shard.pieces[self._in_order].start in self._reduced_pieces
        ):
            self._in_order += 1
        if self._in_order > before:
            self._on_reduced(shard.pieces[self._in_order - 1].stop)

    def _result(self, shard: ReducedShard) -> ByteArray | None:
        """Return a shard, reduced; `None` if it was pulled."""
        if shard.owner is None:
            return self._alone[shard.start]
        if shard.owner == self._plan.own:
            return self._reduced[: shard.nbytes]
        reduced = self._side(shard.owner).reduced
        return None if reduced is None else reduced[: shard.nbytes]
