"""Candidates: what a joiner knows of the peers that it might get its state from.

Decisions only; time is an argument. A peer is asked how far it is; those that are far enough are
asked to prepare their state, as many as are wanted at once; then pieces are fetched from them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import nlargest

from dpwa.policy.beginners import LEAD, bears_out, can_have_grown, most_borne_out
from dpwa.wire.state import StateOffer

NEAR = 0.9  # a donor whose clock is below so much of the best one's that is borne out is not used
GATHER_S = 0.25  # for more answers after the first from a peer with training behind it
ASK_EVERY_S = 0.25
SOON_S = 0.03  # a trainer copies its state at its next update
SILENT_S = 3.0  # a peer that does not say how far it is
PREPARED_WITHIN_S = 2.0  # else others are asked to prepare, too
CONTRADICTED_AFTER_S = 6.0  # likewise those whose clock nobody bears out: the others may not train


@dataclass
class Candidate:
    """One peer.

    Attributes:
        met: when it was seen first with a connection.
        next_ask: when it is to be asked again.
        clock: its training clock; `None` before it has answered.
        said: when it has told that.
        answered: when it answered first: near ones come first.
        busy_until: when it may have time for this node again.
        is_trained: whether there is training behind it that can be taken over.
        difference: why its state is of no use here, in words.
        preparing: since when it has been asked to prepare.
        offer: what it offers.
        is_lost: it has brought nonsense, now or before, and is not asked any more.
    """

    met: float
    next_ask: float = 0.0
    clock: float | None = None
    said: float = 0.0
    answered: float = math.inf
    busy_until: float = 0.0
    is_trained: bool = False
    difference: str = ""
    preparing: float | None = None
    offer: StateOffer | None = None
    is_lost: bool = False

    def is_silent(self, now: float, silent_s: float) -> bool:
        """Tell whether it should have answered by now."""
        return self.clock is None and not self.difference and now - self.met >= silent_s

    def can_offer(self, clock: float, now: float) -> bool:
        """Tell whether it can have come to a clock since it has told its own."""
        return can_have_grown(self.clock or 0.0, clock, now - self.said)

    @property
    def is_undecided(self) -> bool:
        """Whether it has not said how far it is."""
        return self.clock is None and not self.difference and not self.is_lost

    @property
    def may_give(self) -> bool:
        """Whether its state can be taken over."""
        return self.is_trained and not self.difference and not self.is_lost


@dataclass
class Candidates:
    """All peers of a joiner that can be reached.

    Args:
        most_donors: how many are to give their state at once.
        preferred: names of those that are asked first, if they are far enough.
        without: names of those that are not asked at all.
        silent_s: after which a peer counts that does not say how far it is.

    Attributes:
        peers: by name.
        first_trained: when the first one said that there is training behind it.
    """

    most_donors: int
    preferred: Collection[str] = ()
    without: Collection[str] = ()
    silent_s: float = SILENT_S
    peers: dict[str, Candidate] = field(default_factory=dict)
    first_trained: float | None = None

    def reach(self, names: Collection[str], now: float) -> None:
        """Take note of who can be reached now; the others are forgotten, but for what is wrong."""
        for name in names:
            self.peers.setdefault(name, Candidate(now, is_lost=name in self.without))
        for name in [name for name in self.peers if name not in names]:
            if not self.peers[name].is_lost:
                del self.peers[name]

    def due(self, now: float) -> Iterator[tuple[str, bool]]:
        """Yield who is to be asked now, and whether to prepare."""
        chosen = self._chosen(now)
        for name, peer in self.peers.items():
            if peer.is_lost or peer.difference or peer.offer is not None or now < peer.next_ask:
                continue
            prepares = name in chosen
            if prepares and peer.preparing is None:
                peer.preparing = now
            peer.next_ask = now + (SOON_S if prepares else ASK_EVERY_S)
            yield name, prepares

    def stands(self, name: str, clock: float, now: float, *, is_trained: bool) -> None:
        """Take note of how far a peer is."""
        peer = self.peers.get(name)
        if peer is None:
            return
        peer.clock, peer.said, peer.is_trained = clock, now, is_trained
        peer.answered = min(peer.answered, now)
        if is_trained and self.first_trained is None:
            self.first_trained = now

    def postpone(self, name: str, until: float) -> None:
        """Ask a peer for its state again, but later."""
        peer = self.peers.get(name)
        if peer is not None:
            peer.offer = peer.preparing = None
            peer.next_ask = peer.busy_until = until

    def lose(self, name: str) -> None:
        """Ask a peer no more."""
        peer = self.peers.get(name)
        if peer is not None:
            peer.offer, peer.is_lost = None, True

    def counted(self, clock: float) -> float:
        """Return as how much the clock counts that a donor offers; see `policy.beginners`."""
        return min(clock, self._most_borne_out)

    @property
    def _most_borne_out(self) -> float:
        clocks = [peer.clock or 0.0 for peer in self.peers.values() if peer.may_give]
        first, second = (*nlargest(2, clocks), 0.0, 0.0)[:2]
        is_contradicted = second >= LEAD and not bears_out(second, first)
        return most_borne_out(0.0, second) if is_contradicted else math.inf

    @property
    def differences(self) -> dict[str, str]:
        """Why the states of peers are of no use here, by name."""
        return {name: peer.difference for name, peer in self.peers.items() if peer.difference}

    @property
    def give(self) -> bool:
        """Whether there is any peer whose state can be taken over."""
        return any(peer.may_give for peer in self.peers.values())

    def have_answered(self, now: float) -> bool:
        """Tell whether all have said how far they are, but those that do not answer."""
        return not any(
            p.is_undecided and not p.is_silent(now, self.silent_s) for p in self.peers.values()
        )

    def _chosen(self, now: float) -> list[str]:
        """Return who is to prepare: the first ones that have answered, and are far enough."""
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

    def _rank(self, name: str) -> tuple[bool, bool, float]:
        peer = self.peers[name]
        return peer.preparing is None, name not in self.preferred, peer.answered

    def _is_late(self, peer: Candidate, now: float, after_s: float = PREPARED_WITHIN_S) -> bool:
        """Tell whether a peer was asked to prepare, and its trainer does not get to it."""
        since = peer.preparing
        return peer.offer is None and since is not None and now - since >= after_s
