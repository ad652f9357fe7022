"""What a fetch has brought, ready to be merged: in shared memory, or received."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import Snapshot
from dpwa.node.fetching.fetch_request import FetchRequest, IncomingSnapshot, IsFinite
from dpwa.node.transactions.manager import Settled
from dpwa.policy.beginners import is_far_behind
from dpwa.policy.health import Outcome
from dpwa.types import TrainingProgress
from dpwa.wire.fetching import Ended, pieces_of


@dataclass(frozen=True)
class FetchTerms:
    """What a fetch brings, and whether it is checked."""

    fraction: float = 1.0  # of the parameters, a different part every time
    # tests the values of a dtype, on any thread; `None`: unchecked
    is_finite: IsFinite | None = None


WHOLE_SNAPSHOT = FetchTerms()


@dataclass(frozen=True)
class Source:
    """A peer's snapshot, or the pieces of it that this round fetches, to be read now."""

    peer: str
    nbytes: int  # of the whole snapshot
    progress: TrainingProgress  # clock and loss of the peer when it published
    version: int
    start: int  # where `data` begins in the snapshot
    data: ByteArray  # valid until `release`; not to be written to
    release: Callable[[], None]  # called by the node


@dataclass(frozen=True)
class Arrival(Source):
    """A snapshot that is to be merged."""

    factor: float = 0.0  # weight to merge it with, from 0 to 1
    # this node's own snapshot of the round; `None` when it could not be published
    published: Snapshot | None = None
    staleness: float = 0.0  # updates that the peer's clock is behind this node's; negative: ahead
    waited_s: float = 0.0  # time that `wait` spent waiting for the snapshot
    takes_over: bool = False  # this node is far behind, and takes the parameters in full


Merge = Callable[[Arrival], float]  # returns the factor that it took


def streamed(peer: str, incoming: IncomingSnapshot) -> Source:
    return Source(
        peer=peer,
        nbytes=incoming.nbytes,
        progress=incoming.progress,
        version=incoming.version,
        start=incoming.start,
        data=incoming.data,
        release=lambda: None,  # the memory is that of the next fetch, which comes after the merge
    )


def mapped(
    peer: str, snapshot: Snapshot, request: FetchRequest, release: Callable[[], None]
) -> Source:
    pieces = pieces_of(request.layout, snapshot.data.nbytes, request.target.shard)
    start, stop = pieces[0].start, pieces[-1].stop
    return Source(
        peer=peer,
        nbytes=snapshot.data.nbytes,
        progress=snapshot.progress,
        version=snapshot.version,
        start=start,
        data=snapshot.data[start:stop],
        release=release,
    )


def settled(transaction: Settled) -> Source:
    """Return the snapshot of a committed transaction."""
    snapshot = transaction.theirs.snapshot
    return Source(
        peer=transaction.peer,
        nbytes=snapshot.data.nbytes,
        progress=snapshot.progress,
        version=snapshot.version,
        start=0,
        data=snapshot.data,
        release=transaction.release,
    )


def objection(snapshot: Snapshot, request: FetchRequest) -> Ended | None:
    """Say why a snapshot must not be merged; `None`: it may be."""
    why_not = _divergence(snapshot, request)
    if why_not:
        return Ended(Outcome.DIVERGED, why_not)
    if is_far_behind(snapshot.progress.clock, request.target.clock):
        return Ended(Outcome.BEHIND)
    return None


def _divergence(snapshot: Snapshot, request: FetchRequest) -> str:
    """Say what of it is not finite, and would spread to all nodes."""
    if snapshot.progress.loss == math.inf:
        return "its loss is not finite"
    is_finite = snapshot.is_finite
    if request.is_finite is None or is_finite:
        return ""
    if is_finite is None:
        pieces = pieces_of(request.layout, snapshot.data.nbytes, request.target.shard)
        data, check = snapshot.data, request.is_finite
        is_finite = all(check(data[p.start : p.stop], p.dtype, p.start) for p in pieces)
    return "" if is_finite else "its parameters or buffers are not finite"
