"""The exchange that reduces the values of all members, shard by shard.

Every member owns a shard. The owner reduces this shard of all values, and the other members read
the result from the owner. So each member receives and sends (N - 1)/N of a value twice, as in a
ring, in two steps instead of 2(N - 1). Data on this host are read directly from shared memory.
Other data are pulled in pieces.

If a node is in `join` because it has no data left, every member reduces this node's shard. A
broadcast is a reduction of one value. Two nodes on one host use no shards.
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
PAIR_PIECE_BYTES = 4 * 1024 * 1024  # `reduce_into` cuts these pieces into tiles


@dataclass(frozen=True)
class ReducedShard:
    """A shard of a value, which its `owner` reduces, or every member if `owner` is ""."""

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
    """Cut a value into one shard per owner. All nodes with this layout cut the same shards.
    In a simulation, each byte counts as `bytes_scale` bytes.
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
    """The exchange of two nodes on one host. Each node reduces both whole values by itself.

    A pair exchange copies less memory than shards do. The value changes before it is known whether
    the collective succeeds. If the collective fails, `undo` restores the value.
    """

    payload: Payload
    brought: ByteArray  # a copy of the value before the exchange
    theirs: ByteArray
    op: str
    is_last: bool  # whether this node has the higher rank
    _changed: int = 0

    def run_exchange(self, look: Callable[[], bool]) -> None:
        """Reduce the two values piece by piece. Stop early if `look` returns true."""
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
        """Do nothing, because `run_exchange` has already written the result."""

    def undo(self) -> None:
        self.payload.assign(0, self._changed, self.brought[: self._changed])


@dataclass
class Exchange:
    """The work of this node in an exchange that is divided into shards."""

    own: str
    op: str
    sources: tuple[str, ...]  # the members whose values are reduced, in order of rank
    shards: Sequence[ReducedShard]
    # mapped buffers of members on this host: the member's value, and its reduced shard
    near: Mapping[str, tuple[ByteArray, ByteArray]]
    payload: Payload
    reduced: ByteArray  # the memory for this node's reduced shard
    puller: Puller  # fetches data from other hosts
    # called with the position in the value up to which this node's shard is reduced
    on_reduced: Callable[[int], None]
    # shards without an owner, and results from other hosts, by their start
    _alone: dict[int, ByteArray] = field(default_factory=dict)
    _pulled: dict[int, ByteArray] = field(default_factory=dict)
    # by the start of a piece
    _pending: dict[int, dict[str, ByteArray]] = field(default_factory=dict)
    _reduced_pieces: set[int] = field(default_factory=set)
    _in_order: int = 0  # number of reduced pieces of this node's shard before the first gap

    def run_exchange(self, look: Callable[[], bool]) -> None:
        """Reduce this node's shards, and fetch the others. Stop early if `look` returns true."""
        for shard in self.shards:
            if shard.owner in self.near and self.near[shard.owner][1].nbytes < shard.nbytes:
                raise ProtocolError(
                    f"the shared memory of {shard.owner} is too small for the part of the result "
                    f"that {shard.owner} computes"
                )
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
        """Do nothing, because `run_exchange` has not changed this node's value."""

    def complete(self) -> None:
        """Write the result into this node's value, once the collective has succeeded."""
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
            names = (self.own, *self._others)  # equal order is needed only if every member reduces
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
        """Record a reduced piece, and call `on_reduced` if the reduced start of the shard grew."""
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
        """Return a shard's result if a node on this host has reduced the shard, else `None`."""
        if not shard.owner:
            return self._alone[shard.start]
        if shard.owner == self.own:
            return self.reduced[: shard.nbytes]
        return self.near[shard.owner][1][: shard.nbytes] if shard.owner in self.near else None
