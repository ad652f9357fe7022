"""The deals of a node: what it has agreed with peers, with the snapshots and mass in them.

Both threads and the trainer come here. A deal that holds is put on the desk for the trainer, who
merges it in its next `wait`.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum

from dpwa.algorithms import Terms
from dpwa.clock import Clock
from dpwa.data.snapshot import Lease, SnapshotPool
from dpwa.node.incoming import IsFinite
from dpwa.policy.deals import Acceptance, Deals, Verdict
from dpwa.policy.push_sum import Mass
from dpwa.types import JsonObject
from dpwa.wire.limits import DEAL_BYTES

log = logging.getLogger("dpwa.deals")

REMEMBER_S = 60.0
RESEND_S = 0.25
MARGIN_S = 0.05
MOST_OF_ONE_PEER = 4  # proposals: one, and those of which it does not know yet how they ended


@dataclass
class Settled:
    """A snapshot that is to be merged, because a deal holds or mass has come back.

    Attributes:
        peer: whose.
        theirs: the snapshot.
        own: this node's in the deal; `None`: the one it has published in the round.
        units: of push-sum mass that come with it.
        returned: the deal that is off, if the mass is this node's own.
    """

    peer: str
    theirs: Lease
    own: Lease | None = None
    units: int = 0
    returned: bytes | None = None

    def release(self) -> None:
        """Give the snapshots back."""
        self.theirs.release()
        if self.own is not None:
            self.own.release()


@dataclass
class _Record:
    peer: str
    own: Lease
    is_asked: bool  # whether this node has proposed it
    theirs: Lease | None = None
    units: int = 0


class Answer(Enum):
    """What to answer to a proposal that cannot be agreed to."""

    BUSY = "busy"
    NOT_READY = "not_ready"
    NOT_YET = "not_yet"  # the newest snapshot is still being copied


@dataclass(frozen=True)
class Agreement:
    """What to answer to one that can: this node's snapshot, and the mass that goes with it."""

    version: int
    clock: float
    units: int
    is_new: bool


class DealDesk:
    """All deals of one node; every method may be called from any thread.

    Args:
        name: of this node.
        terms: of its deals.
        pool: where its snapshots are.
        clock: what time is taken from.
        longest_s: how long a deal may take at the most, whatever the peer asks.

    Attributes:
        is_finite: tells whether the values that a partner sends are finite numbers; `None` to take
            any.
    """

    def __init__(
        self, name: str, terms: Terms, pool: SnapshotPool, clock: Clock, longest_s: float
    ) -> None:
        self.terms = terms
        self.is_finite: IsFinite | None = None
        self.longest_s = longest_s
        self._name = name
        self._pool = pool
        self._clock = clock
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._lock = threading.RLock()
        self._deals = Deals(name, is_exclusive=terms is Terms.EXCHANGE, remember_s=REMEMBER_S)
        self._mass = Mass()
        self._records: dict[bytes, _Record] = {}
        self._settled: deque[Settled] = deque()
        self._sent_at: dict[bytes, float] = {}
        self._traded_version = 0  # the snapshot of the last exchange: each is traded once
        self._published_version = 0  # the snapshot that the mass goes with
        self._lost_before = 0

    # The training thread

    @property
    def is_engaged(self) -> bool:
        """Whether a deal keeps this node from asking for another."""
        with self._lock:
            return self._deals.is_engaged(self._clock.now())

    def published(self, version: int) -> None:
        """Note that the snapshot of this version is the model as it is now."""
        with self._lock:
            self._published_version = version
            self._mass.published()

    def take(self) -> Settled | None:
        """Take one of what is to be merged now, and must be released then."""
        with self._lock:
            return self._settled.popleft() if self._settled else None

    def factor(self, settled: Settled) -> float:
        """Return the weight to merge with; the mass that comes counts as received."""
        with self._lock:
            if self.terms is Terms.EXCHANGE:
                return 0.5
            if settled.returned is not None:
                return self._mass.returned(settled.returned)
            factor = self._mass.factor(settled.units)
            self._mass.received(settled.units)
            return factor

    # The asking side: the TxThread

    def propose(self, peer: str, own_version: int, expires: float) -> bytes | None:
        """Open a deal; `None` if this node is engaged, or its snapshot is of no use for one."""
        with self._lock:
            deal, now = secrets.token_bytes(DEAL_BYTES), self._clock.now()
            if self.terms is Terms.EXCHANGE and own_version <= self._traded_version:
                return None
            own = self._pool.at(own_version)
            if own is None:
                return None
            if _has_diverged(own) or not self._deals.propose(deal, peer, now, expires):
                own.release()
                return None
            self._records[deal] = _Record(peer, own, is_asked=True)
            return deal

    def agreed(self, deal: bytes, units: int) -> bool:
        """Take that the peer has agreed; return whether the deal is still wanted."""
        with self._lock:
            record = self._records.get(deal)
            if record is None or not self._deals.agreed(deal):
                return False
            record.units = units
            return True

    def refused(self, deal: bytes) -> None:
        """Take that the peer has not."""
        with self._lock:
            self._deals.refused(deal)
            self._drop(deal)

    def complete(self, deal: bytes, theirs: Lease) -> bool:
        """Note that the peer's snapshot is there; return whether the deal holds by that."""
        with self._lock:
            record = self._records.get(deal)
            if record is None or record.theirs is not None:
                theirs.release()
                return False
            record.theirs = theirs
            return self._try_commit(deal)

    def prepared(self, deal: bytes) -> bool | None:
        """Take that the peer has this node's snapshot.

        Returns:
            Whether the deal holds by that; `None` when it is over, or was never proposed.
        """
        with self._lock:
            record = self._records.get(deal)
            if record is not None and not record.is_asked:
                return False  # it is the peer's own to decide
            return self._try_commit(deal) if self._deals.prepared(deal) else None

    def outcome(self, deal: bytes) -> bool:
        """Return how an own proposal ended; one that is not known was never to be."""
        with self._lock:
            return self._deals.decide(deal, commit=False, now=self._clock.now())

    def abort(self, deal: bytes) -> None:
        """Give up an own proposal that is not decided yet."""
        with self._lock:
            record = self._records.get(deal)
            if record is not None and not record.is_asked:
                return
            if not self._deals.decide(deal, commit=False, now=self._clock.now()):
                self._drop(deal)

    def decisions_due(self) -> list[tuple[bytes, str, bool]]:
        """Return what to tell whom, now or again: the deal, the peer, and whether it holds."""
        if self.terms is Terms.PULL:
            return []
        with self._lock:
            now = self._clock.now()
            undelivered = self._deals.undelivered(now)
            still = {deal for deal, _, _ in undelivered}
            self._sent_at = {deal: at for deal, at in self._sent_at.items() if deal in still}
            due = [d for d in undelivered if now - self._sent_at.get(d[0], -RESEND_S) >= RESEND_S]
            self._sent_at.update((deal, now) for deal, _, _ in due)
            return due

    def decisions_for(self, peer: str) -> list[tuple[bytes, bool]]:
        """Return all that a peer has not noted."""
        with self._lock:
            undelivered = self._deals.undelivered(self._clock.now())
            return [(deal, commit) for deal, name, commit in undelivered if name == peer]

    @property
    def has_undelivered(self) -> bool:
        """Whether there are decisions that a peer has not noted."""
        if self.terms is Terms.PULL:
            return False
        with self._lock:
            return bool(self._deals.undelivered(self._clock.now()))

    def noted(self, deal: bytes) -> None:
        """Take that the peer knows the decision."""
        with self._lock:
            self._deals.noted(deal)

    # The answering side: the RxThread, and the TxThread that collects for it

    def accept(self, deal: bytes, peer: str, budget_s: float) -> Agreement | Answer:
        """Take a proposal, or say why not."""
        with self._lock:
            known = self._records.get(deal)
            if known is not None:  # it is repeated
                return _agreement(known, is_new=False)
            own = self._pool.newest()
            if own is None:
                return Answer.NOT_READY
            is_model = own.snapshot.version == self._published_version  # else it is on its way
            if self.terms is Terms.SHARE and not is_model:
                own.release()
                return Answer.NOT_YET
            now = self._clock.now()
            # Not before it expires for the peer.
            expires = now + min(budget_s, self.longest_s) + MARGIN_S
            if (
                _has_diverged(own)
                or self._is_traded(own)
                or self._holds_too_many(own)
                or self._has_too_many_of(peer)
                or self._deals.accept(deal, peer, now, expires) is not Acceptance.ACCEPTED
            ):
                own.release()
                return Answer.BUSY
            return self._accepted(deal, peer, own)

    def _accepted(self, deal: bytes, peer: str, own: Lease) -> Agreement | Answer:
        units = 0
        if self.terms is Terms.SHARE:
            share = self._mass.share(deal)
            if share is None:
                self._deals.decided(deal, commit=False)
                own.release()
                return Answer.NOT_READY
            units = share
        record = self._records[deal] = _Record(peer, own, is_asked=False, units=units)
        self._forget_decided()
        return _agreement(record, is_new=True)

    def clock_of(self, deal: bytes) -> float:
        """Return the training clock of this node's snapshot in a deal; 0 when it is over."""
        with self._lock:
            record = self._records.get(deal)
            return 0.0 if record is None else record.own.snapshot.standing.clock

    def collected(self, deal: bytes, theirs: Lease) -> bool:
        """Note that the asking side's snapshot is there; return whether to say so."""
        with self._lock:
            record = self._records.get(deal)
            if record is None or record.theirs is not None or not self._deals.ready(deal):
                theirs.release()
                return False
            record.theirs = theirs
            return True

    def collect_failed(self, deal: bytes) -> bool:
        """Note that it cannot be had; return whether the deal is off by that."""
        with self._lock:
            record = self._records.get(deal)
            if record is None or record.theirs is not None:
                return False
            self.decided(deal, commit=False)
            return True

    def decided(self, deal: bytes, *, commit: bool) -> None:
        """Take the asking side's decision."""
        with self._lock:
            verdict = self._deals.decided(deal, commit)
            if verdict is Verdict.COMMIT:
                self._settle(deal)
            elif verdict is Verdict.ABORT:
                self._take_back(deal)

    # Both

    def gone(self, peer: str) -> None:
        """End the deals with a process that has ended."""
        with self._lock:
            for deal in self._deals.forget_peer(peer, self._clock.now()):
                self._take_back(deal)
            self._forget_decided()

    def expire(self) -> None:
        """End what has run out of time; called after every message, so free without deals."""
        if self.terms is Terms.PULL:
            return
        with self._lock:
            for deal in self._deals.expire(self._clock.now()):
                self._take_back(deal)
            self._forget_decided()
            self._warn_of_losses()

    def report(self) -> JsonObject:
        """Describe deals and mass in plain data."""
        with self._lock:
            counts: JsonObject = dict(self._deals.report())
            if self.terms is Terms.SHARE:
                counts["weight"] = self._mass.weight
                counts["units"] = self._mass.held
                counts["units_in_flight"] = self._mass.in_flight
            return counts

    def close(self) -> None:
        """Let go of all snapshots."""
        with self._lock:
            for deal in list(self._records):
                self._drop(deal)
            while (settled := self.take()) is not None:
                settled.release()

    def _is_traded(self, own: Lease) -> bool:
        is_exchange = self.terms is Terms.EXCHANGE
        return is_exchange and own.snapshot.version <= self._traded_version

    def _holds_too_many(self, newest: Lease) -> bool:
        """Tell whether deals keep so many older snapshots that there might be no room for more."""
        versions = {record.own.snapshot.version for record in self._records.values()}
        return len(versions - {newest.snapshot.version}) >= self._pool.most_slots

    def _has_too_many_of(self, peer: str) -> bool:
        """Tell whether one peer has more proposals open than it has reason to."""
        names = [record.peer for record in self._records.values() if not record.is_asked]
        return names.count(peer) >= MOST_OF_ONE_PEER

    def _try_commit(self, deal: bytes) -> bool:
        """Decide for the deal if both snapshots are where they belong."""
        now, record = self._clock.now(), self._records.get(deal)
        if record is None or record.theirs is None or not self._deals.may_commit(deal, now):
            return False
        if not self._deals.decide(deal, commit=True, now=now):
            return False
        if self.terms is Terms.SHARE:
            del self._records[deal]
            record.own.release()  # the trainer has published a newer one by the time it merges
            self._settled.append(Settled(record.peer, record.theirs, units=record.units))
        else:
            self._settle(deal)
        return True

    def _settle(self, deal: bytes) -> None:
        """Put a deal that holds where the trainer finds it."""
        record = self._records.pop(deal)
        if self.terms is Terms.SHARE:
            self._mass.delivered(deal)
            record.own.release()
        elif record.theirs is not None:
            self._traded_version = max(self._traded_version, record.own.snapshot.version)
            self._settled.append(Settled(record.peer, record.theirs, record.own))

    def _take_back(self, deal: bytes) -> None:
        """Undo what was promised: mass that was given is to be merged again."""
        record = self._records.get(deal)
        if record is None:
            return
        if self.terms is Terms.SHARE:
            del self._records[deal]
            back = Settled(self._name, record.own, units=record.units, returned=deal)
            self._settled.append(back)
        else:
            self._drop(deal)

    def _drop(self, deal: bytes) -> None:
        record = self._records.pop(deal, None)
        if record is not None:
            record.own.release()
            if record.theirs is not None:
                record.theirs.release()

    def _forget_decided(self) -> None:
        """Drop what an own proposal held that was aborted, to accept another one or by its time."""
        for deal, _, commit in self._deals.undelivered(self._clock.now()):
            if not commit:
                self._drop(deal)

    def _warn_of_losses(self) -> None:
        counts = self._deals.report()
        lost = counts["unresolved"] + counts["given_up"]
        if lost > self._lost_before:
            self._lost_before = lost
            what = "mass of push_sum" if self.terms is Terms.SHARE else "exchanges"
            log.warning(
                "%s: %d of %d deals ended without an answer for %g s: %s may be counted twice or "
                "lost; is the network cut?",
                self._name,
                lost,
                lost + counts["committed"],
                REMEMBER_S,
                what,
            )


def _agreement(record: _Record, *, is_new: bool) -> Agreement:
    own = record.own.snapshot
    return Agreement(own.version, own.standing.clock, record.units, is_new)


def _has_diverged(own: Lease) -> bool:
    """Tell whether nobody would take this snapshot."""
    return own.snapshot.is_finite is False or own.snapshot.standing.loss == math.inf
