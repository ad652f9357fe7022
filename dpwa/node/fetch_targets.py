"""TrainerFetches makes fetches for the algorithm, and returns their results."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from dpwa.algorithms import Algorithm, Ask, Terms
from dpwa.clock import Deadline
from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.snapshot import Snapshot
from dpwa.errors import UserError
from dpwa.node.arrival import Arrival, FetchRequest, FetchTerms
from dpwa.node.assembly import neighbours_in
from dpwa.node.context import NodeContext
from dpwa.node.serving.snapshot_service import MAX_ROUNDS_BEHIND
from dpwa.policy.health import Outcome
from dpwa.wire.fetching import Ended, pieces_of
from dpwa.wire.shards import WHOLE, shard_of


class ShardGroup(Protocol):
    """The ranks of a node whose model is sharded. Each rank exchanges its own shards.

    All ranks call each method at the same place of the same round.
    """

    def agreed(self, ask: Ask | None, draw: Callable[[Collection[str]], str | None]) -> Ask | None:
        """Return the request of all ranks, or `None` if they make no request.

        `ask` is the request that the algorithm of this rank would make. `draw` lets flow control
        pick a peer that is not in the given collection.
        """
        ...

    def same_for_all(
        self, arrival: Arrival | None, older: Callable[[Arrival, int], Arrival | None]
    ) -> Arrival | None:
        """Return an arrival that has the same peer and version on all ranks, or `None`.

        Other arrivals are released. `older` returns an earlier version of an arrival, if the peer
        still has that version.
        """
        ...

    def all(self, own: bool) -> bool:
        """Tell whether `own` is true on all ranks."""
        ...


GRACE_S = 0.02  # time past the deadline in which the TxThread can report its result
POLL_S = 0.001
MAX_PEERS_TRIED = 4  # mapped peers in a round whose memory the training thread checks


class TrainerFetches:
    """Makes requests for an algorithm, starts them, and returns their results.

    It belongs to the training thread.
    """

    def __init__(
        self,
        context: NodeContext,
        algorithm: type[Algorithm],
        fetch: Callable[[FetchRequest], None],  # passes a request to the TxThread
    ) -> None:
        self._runtime = context.runtime
        self._fetch = fetch
        self._rng = context.rng("peer")
        self.reads: PeerMemory | None = None  # the memory in which this thread has pinned a slot
        self._config = context.config
        self._peer_table = context.peer_table
        self._pool = context.pool
        self._algorithm = algorithm
        self._neighbours = neighbours_in(context.config, context.name)
        self._next_shard = 0  # index of the next shard of the parameters
        default = "merge" if algorithm.repeats else "skip"
        self._repeats = (context.config.repeat or default) == "merge"

    def check(self, ask: object) -> None:
        """Raise `UserError` if a custom algorithm returned no `Ask`, or one for an unknown peer."""
        who = f"algorithm {self._config.algorithm!r}: asks"
        if not isinstance(ask, Ask):
            raise UserError(f"{who} returned {ask!r}; expected an Ask, or None [DPWA-E118]")
        # If peers come and go, the peer may have left since the algorithm chose it.
        is_lost = ask.peer is not None and not self._peer_table.knows(ask.peer)
        if is_lost and not self._config.is_open:
            known = ", ".join(self._peer_table.names) or "none"
            raise UserError(
                f"{who} returned {ask!r}; expected one of the peers in view: {known} [DPWA-E118]"
            )
        if ask.terms is not self._algorithm.terms:
            terms = self._algorithm.terms
            raise UserError(
                f"{who} returned {ask!r}; expected the terms of the class, {terms} [DPWA-E118]"
            )

    def request(
        self,
        ask: Ask,
        layout: Layout,
        terms: FetchTerms,
        deadline: Deadline,
        *,
        published: int | None,  # version that this node published in this round, if any
        updates: int,
        clock: float,  # the peer must not be far behind this clock; 0: any peer
        takes_all: bool,  # fetch all parameters, whatever the terms
        without: str = "",  # a peer whose clock any other peer in view should confirm
    ) -> FetchRequest:
        is_whole = takes_all or ask.terms is not Terms.PULL or terms.fraction >= 1.0
        skips = ask.terms is Terms.PULL and not self._repeats and not without
        is_tagged = ask.peer is None and self._neighbours.are_tagged and not without
        among = None
        if not ask.peer and not self._neighbours.are_everybody:
            among = self._neighbours.among(self._peer_table.names, updates - 1)
        if without:
            among = [name for name in self._peer_table.names if name != without]
        self._next_shard += 1
        return FetchRequest(
            layout,
            deadline,
            self._runtime,
            shard=WHOLE if is_whole else shard_of(layout, terms.fraction, self._next_shard - 1),
            is_finite=terms.is_finite,
            terms=ask.terms,
            only=ask.peer,
            among=among,
            version=(published or self._pool.version) if is_tagged else 0,
            # the last complete version
            own_version=0 if ask.terms is Terms.PULL else self._pool.version,
            clock=clock,
            merged=self._peer_table.merged if skips else None,
        )

    def draw(self, barred: Collection[str], updates: int) -> str | None:
        """Let flow control pick a neighbour of this round that is not in `barred`."""
        among = self._neighbours.among(self._peer_table.names, updates - 1)
        return self._peer_table.choose(self._rng, barred, among)

    def pull(self, request: FetchRequest) -> None:
        """Start a fetch that needs no consent of the peer."""
        if request.first is None:
            request.first = self._peer_table.choose(self._rng, (), request.among)
        memory = None if request.first is None else self._peer_table.memory_of(request.first)
        if request.first is not None and memory is not None:
            # The snapshot is in mapped memory, so no message is needed.
            request.peer, request.found = request.first, memory
        else:
            self._fetch(request)

    def older(self, peer: str, request: FetchRequest, version: int) -> Arrival | None:
        """Return an earlier version of a peer's snapshot, if the peer's memory still has it."""
        memory = self._peer_table.memory_of(peer)
        if memory is None or version == request.merged_of(peer):
            return None
        snapshot = self._pin(memory, request.layout, version)
        if snapshot is None or request.objection(snapshot) is not None:
            self.let_go()
            return None
        return self._mapped(peer, snapshot, request)

    def wait_for_result(self, request: FetchRequest, *, may_ask: bool = True) -> Arrival | None:
        """Wait for the result of a fetch. Return `None` if there is none, or it must not be merged.

        `may_ask`: a peer whose memory has no snapshot may be asked for a stream.
        """
        found = request.found
        if found is None:
            found = request.take_result(request.deadline.remaining_s() + GRACE_S)
        tried: set[str] = set()
        while isinstance(found, PeerMemory):
            peer, snapshot = request.peer, self._pinned(found, request)
            if snapshot is None:
                return self._missing(peer, request, may_ask=may_ask)
            is_known = snapshot.version == request.merged_of(peer)
            if not is_known:
                self._peer_table.told_clock(peer, snapshot.progress.clock)
            why_not = Ended(Outcome.NOTHING_NEW) if is_known else request.objection(snapshot)
            if why_not is None:
                return self._mapped(peer, snapshot, request)
            self.let_go()
            self._peer_table.record(peer, why_not.outcome, why_not.detail)
            tried.add(peer)
            request.peer, found = self._another_mapped(request, tried)
        return found

    def _another_mapped(
        self, request: FetchRequest, tried: set[str]
    ) -> tuple[str, PeerMemory | None]:
        """Pick a mapped peer in place of peers whose snapshots cannot be merged."""
        if request.only is None and not request.version:
            while len(tried) < min(MAX_PEERS_TRIED, len(self._peer_table.names)):
                name = self._peer_table.choose(self._rng, tried, request.among)
                if name is None:
                    break
                memory = self._peer_table.memory_of(name)
                if memory is not None:
                    return name, memory
                tried.add(name)
        return "", None

    def _mapped(self, peer: str, snapshot: Snapshot, request: FetchRequest) -> Arrival:
        nbytes, start, data = snapshot.data.nbytes, 0, snapshot.data
        if request.shard is not WHOLE:
            pieces = pieces_of(request.layout, nbytes, request.shard)
            start, data = pieces[0].start, data[pieces[0].start : pieces[-1].stop]
        progress, version, release = snapshot.progress, snapshot.version, self.let_go
        return Arrival(peer, nbytes, progress, version, data, start, release, is_read_late=True)

    def let_go(self) -> None:
        """Release the pinned snapshot, even after an interrupted call."""
        if self.reads is not None:
            self.reads.unpin(self)
            self.reads = None

    def _pin(self, memory: PeerMemory, layout: Layout, version: int = 0) -> Snapshot | None:
        if self.reads is not memory:
            if self.reads is not None:
                self.let_go()
            self.reads = memory
        lease = memory.pin(layout, version, self)
        return None if lease is None else lease.snapshot

    def _pinned(self, memory: PeerMemory, request: FetchRequest) -> Snapshot | None:
        """Pin the requested snapshot. If the peer has not published it yet, wait for it."""
        layout, version = request.layout, request.version
        snapshot = self._pin(memory, layout, version)
        while snapshot is None and version and not request.deadline.expired():
            if not memory.is_alive(self._runtime.now()):
                break
            snapshot = self._pin(memory, layout)
            if snapshot is None or version - snapshot.version > MAX_ROUNDS_BEHIND:
                break  # the peer is far behind, e.g. after a restart, so its newest is good enough
            self.let_go()
            self._runtime.sleep(POLL_S)
            snapshot = self._pin(memory, layout, version)
        return snapshot

    def _missing(self, peer: str, request: FetchRequest, *, may_ask: bool) -> Arrival | None:
        """Ask a peer whose memory has no snapshot for this node any more. The answer says why."""
        if request.version and request.deadline.expired():
            self._peer_table.record(peer, Outcome.TIMED_OUT, "it is rounds behind")
            return None
        if not may_ask:
            self._peer_table.record(peer, Outcome.LOST, "its shared memory cannot be mapped")
            return None
        self._peer_table.set_memory(peer, None)
        again = replace(request, first=peer, may_map=False, found=None)
        self._fetch(again)
        return self.wait_for_result(again, may_ask=False)
