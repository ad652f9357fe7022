"""FetchTargets: whom an algorithm asks, and for what."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from dpwa.algorithms import Algorithm, Ask, Terms
from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.snapshot import Snapshot
from dpwa.errors import UserError
from dpwa.node.arrival import Arrival, FetchTerms, Source, mapped, objection, streamed
from dpwa.node.assembly import neighbours_in
from dpwa.node.context import NodeContext
from dpwa.node.fetching.fetch_request import FetchRequest, FetchTarget, Found, IncomingSnapshot
from dpwa.node.serving.snapshot_service import MOST_ROUNDS_BEHIND
from dpwa.policy.health import Outcome
from dpwa.wire.fetching import Ended
from dpwa.wire.shards import WHOLE, shard_of


class ShardGroup(Protocol):
    """The ranks of a member whose model is sharded: each has a node of its own, for its shards.

    All of them call each method at the same place of the same round.
    """

    is_sharded: bool
    """Whether there are any; else the model is not sharded."""

    def agreed(self, ask: Ask | None, draw: Callable[[Collection[str]], str | None]) -> Ask | None:
        """Return what all of them ask for; `None`: nothing.

        `ask` is what the algorithm of this rank would ask. `draw` returns a peer by flow control,
        none of those that it is given.
        """
        ...

    def same_for_all(
        self, arrival: Arrival | None, older: Callable[[Arrival, int], Arrival | None]
    ) -> Arrival | None:
        """Return an arrival of the same version of the same peer on all ranks, or `None`.

        Other arrivals are released. `older` returns an older version of one, if that can still be
        had.
        """
        ...

    def all(self, own: bool) -> bool:
        """Tell whether something is so on all ranks."""
        ...


class Unsharded:
    """The shard group of a node whose model is not sharded."""

    is_sharded = False

    def agreed(self, ask: Ask | None, draw: Callable[[Collection[str]], str | None]) -> Ask | None:  # noqa: ARG002
        """Return what the algorithm asks; flow control draws later."""
        return ask

    def same_for_all(
        self,
        arrival: Arrival | None,
        older: Callable[[Arrival, int], Arrival | None],  # noqa: ARG002
    ) -> Arrival | None:
        return arrival

    def all(self, own: bool) -> bool:
        return own


class FetchTargets:
    """Turns what an algorithm asks for into what is to be fetched; on the training thread."""

    def __init__(self, context: NodeContext, algorithm: type[Algorithm]) -> None:
        self._config = context.config
        self._peer_table = context.peer_table
        self._pool = context.pool
        self._algorithm = algorithm
        self._neighbours = neighbours_in(context.config, context.name)
        self._next_shard = 0  # which shard of the parameters is next
        default = "merge" if algorithm.repeats else "skip"
        self._repeats = (context.config.repeat or default) == "merge"

    def check(self, ask: object) -> None:
        """Raise `UserError` if a custom algorithm returned no `Ask`, or one for nobody in view."""
        who = f"algorithm {self._config.algorithm!r}: asks"
        peers = self._peer_table.names
        if not isinstance(ask, Ask):
            raise UserError(f"{who} returned {ask!r}; expected an Ask, or None [DPWA-E118]")
        # Where peers come and go, one may have gone since the algorithm looked.
        is_lost = ask.peer is not None and ask.peer not in peers
        if is_lost and not self._config.is_open:
            known = ", ".join(peers) or "none"
            raise UserError(
                f"{who} returned {ask!r}; expected one of the peers in view: {known} [DPWA-E118]"
            )
        if ask.terms is not self._algorithm.terms:
            terms = self._algorithm.terms
            raise UserError(
                f"{who} returned {ask!r}; expected the terms of the class, {terms} [DPWA-E118]"
            )

    def among(self, updates: int) -> Collection[str] | None:
        return self._neighbours.among(self._peer_table.names, updates - 1)

    def of(
        self,
        ask: Ask,
        layout: Layout,
        terms: FetchTerms,
        *,
        published: int | None,  # the version of this node in this round, if any
        updates: int,
        clock: float,  # the peer must not be far behind it; 0 for any
        # later fetches of an update want more mixing; peers may have published nothing since
        is_first: bool,
        takes_all: bool,  # fetch all of the parameters, whatever the terms
        without: str = "",  # a peer that another one is to confirm; any other in view will do
    ) -> FetchTarget:
        is_whole = takes_all or ask.terms is not Terms.PULL
        skips = is_first and ask.terms is Terms.PULL and not self._repeats
        is_tagged = ask.peer is None and self._neighbours.are_tagged and not without
        among = None if ask.peer else self.among(updates)
        if without:
            among = [name for name in self._peer_table.names if name != without]
        version = self._pool.version if published is None else published
        self._next_shard += 1
        return FetchTarget(
            layout=layout,
            shard=WHOLE if is_whole else shard_of(layout, terms.fraction, self._next_shard - 1),
            is_finite=terms.is_finite,
            terms=ask.terms,
            only=ask.peer,
            among=among,
            version=version if is_tagged else 0,
            own_version=self._pool.version,  # that is complete
            clock=clock,
            merged=self._peer_table.merged if skips else None,
        )


GRACE_S = 0.02  # what is granted to the TxThread past the deadline to report its result
POLL_S = 0.001


class Sources:
    """Begins fetches and opens what they have found; belongs to the training thread."""

    def __init__(self, context: NodeContext, fetch: Callable[[FetchRequest], None]) -> None:
        self._peer_table = context.peer_table
        self._fetch = fetch
        self._clock = context.runtime
        self._sleep = context.runtime.sleep
        self._rng = context.rng("peer")
        self._read: PeerMemory | None = None  # in which this thread has pinned something

    def draw(
        self, barred: Collection[str] = (), among: Collection[str] | None = None
    ) -> str | None:
        """Have flow control draw a peer that is not barred, out of all or `among` some."""
        return self._peer_table.choose(self._rng, barred, among)

    def pull(self, request: FetchRequest) -> None:
        """Begin with a fetch that needs no peer's consent."""
        if request.first is None:
            request.first = self.draw(among=request.target.among)
        memory = None if request.first is None else self._peer_table.memory_of(request.first)
        if request.first is not None and memory is not None:
            request.found = Found(request.first, memory)  # it lies there: nobody needs to be asked
        else:
            self._fetch(request)

    def older(self, peer: str, request: FetchRequest, version: int) -> Source | None:
        """Return a version that a peer has published before its newest, if it lies there still."""
        memory = self._peer_table.memory_of(peer)
        if memory is None or version == request.target.merged_of(peer):
            return None
        snapshot = self._pin(memory, request.layout, version)
        if snapshot is None or objection(snapshot, request) is not None:
            self.let_go()
            return None
        return mapped(peer, snapshot, request, self.let_go)

    def wait(self, request: FetchRequest) -> Source | None:
        """Wait for the result of a fetch; `None` if there is none, or it must not be merged."""
        found = request.take(request.deadline.remaining_s() + GRACE_S)
        return None if found is None else self._open(found, request)

    def _open(self, found: Found, request: FetchRequest, *, may_ask: bool = True) -> Source | None:
        if isinstance(found.source, IncomingSnapshot):
            return streamed(found.peer, found.source)
        if not isinstance(found.source, PeerMemory):
            return None  # the transaction manager has it
        snapshot = self._pinned(found.source, request)
        if snapshot is None:
            return self._missing(found.peer, request, may_ask=may_ask)
        is_known = snapshot.version == request.target.merged_of(found.peer)
        if not is_known:
            self._peer_table.told_clock(found.peer, snapshot.progress.clock)
        why_not = Ended(Outcome.NOTHING_NEW) if is_known else objection(snapshot, request)
        if why_not is not None:
            self.let_go()
            self._peer_table.record(found.peer, why_not.outcome, why_not.detail)
            return None
        return mapped(found.peer, snapshot, request, self.let_go)

    def let_go(self) -> None:
        """Release what is pinned, also by an interrupted call."""
        if self._read is not None:
            self._read.unpin(self)
            self._read = None

    def _pin(self, memory: PeerMemory, layout: Layout, version: int = 0) -> Snapshot | None:
        if self._read is not memory:
            self.let_go()
            self._read = memory
        lease = memory.pin(layout, version, self)
        return None if lease is None else lease.snapshot

    def _pinned(self, memory: PeerMemory, request: FetchRequest) -> Snapshot | None:
        """Pin the snapshot that is wanted; wait for one that the peer has yet to publish."""
        target = request.target
        snapshot = self._pin(memory, target.layout, target.version)
        while snapshot is None and target.version and not request.deadline.expired():
            if not memory.is_alive(self._clock.now()):
                break
            snapshot = self._pin(memory, target.layout)
            if snapshot is None or target.version - snapshot.version > MOST_ROUNDS_BEHIND:
                break  # it is far behind, as after a restart: that one will do
            self.let_go()
            self._sleep(POLL_S)
            snapshot = self._pin(memory, target.layout, target.version)
        return snapshot

    def _missing(self, peer: str, request: FetchRequest, *, may_ask: bool) -> Source | None:
        """Ask a peer whose memory has nothing for this node any more; it says why."""
        if request.target.version and request.deadline.expired():
            self._peer_table.record(peer, Outcome.TIMED_OUT, "it is rounds behind")
            return None
        if not may_ask:
            self._peer_table.record(peer, Outcome.LOST, "its shared memory cannot be mapped")
            return None
        self._peer_table.share(peer, None)
        again = request.again(peer)
        self._fetch(again)
        found = again.take(again.deadline.remaining_s() + GRACE_S)
        return None if found is None else self._open(found, again, may_ask=False)
