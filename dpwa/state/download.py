"""Download decides which pieces of a state to request from which peer. Time is an argument.

Each donor gets the next missing piece whenever it has capacity. If a donor is lost or stalls, its
unfinished pieces are missing again. At the end, idle donors are asked for the pieces that were
requested first, so a stopped donor delays the rest only for a moment (the "end game" of
BitTorrent, Cohen 2003).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import nlargest

from dpwa.policy.beginners import LEAD, bears_out, can_have_grown, most_borne_out
from dpwa.wire.state import StateOffer

WINDOW = 4  # maximum number of pieces requested from a donor at once, to fill the link
STALL_S = 5.0  # time without a piece until a donor counts as stalled
DOUBLED_AFTER_S = 0.5  # time until one of the last pieces is requested from another donor, too
LOST_AFTER_S = 0.5  # time until a request without a connection is lost; until then, it may connect
MAX_CORRUPT_PIECES = 3  # until a donor is given up


@dataclass
class _DonorQueue:
    """The pieces that are requested from one donor."""

    moved: float  # time of the last piece, or of the first request
    asked: dict[int, float] = field(default_factory=dict)  # requested pieces and times
    corrupt: set[int] = field(default_factory=set)  # pieces that arrived corrupted from it


class Download:
    """Tracks the missing, requested and received pieces of one state part's bytes (its image)."""

    def __init__(self, count: int, window: int = WINDOW) -> None:
        self._missing = deque(range(count))
        self._left = set(range(count))
        self._window = window
        self._lanes: dict[str, _DonorQueue] = {}
        self.brought: dict[str, int] = {}

    @property
    def is_complete(self) -> bool:
        return not self._left

    @property
    def donors(self) -> tuple[str, ...]:
        return tuple(self._lanes)

    def add_donor(self, donor: str, now: float) -> None:
        self._lanes.setdefault(donor, _DonorQueue(now))

    def remove(self, donor: str) -> None:
        """Drop a donor. Pieces that were requested only from this donor are missing again."""
        lane = self._lanes.pop(donor, None)
        if lane is not None:
            self._miss(lane.asked)

    def disconnected(self, donor: str, now: float) -> None:
        """Record that a donor's connection was lost, so that requested pieces will not arrive."""
        asked = self._lanes[donor].asked
        lost = [index for index, since in asked.items() if now - since >= LOST_AFTER_S]
        for index in lost:
            del asked[index]
        self._miss(lost)

    def stalled(self, now: float) -> list[str]:
        """Return the donors that owe requested pieces and have sent none for `STALL_S` seconds."""
        return [
            donor
            for donor, lane in self._lanes.items()
            if lane.asked and now - lane.moved >= STALL_S
        ]

    def requests(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield the donors and pieces to request now. Each piece counts as requested."""
        is_moving = True
        while is_moving:
            is_moving = False
            for donor, lane in self._lanes.items():
                index = self._next_for(donor, now)
                if index is not None:
                    if not lane.asked:
                        lane.moved = now
                    lane.asked[index] = now
                    is_moving = True
                    yield donor, index

    def arrived(self, donor: str, index: int, now: float) -> bool:
        """Record a piece with a right checksum, and return whether it was still needed."""
        lane = self._lanes.get(donor)
        if lane is not None:
            lane.asked.pop(index, None)
            lane.moved = now
        if index not in self._left:
            return False
        self._left.discard(index)
        self.brought[donor] = self.brought.get(donor, 0) + 1
        return True

    def corrupted(self, donor: str, index: int) -> bool:
        """Record a corrupted piece. Return whether this node must stop fetching from the donor."""
        lane = self._lanes.get(donor)
        if lane is None:
            return False
        lane.asked.pop(index, None)
        lane.corrupt.add(index)
        self._miss([index])
        return len(lane.corrupt) >= MAX_CORRUPT_PIECES

    def _miss(self, indices: list[int] | dict[int, float]) -> None:
        elsewhere = {index for lane in self._lanes.values() for index in lane.asked}
        known = elsewhere.union(self._missing)
        self._missing.extendleft(i for i in indices if i in self._left and i not in known)

    def _next_for(self, donor: str, now: float) -> int | None:
        lane = self._lanes[donor]
        if len(lane.asked) >= self._window:
            return None
        is_alone = len(self._lanes) == 1
        while self._missing and self._missing[0] not in self._left:
            self._missing.popleft()  # the piece came late, from a donor that was given up
        for index in self._missing:
            if index in self._left and (is_alone or index not in lane.corrupt):
                self._missing.remove(index)
                return index
        return None if self._missing or lane.asked else self._oldest_elsewhere(donor, now)

    def _oldest_elsewhere(self, donor: str, now: float) -> int | None:
        since = {
            index: asked
            for other, lane in self._lanes.items()
            for index, asked in lane.asked.items()
            if other != donor and now - asked >= DOUBLED_AFTER_S and index in self._left
        }
        return min(since, key=since.__getitem__, default=None)


NEAR = 0.9  # minimum clock of a donor, as a share of the highest confirmed clock
GATHER_S = 0.25  # time to wait for more answers after the first from a trained peer
ASK_EVERY_S = 0.25
SOON_S = 0.03  # between requests of a copy, which a trainer makes at its next update
SILENT_S = 3.0  # time to wait for a peer that does not report its clock
PREPARED_WITHIN_S = 2.0  # time for a copy; then other peers are asked to prepare, too
CONTRADICTED_AFTER_S = 6.0  # then peers with unconfirmed clocks, too: others may not train


@dataclass
class Candidate:
    """A peer that may become a donor."""

    met: float  # the time when it was first seen with a connection
    next_ask: float = 0.0  # the time of the next request
    clock: float | None = None  # its training clock, or `None` before it has answered
    said: float = 0.0  # the time when it reported its clock
    answered: float = math.inf  # the time of its first answer; the fastest peers come first
    busy_until: float = 0.0  # the time when it may accept this node
    is_trained: bool = False  # whether its training can be adopted
    difference: str = ""  # the reason why its state does not fit, in words
    preparing: float | None = None  # the time when it was asked to prepare
    offer: StateOffer | None = None
    is_lost: bool = False  # whether it has sent bad data, now or before, and is asked no more

    def is_silent(self, now: float, silent_s: float) -> bool:
        return self.clock is None and not self.difference and now - self.met >= silent_s

    def can_offer(self, clock: float, now: float) -> bool:
        """Return whether a peer's training clock can have reached `clock` since its last report."""
        return can_have_grown(self.clock or 0.0, clock, now - self.said)

    @property
    def is_undecided(self) -> bool:
        return self.clock is None and not self.difference and not self.is_lost

    @property
    def may_give(self) -> bool:
        return self.is_trained and not self.difference and not self.is_lost


@dataclass
class Candidates:
    """All peers that a joining node can reach."""

    most_donors: int  # maximum number of peers that send their state at once
    without: Collection[str] = ()  # peers that are never asked
    silent_s: float = SILENT_S  # time after which a peer without a report counts as answered
    peers: dict[str, Candidate] = field(default_factory=dict)
    first_trained: float | None = None  # the time when a peer first reported a training

    def reach(self, names: Collection[str], now: float) -> None:
        """Add the peers in `names`, and remove others, except excluded peers (`is_lost`)."""
        for name in names:
            if name not in self.peers:
                self.peers[name] = Candidate(now, is_lost=name in self.without)
        for name in self.peers.keys() - names:
            if not self.peers[name].is_lost:
                del self.peers[name]

    def pick_due(self, now: float, *, are_all_met: bool = False) -> Iterator[tuple[str, bool]]:
        """Yield each peer to ask now, and whether the peer must prepare a copy of its state.

        `are_all_met` means that no other peer is about to connect, so there is no reason to wait
        after all peers have answered.
        """
        chosen = self._chosen(now)
        for name, peer in self.peers.items():
            if peer.is_lost or peer.difference or peer.offer is not None:
                continue
            prepares = name in chosen
            begins = prepares and peer.preparing is None
            if now < peer.next_ask and not (begins and are_all_met):
                continue
            if begins:
                peer.preparing = now
            peer.next_ask = now + (SOON_S if prepares else ASK_EVERY_S)
            yield name, prepares

    def stands(self, name: str, clock: float, now: float, *, is_trained: bool) -> None:
        peer = self.peers.get(name)
        if peer is None:
            return
        peer.clock, peer.said, peer.is_trained = clock, now, is_trained
        peer.answered = min(peer.answered, now)
        if is_trained and self.first_trained is None:
            self.first_trained = now

    def postpone(self, name: str, until: float) -> None:
        peer = self.peers.get(name)
        if peer is not None:
            peer.offer = peer.preparing = None
            peer.next_ask = peer.busy_until = until

    def lose(self, name: str) -> None:
        peer = self.peers.get(name)
        if peer is not None:
            peer.offer, peer.is_lost = None, True

    def counted(self, clock: float) -> float:
        """Return a donor's clock, limited by other peers' clocks. See `policy.beginners`."""
        return min(clock, self._most_borne_out)

    @property
    def _most_borne_out(self) -> float:
        clocks = [peer.clock or 0.0 for peer in self.peers.values() if peer.may_give]
        first, second = (*nlargest(2, clocks), 0.0, 0.0)[:2]
        is_contradicted = second >= LEAD and not bears_out(second, first)
        return most_borne_out(0.0, second) if is_contradicted else math.inf

    @property
    def differences(self) -> dict[str, str]:
        return {name: peer.difference for name, peer in self.peers.items() if peer.difference}

    @property
    def give(self) -> bool:
        return any(peer.may_give for peer in self.peers.values())

    def have_answered(self, now: float) -> bool:
        """Return whether all peers have reported their clocks, except peers that do not answer."""
        return not any(
            p.is_undecided and not p.is_silent(now, self.silent_s) for p in self.peers.values()
        )

    def _chosen(self, now: float) -> list[str]:
        """Return the most trained peers, to ask for a copy of their state. The fastest is first."""
        since = self.first_trained
        if since is None or not (self.have_answered(now) or now - since >= GATHER_S):
            return []
        clocks = {name: peer.clock or 0.0 for name, peer in self.peers.items() if peer.may_give}
        most = self._most_borne_out
        least = NEAR * max((clock for clock in clocks.values() if clock <= most), default=0.0)
        fit = (name for name, clock in clocks.items() if least <= clock <= most)
        able = [name for name in fit if now >= self.peers[name].busy_until]
        able.sort(key=self._rank)
        late = [name for name in able if self._is_late(self.peers[name], now)]
        prompt = [name for name in able if name not in late]
        is_hard = any(self._is_late(self.peers[n], now, CONTRADICTED_AFTER_S) for n in late)
        ahead = [n for n, clock in clocks.items() if clock > most and is_hard and not prompt]
        return [*prompt[: self.most_donors], *late, *ahead]

    def _rank(self, name: str) -> tuple[bool, float]:
        peer = self.peers[name]
        return peer.preparing is None, peer.answered

    def _is_late(self, peer: Candidate, now: float, after_s: float = PREPARED_WITHIN_S) -> bool:
        """Return whether a peer has offered no copy within `after_s` of the first request."""
        since = peer.preparing
        return peer.offer is None and since is not None and now - since >= after_s
