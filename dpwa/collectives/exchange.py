"""The exchange that reduces the values of all members, shard by shard.

Every member owns a shard. It reduces that shard of all values, and the others read the result from
it. So (N - 1)/N of a value goes in and out of each member twice, as in a ring, in two steps instead
of 2(N - 1). Data on this host are read directly from shared memory. Other data are pulled in
pieces.

Every member reduces the shard of a node that has joined because it has no data left. A broadcast is
a reduction of one value. Two nodes on one host use no shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpwa.collectives.pulling import BROUGHT, REDUCED, Puller
from dpwa.data.layout import Layout, Piece
from dpwa.data.payload import Payload
from dpwa.data.reduction import TILE_BYTES, combine, reduce_into
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError
from dpwa.wire import limits

MIN_PIECE_BYTES = 64 * 1024
MAX_PIECE_BYTES = limits.MAX_PULLED_BYTES
PIECES_PER_SHARD = 4
PAIR_PIECE_BYTES = 4 * 1024 * 1024  # cut into tiles where it is added up


@dataclass(frozen=True)
class ReducedShard:
    """A part of a buffer, and the member that reduces it (empty: every node itself)."""

    pieces: tuple[Piece, ...]
    start: int
    stop: int
    owner: str

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


def cut(
    layout: Layout, nbytes: int, owners: Sequence[str], bytes_scale: float = 1.0
) -> list[ReducedShard]:
    """Cut a buffer into a shard of whole pieces for each owner, alike for the same layout.
    `bytes_scale` is the number of bytes that each byte stands for.
    """
    count = len(owners)
    piece_bytes = nbytes // (count * PIECES_PER_SHARD)
    piece_bytes = max(piece_bytes, math.ceil(MIN_PIECE_BYTES / bytes_scale))
    piece_bytes = min(piece_bytes, MAX_PIECE_BYTES)
    pieces, shards = layout.pieces(nbytes, -(-piece_bytes // 64) * 64), []
    for index, owner in enumerate(owners):
        own = pieces[len(pieces) * index // count : len(pieces) * (index + 1) // count]
        start, stop = (own[0].start, own[-1].stop) if own else (0, 0)
        shards.append(ReducedShard(own, start, stop, owner))
    return shards


@dataclass
class PairExchange:
    """The exchange of two nodes on one host. Each adds the other's whole buffer to its own value.

    That moves less memory than shards do. The value changes before it is known whether the
    collective holds. If it does not, `undo` restores the value.
    """

    payload: Payload
    brought: ByteArray  # what the value was
    theirs: ByteArray
    op: str
    is_last: bool  # this node comes after the other in rank
    _changed: int = 0

    def run_exchange(self, look: Callable[[], bool]) -> None:
        """Add up. `look` is called from time to time, and ends it by returning true."""
        by = 2 if self.op == "mean" else 1
        for piece in self.payload.layout.pieces(self.payload.nbytes, PAIR_PIECE_BYTES):
            place = self.payload.place(piece.start, piece.stop)
            own = self.brought[piece.start : piece.stop]
            target = own.copy() if place is None else place
            self._changed = piece.stop
            theirs = [self.theirs[piece.start : piece.stop]]
            reduce_into(target, theirs, piece.dtype, self.op, by=by, is_last=self.is_last)
            if place is None:
                self.payload.assign(piece.start, piece.stop, target)
            if look():
                return

    def complete(self) -> None:
        """Nothing is left to do."""

    def undo(self) -> None:
        self.payload.assign(0, self._changed, self.brought[: self._changed])


@dataclass
class Exchange:
    """This node's part in an exchange by shards."""

    own: str
    op: str
    sources: tuple[str, ...]  # whose values are reduced, in order of rank
    shards: Sequence[ReducedShard]
    # what members on this host bring, and reduce: mapped; the others are elsewhere
    near: Mapping[str, tuple[ByteArray, ByteArray]]
    payload: Payload
    reduced: ByteArray  # where this node's shard is reduced
    puller: Puller  # gets what is on other hosts
    # called with how far, within the buffer, this node's shard has been reduced
    on_reduced: Callable[[int], None]
    # shards without an owner, and results of other hosts, by their start
    _alone: dict[int, ByteArray] = field(default_factory=dict)
    _pulled: dict[int, ByteArray] = field(default_factory=dict)
    # of pieces, by their start
    _pending: dict[int, dict[str, ByteArray]] = field(default_factory=dict)
    _reduced_pieces: set[int] = field(default_factory=set)
    _in_order: int = 0  # how many of this node's shard are there without a gap

    def run_exchange(self, look: Callable[[], bool]) -> None:
        """Reduce this node's shards, and get the others. `look` ends it by returning true."""
        for shard in self.shards:
            if shard.owner in self.near and self.near[shard.owner][1].nbytes < shard.nbytes:
                raise ProtocolError(f"the memory of {shard.owner} is too small for its shard")
        shards = [s for s in self.shards if s.owner in (self.own, "") and s.pieces]
        self._alone = {s.start: np.empty(s.nbytes, np.uint8) for s in shards if not s.owner}
        at = {piece.start: (shard, piece) for shard in shards for piece in shard.pieces}
        far_sources = [name for name in self._others if name not in self.near]
        self._ask([piece for _, piece in at.values()], far_sources)
        if not far_sources:
            for shard, piece in at.values():
                self._reduce(shard, piece, {})
                if look():
                    return
        for request, data in self.puller.arrivals(look):
            if request.area == REDUCED:
                self._pulled[request.start] = data
                continue
            pending = self._pending.setdefault(request.start, {})
            pending[request.peer] = data
            if len(pending) == len(far_sources):
                self._reduce(*at[request.start], self._pending.pop(request.start))

    def read_from(self, near: str) -> int:
        """Return the number of bytes that this node reads from the memory of a member."""
        own = (self.own, "") if near in self.sources else ()
        return sum(shard.nbytes for shard in self.shards if shard.owner in (near, *own))

    def undo(self) -> None:
        """Nothing has been changed."""

    def complete(self) -> None:
        """Write the result into the value of this node. This is called once the result holds."""
        for shard in self.shards:
            result = self._result(shard) if shard.pieces else None
            if result is not None:
                self.payload.assign(shard.start, shard.stop, result)
        for start, result in self._pulled.items():
            self.payload.assign(start, start + result.nbytes, result)

    @cached_property
    def _others(self) -> list[str]:
        return [name for name in self.sources if name != self.own]

    def _ask(self, pieces: Iterable[Piece], far_sources: Sequence[str]) -> None:
        for piece in pieces:
            for name in far_sources:
                self.puller.request(name, BROUGHT, piece.start, piece.stop)
        for shard in self.shards:
            if shard.owner not in ("", self.own, *self.near):
                self.puller.request(shard.owner, REDUCED, shard.start, shard.stop)
        self.puller.start()

    def _reduce(self, shard: ReducedShard, piece: Piece, pulled: Mapping[str, ByteArray]) -> None:
        place = self.reduced if shard.owner else self._alone[shard.start]
        near = {n: self.near[n][0] for n in self._others if n in self.near}
        theirs = {n: brought[piece.start : piece.stop] for n, brought in near.items()} | {**pulled}
        names = self.sources
        if shard.owner == self.own and self.own in names:
            names = (self.own, *self._others)  # only where everyone reduces must all do so alike
        by = len(names) if self.op == "mean" else 1
        for start in range(piece.start, piece.stop, TILE_BYTES):
            stop = min(start + TILE_BYTES, piece.stop)
            within = slice(start - piece.start, stop - piece.start)
            target = place[start - shard.start : stop - shard.start]
            values = [
                self._own_value(start, stop) if name == self.own else theirs[name][within]
                for name in names
            ]
            combine(target, values, piece.dtype, self.op, by=by)
        if shard.owner:
            self._done(shard, piece)

    def _own_value(self, start: int, stop: int) -> ByteArray:
        view = self.payload.view(start, stop)
        if view is None:
            view = np.empty(stop - start, np.uint8)
            self.payload.copy_into(start, stop, view)
        return view

    def _done(self, shard: ReducedShard, piece: Piece) -> None:
        """Make the part of the shard readable that is reduced without a gap from its start."""
        self._reduced_pieces.add(piece.start)
        before = self._in_order
        while (
            self._in_order < len(shard.pieces)
            and shard.pieces[self._in_order].start in self._reduced_pieces
        ):
            self._in_order += 1
        if self._in_order > before:
            self.on_reduced(shard.pieces[self._in_order - 1].stop)

    def _result(self, shard: ReducedShard) -> ByteArray | None:
        """Return a reduced shard, or `None` if it was pulled."""
        if not shard.owner:
            return self._alone[shard.start]
        if shard.owner == self.own:
            return self.reduced[: shard.nbytes]
        return self.near[shard.owner][1][: shard.nbytes] if shard.owner in self.near else None
