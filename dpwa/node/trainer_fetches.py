"""TrainerFetches starts the fetches of the training thread, and returns their results."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dpwa.algorithms import Terms
from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.snapshot import Snapshot
from dpwa.node.arrival import Arrival, FetchRequest
from dpwa.node.context import NodeContext
from dpwa.node.serving.snapshot_service import MAX_ROUNDS_BEHIND
from dpwa.policy.health import Outcome
from dpwa.wire.fetching import Ended, pieces_of
from dpwa.wire.shards import WHOLE

GRACE_S = 0.02  # time past the deadline in which the TxThread can report its result
POLL_S = 0.001
MAX_PEERS_TRIED = 4  # mapped peers in a round whose memory the training thread checks


class TrainerFetches:
    """Starts the training thread's fetches, and reads peers' shared memory on that thread."""

    def __init__(
        self,
        context: NodeContext,
        fetch: Callable[[FetchRequest], None],  # passes a request to the TxThread
    ) -> None:
        self._runtime = context.runtime
        self._fetch = fetch
        self._rng = context.rng("peer")
        self._peer_table = context.peer_table
        self.reads: PeerMemory | None = None  # the memory in which this thread has pinned a slot

    def choose(self, barred: Collection[str], among: Collection[str] | None) -> str | None:
        """Return a peer that flow control picks from `among` (`None`: all), excluding `barred`."""
        return self._peer_table.choose(self._rng, barred, among)

    def start(self, request: FetchRequest) -> None:
        """Start a fetch. If the snapshot is in mapped memory, no message is needed."""
        if request.terms is Terms.PULL:
            peer = request.first or self._peer_table.choose(self._rng, (), request.among)
            memory = None if peer is None else self._peer_table.memory_of(peer)
            if peer is not None and memory is not None:
                request.peer, request.found = peer, memory
                return
            request.first = peer
        self._fetch(request)

    def result(self, request: FetchRequest) -> Arrival | None:
        """Wait for the result of a fetch. `None`: there is none, or it must not be merged."""
        found, tried = request.found, set[str]()
        if found is None:
            found = request.take_result(request.deadline.remaining_s() + GRACE_S)
        while isinstance(found, PeerMemory):
            peer, snapshot = request.peer, self._pin(found, request.layout, request.version)
            if snapshot is None and request.version:
                snapshot = self._wait_for_version(found, request)
            if snapshot is None:
                found = self._ask_why(peer, request)
                continue
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

    def let_go(self) -> None:
        """Release the snapshot that this thread has pinned, also after an interrupted call."""
        if self.reads is not None:
            self.reads.unpin(self)
            self.reads = None

    def _pin(self, memory: PeerMemory, layout: Layout, version: int) -> Snapshot | None:
        """Pin this version of a peer's snapshot, or a later one. 0: pin the newest."""
        if self.reads is not memory:
            if self.reads is not None:
                self.let_go()
            self.reads = memory
        lease = memory.pin(layout, version, self)
        return None if lease is None else lease.snapshot

    def _wait_for_version(self, memory: PeerMemory, request: FetchRequest) -> Snapshot | None:
        """Wait for a snapshot that the peer has not published yet, and pin it."""
        layout, version = request.layout, request.version
        while not request.deadline.expired() and memory.is_alive(self._runtime.now()):
            snapshot = self._pin(memory, layout, 0)
            if snapshot is None or version - snapshot.version > MAX_ROUNDS_BEHIND:
                return snapshot  # the peer is far behind, so its newest is good enough
            self.let_go()
            self._runtime.sleep(POLL_S)
            snapshot = self._pin(memory, layout, version)
            if snapshot is not None:
                return snapshot
        return None

    def _ask_why(self, peer: str, request: FetchRequest) -> Arrival | PeerMemory | None:
        """Request a snapshot by message, at most once, if the peer's shared memory has none."""
        if request.version and request.deadline.expired():
            self._peer_table.record(peer, Outcome.TIMED_OUT, "the peer is several rounds behind")
            return None
        if not request.may_map:
            self._peer_table.record(peer, Outcome.LOST, "its shared memory cannot be opened")
            return None
        self._peer_table.set_memory(peer, None)
        request.begin_anew(peer)
        self._fetch(request)
        return request.take_result(request.deadline.remaining_s() + GRACE_S)

    def _another_mapped(
        self, request: FetchRequest, tried: set[str]
    ) -> tuple[str, PeerMemory | None]:
        """Pick a peer outside `tried` with readable shared memory, or return `("", None)`."""
        if request.only is None and not request.version:
            while len(tried) < min(MAX_PEERS_TRIED, len(self._peer_table.names)):
                name = self.choose(tried, request.among)
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
