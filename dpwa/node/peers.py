"""PeerTable: the addresses, scores and health of a node's peers, for all threads of the node."""

from __future__ import annotations

import logging
import math
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from dpwa.clock import Clock
from dpwa.data.peer_memory import PeerMemory
from dpwa.errors import UnknownNameError, UserError
from dpwa.node.merged_versions import MergedVersions
from dpwa.node.report import PeerReport
from dpwa.policy.beginners import Doubt, can_have_grown, doubt_of, most_borne_out
from dpwa.policy.deadlines import FLOOR_S, FetchTimes
from dpwa.policy.flow_control import HIGHEST_SCORE, FlowControl, is_among_all
from dpwa.policy.health import (
    ABSENT,
    HAVE_ENDED,
    IN_WORDS,
    REFUSED,
    UNHEARD,
    UNTIL_RECONNECTED,
    Health,
    Outcome,
    health_after,
    is_failure,
    may_be_fit,
)
from dpwa.policy.link_estimates import LinkEstimate, shares
from dpwa.transport.link import LOST, LinkState, nothing_answers
from dpwa.types import JsonObject
from dpwa.wire.limits import INCARNATION_BYTES
from dpwa.wire.messages import printable

log = logging.getLogger("dpwa.peers")

MS_PER_S = 1e3
MBIT_PER_BYTE = 8e-6
_WELL = (Health.UNKNOWN, Health.ALIVE, Health.BEHIND)
NO_TIMES, NO_LINK = FetchTimes(), LinkEstimate()
# The fields of a report after name and endpoint, for a peer of which this node knows nothing more.
_NOTHING_KNOWN = PeerReport(health=Health.UNKNOWN.value, heard_s=None, score=HIGHEST_SCORE)[2:]


@dataclass(slots=True)
class PeerRecord:
    """A node's knowledge of one peer. It is mutable. Threads use it under the lock of the table."""

    endpoint: str
    added: float
    health: Health = Health.UNKNOWN
    judged: float = -math.inf  # time of the last fetch that showed the peer's health
    heard: float | None = None  # time of the peer's last answer to this node; `None`: never
    spoke: float | None = None  # time of the peer's last request, which proves no way to the peer
    link_state: LinkState = LinkState.CONNECTING  # until the link was up or down once
    memory: PeerMemory | None = None
    times: FetchTimes = NO_TIMES
    link: LinkEstimate = NO_LINK
    problem: str = ""  # the reason why the peer is not connected
    refused: Health | None = None  # why this node refuses it, until a merge or a new connection
    because: str = ""  # details of the refusal
    farewell: str = ""  # the reason that the peer gave when it left
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    bytes_received: int = 0  # payloads and values of collectives, without mapped bytes
    bytes_sent: int = 0  # snapshots and values of collectives
    bytes_mapped: int = 0  # snapshots and values of collectives that were read from its memory
    silent_told: float = -math.inf  # time of the last message that the peer is slow
    is_warned_of: bool = False  # until the peer is well again
    was_met: bool = True  # whether this node had reached the peer before the last warning
    is_absent: bool = False  # whether the last attempt to connect found no process
    was_asked_to_go: bool = False  # the peer has too many connections, and asked this node to leave
    clock: float = 0.0  # of its training, as the peer reports it
    clock_told: float = -math.inf  # time of that report
    possible_clock: float = 0.0  # the last reported clock to which the one before can have grown
    possible_told: float = -math.inf  # time of that report
    incarnation: bytes = b""  # of the connected process

    def begins_anew(self) -> None:
        """Forget the peer's clock, because it may be a different process."""
        self.clock_told = self.possible_told = -math.inf

    @property
    def is_near(self) -> bool:
        """Whether the peer is connected, and has not asked this node to disconnect."""
        return self.link_state is LinkState.UP and not self.was_asked_to_go

    @property
    def expected_s(self) -> float | None:
        """Expected seconds of a fetch. `None`: unknown. For mapped memory, only the latency."""
        return self.link.expected_s if self.memory is None else self.link.latency_s

    @property
    def shown_health(self) -> Health:
        """The peer's health. A lost connection counts at once, even if this node has not asked the
        peer since.
        """
        is_lost = bool(self.problem) and not self.is_unheard
        return Health.UNREACHABLE if is_lost and self.health in _WELL else self.health

    @property
    def why(self) -> str:
        """Why the peer is absent or cannot be merged, or "". A finished peer has no reason."""
        if self.health in HAVE_ENDED and self.problem in ("", LOST, nothing_answers(self.endpoint)):
            return self.farewell  # otherwise, a different process answers at the endpoint
        return self.problem or self.because * (self.health in REFUSED)

    @property
    def in_words(self) -> str:
        if self.health is Health.FINISHED and self.refused is not None:
            return IN_WORDS[self.refused]  # the refusal kept the peer from ending with this node
        why = f": {self.farewell}" * (self.health is Health.LEFT)
        return IN_WORDS[self.health] + why

    @property
    def is_unheard(self) -> bool:
        """Whether this node never heard from the peer."""
        return self.heard is None and self.spoke is None


class PeerRecords(dict[str, PeerRecord]):
    """The records of the peers of which a node knows anything. A record is made when it is needed.

    There may be thousands of peers. A peer that is not in view has a record that is not kept.
    """

    def __init__(self, in_view: Mapping[str, tuple[str, float]]) -> None:
        super().__init__()
        self._in_view = in_view  # endpoint, and time of arrival

    def __missing__(self, name: str) -> PeerRecord:
        if name not in self._in_view:
            return PeerRecord("", -math.inf)
        peer = self[name] = PeerRecord(*self._in_view[name])
        return peer


def _ago_s(now: float, *times: float | None) -> float | None:
    known = [time for time in times if time is not None]
    return round(now - max(known), 1) if known else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


STARTUP_GRACE_S = 10.0  # nodes of a run never start at the same moment
SAME_AGAIN_S = 60.0  # between two warnings that the same peer is slow

CLOCK_COUNTS_S = 60.0  # for so long, the clock that a peer has reported counts

NEARLY_ALL = 0.75  # share of the possible connections that are in use
MANY = 64  # if there are this many peers, a node warns only of the first absent one


class PeerTable:
    """A node's knowledge of its peers. Any thread may call every method."""

    def __init__(self, own_name: str, clock: Clock, rng: random.Random) -> None:
        self._own_name = own_name
        self.own_process = bytes(INCARNATION_BYTES), ""  # incarnation and endpoint of this node
        self._clock = clock
        self._rng = rng
        self.most_connected = sys.maxsize  # maximum number of connections to peers at once
        # Reentrant, because a signal handler may close the node while its thread holds the lock.
        self._lock = threading.RLock()
        self.names: tuple[str, ...] = ()  # of the peers in view, in order of arrival
        self._in_view: dict[str, tuple[str, float]] = {}  # endpoint, and time of arrival
        self._peers = PeerRecords(self._in_view)
        self._connected: dict[str, PeerRecord] = {}  # of these, in order
        self._flow = FlowControl()
        self._quarantined: frozenset[str] = frozenset()
        self._has_told_absent = False
        self._exchanged = Counter[str](sent=0, received=0, mapped=0, taken=0)
        self._timed = {"fetches": 0, "answer_s": 0.0, "streams": 0, "stream_s": 0.0}
        self.merged = MergedVersions()  # the snapshots of peers that were merged

    def knows(self, name: str) -> bool:
        """Return whether this node knows a peer with this name."""
        return name in self._in_view

    def add_peers(self, endpoints: Mapping[str, str]) -> list[str]:
        """Add peers by name, and return the names of the new peers.

        Raises `UserError` for this node's own name, or if a peer is known at a different endpoint.
        """
        if self._own_name in endpoints:
            raise UserError(f"{self._own_name!r} is this node itself, not a peer [DPWA-E094]")
        with self._lock:
            for name in self._in_view.keys() & endpoints:
                known, endpoint = self._in_view[name][0], endpoints[name]
                if known != endpoint:
                    raise UserError(
                        f"peer {name!r} is already known at {known}. "
                        f"Remove the peer before you add it at {endpoint} [DPWA-E095]"
                    )
            new, now = [name for name in endpoints if name not in self._in_view], self._clock.now()
            self._in_view.update({name: (endpoints[name], now) for name in new})
            self.names = tuple(self._in_view)
            self._flow = self._flow.added(*new)
        return new

    def remove(self, name: str) -> None:
        with self._lock:
            if self._in_view.pop(name, None) is not None:
                self.names = tuple(self._in_view)
                self._peers.pop(name, None)
                self._connected.pop(name, None)
                self.merged.forget_peer(name)
                self._flow = self._flow.removed(name)
                return
        known = ", ".join(self.names) or "none"
        raise UnknownNameError(f"no peer is named {name!r} (known: {known}) [DPWA-E017]")

    def choose(
        self,
        rng: random.Random,
        exclude: Collection[str] = (),
        among: Collection[str] | None = None,
        budget_s: float = math.inf,
    ) -> str | None:
        """Choose the peer for the next fetch by flow control, from all peers or from `among`.

        A peer that was absent is not picked until it is connected again. If there are more peers
        than possible connections, and nearly all connections are in use, usually a connected peer
        is picked. `budget_s` is the maximum time for the fetch.
        """
        barred = {*exclude, *self._quarantined}
        among = None if among is None else frozenset(among)
        with self._lock:
            now, chosen = self._clock.now(), None
            if len(self._connected) >= NEARLY_ALL * self.most_connected:
                near = self._near(barred, among, now)
                if near is not None and not is_among_all(rng):
                    chosen = self._draw(rng, now, near, budget_s)
            if chosen is None:
                chosen = self._draw(rng, now, self._drawable(barred, among), budget_s)
            return chosen

    def _draw(
        self, rng: random.Random, now: float, names: Collection[str] | None, budget_s: float
    ) -> str | None:
        known_s = dict[str, float]()
        for name in self._peers if names is None else names:
            peer = self._peers.get(name)
            if peer is not None and (seconds := peer.expected_s) is not None:
                known_s[name] = seconds
        is_any_slow = max(known_s.values(), default=0.0) > min(FLOOR_S, budget_s)
        slow = shares(known_s, budget_s) if is_any_slow else {}
        chosen, self._flow = self._flow.choose(rng, now, names, slow)
        return chosen

    def _near(
        self, barred: Collection[str], among: Collection[str] | None, now: float
    ) -> list[str] | None:
        """Return the connected peers of `among`. `None` if all of them could be connected."""
        if len(self._in_view if among is None else among) <= self.most_connected:
            return None
        return [
            name
            for name, peer in self._connected.items()
            if peer.is_near
            and peer.health is not Health.OTHER_SETTINGS
            and name not in barred
            and (among is None or name in among)
            and not self._flow.rests(name, now)
        ]

    def _drawable(self, barred: set[str], among: Collection[str] | None) -> list[str] | None:
        """Return the peers that may be chosen, or `None` for all peers. There may be thousands."""
        # If there are many peers, an absent peer is connected again only when it is picked.
        missing = frozenset() if len(self._in_view) > self.most_connected else ABSENT
        other, down = Health.OTHER_SETTINGS, LinkState.DOWN
        for name, peer in self._peers.items():
            if peer.health is other or (peer.link_state is down and peer.health in missing):
                barred.add(name)
        if among is None and not barred:
            return None
        among = self._in_view if among is None else among
        return [name for name in self._in_view if name in among and name not in barred]

    def told_clock(self, name: str, clock: float) -> None:
        with self._lock:
            peer, now = self._peers[name], self._clock.now()
            peer.clock, peer.clock_told = clock, now
            if can_have_grown(peer.possible_clock, clock, now - peer.possible_told):
                peer.possible_clock, peer.possible_told = clock, now

    def doubt(self, name: str, clock: float, own: float) -> tuple[Doubt, float]:
        """Compare a peer's reported clock with this node's clock. See `policy.beginners`.

        Returns the doubt about the peer's clock, and the maximum clock that counts.
        """
        with self._lock:
            now, peer = self._clock.now(), self._peers[name]
            without = {name, *self._quarantined}
            others = [each for other, each in self._peers.items() if other not in without]
            told = (each.clock for each in others if now - each.clock_told < CLOCK_COUNTS_S)
            best = max(told, default=None)
            elapsed_s = now - peer.possible_told
            doubt = doubt_of(clock, own, best, peer.possible_clock, elapsed_s)
            if doubt is Doubt.UNCONFIRMED and not self._can_ask(without):
                doubt = Doubt.NONE
        return doubt, own if doubt is Doubt.IMPOSSIBLE else most_borne_out(own, best or 0.0)

    def _can_ask(self, without: Collection[str]) -> bool:
        """Return whether this node can ask a peer that is not in `without`."""
        others = (name for name in self._in_view if name not in without)
        return any(n not in self._peers or self._peers[n].shown_health in _WELL for n in others)

    def quarantine(self, names: Collection[str]) -> None:
        with self._lock:
            self._quarantined = frozenset(names)

    def record(self, name: str, outcome: Outcome, detail: str = "") -> None:
        """Count the outcome of a fetch, and log it if the peer's health changes."""
        with self._lock:
            if name not in self._in_view:  # the peer was removed during the fetch
                return
            peer = self._peers[name]
            peer.outcomes[outcome] += 1
            is_starting = self._clock.now() - peer.added < STARTUP_GRACE_S
            before = peer.health
            if before is not Health.ALIVE or outcome is not Outcome.FETCHED:
                peer.health = health_after(outcome, before, is_starting=is_starting)
                is_shown = bool(detail) or peer.health is not before
                if peer.health in _WELL:
                    peer.refused = None
                elif peer.health in REFUSED and is_shown and before not in UNTIL_RECONNECTED:
                    peer.refused, peer.because = peer.health, detail
            peer.judged = self._clock.now()
            if outcome not in UNHEARD:
                peer.heard = peer.judged
            # A peer without a new version has answered in time, however slowly it trains.
            if outcome in (Outcome.FETCHED, Outcome.NOTHING_NEW):
                self._flow = self._flow.succeeded(name)
            elif is_failure(outcome):
                self._flow = self._flow.failed(name, self._clock.now(), self._rng)
            if outcome is Outcome.TIMED_OUT:
                peer.times = peer.times.timed_out()
            is_told = peer.health is Health.SILENT and peer.judged - peer.silent_told < SAME_AGAIN_S
            if peer.health is Health.SILENT and before is not Health.SILENT and not is_told:
                peer.silent_told = peer.judged
            if peer.health is Health.UNREACHABLE:
                detail = detail or peer.problem or nothing_answers(peer.endpoint)
            was_never_there = peer.health is Health.UNREACHABLE and peer.heard is None
            if was_never_there and len(self._in_view) >= MANY:
                is_told, self._has_told_absent = self._has_told_absent, True
                detail += "" if is_told else ". Warnings about other absent peers are left out"
            if before is peer.health:
                return
            is_trouble = peer.health not in (Health.ALIVE, Health.BEHIND)
            warns = not is_told if is_trouble else peer.is_warned_of
            words = IN_WORDS[peer.health]
            is_back = peer.is_warned_of and peer.was_met and peer.health is Health.ALIVE
            words += " again" if is_back else ""
            peer.was_met = not was_never_there
            peer.is_warned_of = is_trouble and (warns or peer.is_warned_of)
        because = f": {detail}" if detail else ""
        level, code = (logging.WARNING, " [DPWA-W007]") if warns else (logging.INFO, "")
        log.log(level, "%s: peer %s %s%s%s", self._own_name, name, words, because, code)

    def compared(self, name: str, difference: str) -> None:
        """Record the difference of a peer's model from this node's model. "" means equal models."""
        if difference:
            self.record(name, Outcome.OTHER_MODEL, difference)
        elif self._peers[name].health is Health.OTHER_MODEL:
            self.record(name, Outcome.NOTHING_NEW)

    def set_memory(self, name: str, memory: PeerMemory | None) -> None:
        """Note the shared memory of a connected peer, or `None` if it must not be read any more."""
        with self._lock:
            self._peers[name].memory = memory

    def memory_of(self, name: str) -> PeerMemory | None:
        """Return the shared memory of a peer that is connected and alive, or `None`."""
        with self._lock:
            memory = self._peers[name].memory
        return memory if memory is not None and memory.is_alive(self._clock.now()) else None

    def any_memory(self, rng: random.Random) -> tuple[str, PeerMemory] | None:
        with self._lock:
            now = self._clock.now()
            mapped = [(n, p.memory) for n, p in self._peers.items() if p.memory is not None]
            alive = [(name, memory) for name, memory in mapped if memory.is_alive(now)]
        return rng.choice(alive) if alive else None

    @property
    def has_unmapped(self) -> bool:
        """Whether there are peers whose memory this node has not mapped."""
        with self._lock:
            are_met = len(self._peers) == len(self._in_view)
            return not are_met or any(peer.memory is None for peer in self._peers.values())

    @property
    def mergeable(self) -> frozenset[str]:
        """The names of the peers that this node expects to be able to merge.

        A peer that had a different model counts again after a while, because only a fetch shows
        whether the model still differs.
        """
        with self._lock:
            now = self._clock.now()
            unfit = {n for n, p in self._peers.items() if not may_be_fit(p.health, now - p.judged)}
            return frozenset(self._in_view.keys() - unfit - self._quarantined)

    @property
    def refusals(self) -> tuple[str, ...]:
        """The reasons why no peer can be merged. Empty if one may be merged or may be starting."""
        with self._lock:
            grace_ends = self._clock.now() - STARTUP_GRACE_S
            told = []
            for name, (_, added) in self._in_view.items():
                peer = self._peers.get(name)
                if peer is not None and peer.refused is not None:
                    because = f": {peer.because}" if peer.because else ""
                    told.append(f"{name} {IN_WORDS[peer.refused]}{because}")
                elif added > grace_ends or not (peer is None or peer.is_unheard):
                    return ()
            return tuple(told)

    def reconsider(self, *names: str) -> None:
        """Expect that peers with a different model can be merged again, until their next fetch."""
        with self._lock:
            for name in names:
                self._peers[name].judged = -math.inf

    def is_left_alone(self, name: str) -> bool:
        """Return whether a quarantine or different settings exclude a peer from merges."""
        with self._lock:
            is_other = self._peers[name].health is Health.OTHER_SETTINGS
            return is_other or name in self._quarantined

    def patience_s(self, name: str, ceiling_s: float) -> float:
        """Return the timeout in seconds for a fetch from a peer, based on earlier fetches."""
        with self._lock:
            return self._peers[name].times.deadline_s(ceiling_s)

    def fetched_in(self, name: str, elapsed_s: float) -> None:
        with self._lock:
            peer = self._peers[name]
            peer.times = peer.times.succeeded(elapsed_s)

    def answered_in(self, name: str, latency_s: float) -> None:
        """Record the response time of a peer. The caller omits requests that had to wait."""
        with self._lock:
            peer = self._peers[name]
            self._timed["fetches"] += 1
            self._timed["answer_s"] += latency_s
            peer.link = peer.link.answered(latency_s)
            peer.heard = self._clock.now()

    def streamed(self, name: str, nbytes: int, elapsed_s: float) -> None:
        """Note the time that the payload took to arrive after its header."""
        with self._lock:
            peer = self._peers[name]
            self._timed["streams"] += 1
            self._timed["stream_s"] += elapsed_s
            peer.link = peer.link.streamed(nbytes, elapsed_s)

    def sent(self, name: str, nbytes: int) -> None:
        """Count bytes of snapshots sent to a peer. Without keys, the name is not verified."""
        with self._lock:
            self._peers[name].bytes_sent += nbytes

    def exchanged(
        self, name: str, *, sent: int = 0, received: int = 0, mapped: int = 0, taken: int = 0
    ) -> None:
        """Count bytes to and from a peer, except the payloads of this node's own answers.

        The RxThread counts those payloads, which are snapshots and states.

        Args:
            name: the name of the peer.
            sent: bytes that were sent in headers of messages, or as payloads of requests.
            received: bytes that were received in headers, or as payloads.
            mapped: bytes that were read from the memory of the peer.
            taken: all bytes of values that collectives received, including values in payloads.
        """
        with self._lock:
            self._exchanged.update(sent=sent, received=received, mapped=mapped, taken=taken)
            peer = self._peers[name]
            peer.bytes_sent += sent
            peer.bytes_received += received
            peer.bytes_mapped += mapped

    @property
    def exchanged_bytes(self) -> Mapping[str, int]:
        """Return the byte counts of `exchanged`, summed over all peers."""
        with self._lock:
            return dict(self._exchanged)

    def peer_left(self, name: str, reason: str | None = None) -> None:
        """Record that a peer has ended on purpose. The name of an unknown peer is ignored.

        `reason` is the peer's reason for leaving. It is empty if the peer has finished. `None`
        stands for the last reason of the peer.
        """
        with self._lock:
            if name not in self._in_view:
                return
            peer = self._peers[name]
            peer.farewell = peer.farewell if reason is None else printable(reason)
            before, peer.health = peer.health, Health.LEFT if peer.farewell else Health.FINISHED
            if before is peer.health:
                return
            peer.heard = self._clock.now()
            words = peer.in_words if peer.farewell else IN_WORDS[Health.FINISHED]
        log.info("%s: peer %s %s", self._own_name, name, words)

    def has_left(self, name: str) -> bool:
        """Tell whether a peer has said goodbye, and has not returned."""
        with self._lock:
            return self._peers[name].health in HAVE_ENDED

    def in_words(self, name: str) -> str:
        with self._lock:
            is_known = name in self._in_view
            return self._peers[name].in_words if is_known else "is no member any more"

    def was_heard(self, name: str) -> bool:
        with self._lock:
            return self._peers[name].heard is not None

    def may_still_start(self, name: str) -> bool:
        """Tell whether a peer that never answered may still be starting."""
        with self._lock:
            peer = self._peers[name]
            return peer.heard is None and self._clock.now() - peer.added < STARTUP_GRACE_S

    def absent(self, name: str) -> None:
        """Record that a peer is absent. If the peer never answered, this node asks others first."""
        with self._lock:
            peer = self._peers[name]
            if name in self._in_view and peer.heard is None:
                self._flow = self._flow.absent(name)
                peer.is_absent = True

    def spoke(self, name: str) -> None:
        """Note that a peer has sent a request, which shows that the peer is present."""
        with self._lock:
            peer = self._peers[name]
            peer.spoke = self._clock.now()
            if peer.is_absent:
                self._flow = self._flow.connected(name).added(name)
                peer.is_absent = False

    def link_changed(self, name: str, state: LinkState, problem: str = "") -> bool:
        """Note the state and problem of a connection. Return whether the problem is a new one."""
        with self._lock:
            if name not in self._in_view:
                return False
            peer = self._peers[name]
            before = peer.link_state
            if state is LinkState.IDLE and before is not LinkState.UP:
                return False  # there was no connection that this node could have closed
            is_new, peer.problem = problem != peer.problem, problem
            if state is LinkState.CONNECTING:  # a new link, which replaces the old one
                state = LinkState.DOWN if before is LinkState.UP else before
            if state is before:
                return is_new
            peer.link_state, peer.memory = state, None
            self._connected.pop(name, None)
            if state is LinkState.UP:
                self._connected[name] = peer
                if before is not LinkState.IDLE:  # after IDLE, it is the same process as before
                    self._flow = self._flow.connected(name)
                    self.merged.begins_anew(name)
                    peer.begins_anew()
                peer.is_absent = peer.was_asked_to_go = False
                self.returned(name)
            elif state is LinkState.DOWN:
                # Not at its return: this node may hear the next process before it sees the return.
                self.merged.trains(name)
            is_silent = state is LinkState.DOWN and peer.health is Health.SILENT
            if LinkState.UP in (before, state) and not is_silent:  # until now it was alive
                peer.heard = self._clock.now()
            return is_new

    def met(self, name: str, incarnation: bytes) -> None:
        """Note which process of a peer has connected."""
        with self._lock:
            self._peers[name].incarnation = incarnation

    def connected_process(self, name: str) -> tuple[bytes, str]:
        """Return the incarnation and endpoint of a node, or both empty if it is not connected."""
        with self._lock:
            peer = self._peers[name]
            is_up = peer.link_state is LinkState.UP
            connected = (peer.incarnation, peer.endpoint) if is_up else (b"", "")
            return self.own_process if name == self._own_name else connected

    def returned(self, name: str) -> None:
        """Allow fetches again from a returned peer that had said goodbye or was refused."""
        with self._lock:
            peer = self._peers[name]
            if peer.health in UNTIL_RECONNECTED:
                peer.health, peer.refused = Health.UNKNOWN, None

    def asked_to_go(self, name: str) -> None:
        with self._lock:
            self._peers[name].was_asked_to_go = True

    def fetch_report(self) -> JsonObject:
        """Return the counts and total seconds of measured answers and of measured streams."""
        with self._lock:
            return dict(self._timed)

    def report(self, of_merges: Callable[[str], JsonObject]) -> tuple[PeerReport, ...]:
        """Describe every peer. `of_merges` describes the merges of one peer."""
        with self._lock:
            now, known = self._clock.now(), self._peers
            return tuple(
                self._report_of(name, known[name], now, of_merges(name))
                if name in known
                else PeerReport(name, endpoint, *_NOTHING_KNOWN)
                for name, (endpoint, _) in self._in_view.items()
            )

    def _report_of(
        self, name: str, peer: PeerRecord, now: float, of_merges: JsonObject
    ) -> PeerReport:
        return PeerReport(
            name=name,
            endpoint=peer.endpoint,
            health=peer.shown_health.value,
            problem=peer.why,
            heard_s=_ago_s(now, peer.heard, peer.spoke),
            fetch_s=peer.times.mean_s,
            latency_ms=_times(peer.link.latency_s, MS_PER_S),
            bandwidth_mbps=_times(peer.link.bytes_per_s, MBIT_PER_BYTE),
            bytes_received=peer.bytes_received,
            bytes_sent=peer.bytes_sent,
            bytes_mapped=peer.bytes_mapped,
            outcomes={o.value: n for o, n in peer.outcomes.items()},
            score=self._flow.scores[name],
            quarantined=name in self._quarantined,
            rests=self._flow.rests(name, now),
            **of_merges,
        )
