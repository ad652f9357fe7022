"""TransactionManager keeps a node's transactions, with their snapshots and push-sum mass.

Both threads and the trainer use it. A committed transaction is kept for the trainer, which merges
it in its next `update_wait`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum

from dpwa.algorithms import Terms
from dpwa.data.snapshot import Lease, SnapshotPool
from dpwa.node.arrival import IsFinite
from dpwa.policy.push_sum import Mass
from dpwa.policy.transactions import REMEMBER_S, Acceptance, DecisionOutcome, Transactions
from dpwa.runtime import Runtime
from dpwa.types import JsonObject
from dpwa.wire.limits import TRANSACTION_BYTES


@dataclass
class Settled:
    """A snapshot to merge: from a committed transaction, or to return mass of an aborted one."""

    peer: str
    theirs: Lease
    # this node's snapshot in the transaction; `None`: the one published in the round
    own: Lease | None = None
    units: int = 0  # of push-sum mass that come with it
    returned: bytes | None = None  # the aborted transaction, if the mass is this node's own
    is_taken: bool = False  # the trainer has it by now, and its mass is this node's

    def release(self) -> None:
        """Release the snapshots. A second call has no effect."""
        self.is_taken = True
        self.theirs.release()
        if self.own is not None:
            self.own.release()


@dataclass
class TransactionRecord:
    """One transaction that is under way."""

    peer: str
    own: Lease  # this node's snapshot
    is_asked: bool  # this node has proposed it
    theirs: Lease | None = None  # the peer's snapshot, once it is here
    units: int = 0  # the mass that this node gives away


class Declined(Enum):
    """The answer to a proposal that cannot be accepted."""

    BUSY = "busy"
    NOT_READY = "not_ready"
    NOT_YET = "not_yet"  # the newest snapshot is still being copied


@dataclass(frozen=True)
class AgreedTerms:
    """The answer to an accepted proposal: data of this node's snapshot, and push-sum mass."""

    version: int
    clock: float
    units: int
    is_new: bool


def agreement(record: TransactionRecord, *, is_new: bool) -> AgreedTerms:
    own = record.own.snapshot
    return AgreedTerms(own.version, own.progress.clock, record.units, is_new)


def has_diverged(own: Lease) -> bool:
    """Return whether a snapshot has an infinite loss or values that are not finite."""
    return own.snapshot.is_finite is False or own.snapshot.progress.loss == math.inf


log = logging.getLogger("dpwa.transactions")


MARGIN_S = 0.05
MAX_PEER_PROPOSALS = 4  # proposals: one, and those of which it does not know yet how they ended


class TransactionManager:
    """All transactions of one node. Any thread may call every method."""

    def __init__(
        self, name: str, terms: Terms, pool: SnapshotPool, runtime: Runtime, longest_s: float
    ) -> None:
        self.terms = terms
        # tests the values that a partner sends; `None`: unchecked
        self.is_finite: IsFinite | None = None
        self.partner = ""  # of the last exchange
        # how long a transaction may take at the most, whatever the peer asks
        self.longest_s = longest_s
        self._name = name
        self._pool = pool
        self._clock = self._runtime = runtime
        # Reentrant: a signal handler may close the node while its thread is in here.
        self._lock = threading.RLock()
        self._transactions = Transactions(
            name, is_exclusive=terms is Terms.EXCHANGE, remember_s=REMEMBER_S
        )
        self._mass = Mass()
        self._records: dict[bytes, TransactionRecord] = {}
        self._settled: deque[Settled] = deque()
        self._lost = 0  # transactions whose outcome a peer never acknowledged
        self._traded_version = 0  # up to which snapshots have been in an exchange, or its merge
        self._published_version = 0  # the snapshot that the mass goes with

    # The training thread

    @property
    def is_engaged(self) -> bool:
        """Whether an unfinished exchange prevents this node from proposing another exchange."""
        with self._lock:
            return self._has_untaken or self._transactions.is_engaged(self._clock.now())

    def published(self, version: int) -> None:
        """Record that the snapshot of this version equals the current model."""
        with self._lock:
            self._published_version = version
            self._mass.published()

    def next_settled(self) -> Settled | None:
        """Return the first snapshot to be merged now, which the caller must release.

        It stays the first until its `factor` was asked for, so an earlier interrupt loses nothing.
        """
        with self._lock:
            while self._settled and self._settled[0].is_taken:
                self._settled[0].release()  # if an interrupt has come before that
                self._settled.popleft()
            if not self._settled:
                return None
            # What is published was so before this merge, and would be averaged with twice.
            self._traded_version = max(self._traded_version, self._published_version)
            return self._settled[0]

    def factor(self, settled: Settled) -> float:
        """Return the weight for a merge. The arriving mass counts as received, once."""
        with self._lock:
            if self.terms is Terms.EXCHANGE:
                factor, self.partner = 0.5, settled.peer
            elif settled.returned is not None:
                factor = self._mass.returned(settled.returned)
            else:
                factor = self._mass.factor(settled.units)
                # One step for an interrupt, as nothing is called in between.
                self._mass.held += settled.units
                settled.units = 0
            settled.is_taken = True
            return factor

    # The asking side: the TxThread

    def propose(self, peer: str, own_version: int, expires: float) -> bytes | None:
        """Open a transaction. `None` if this node is engaged, or its snapshot is unsuitable."""
        with self._lock:
            transaction, now = self._runtime.token_bytes(TRANSACTION_BYTES), self._clock.now()
            own = self._pool.at(own_version)
            if own is None:
                return None
            if (
                has_diverged(own)
                or self._is_traded(own)
                or not self._transactions.propose(transaction, peer, now, expires)
            ):
                own.release()
                return None
            self._records[transaction] = TransactionRecord(peer, own, is_asked=True)
            return transaction

    def agreed(self, transaction: bytes, units: int) -> bool:
        """Note that the peer has agreed, and return whether the transaction is still wanted."""
        with self._lock:
            record = self._records.get(transaction)
            if record is None or not self._transactions.agreed(transaction):
                return False
            record.units = units
            return True

    def refused(self, transaction: bytes) -> None:
        with self._lock:
            self._transactions.refused(transaction)
            self._drop(transaction)

    def complete(self, transaction: bytes, theirs: Lease) -> bool:
        """Record that the peer's snapshot arrived. Return whether that commits the transaction."""
        with self._lock:
            record = self._records.get(transaction)
            if record is None or record.theirs is not None:
                theirs.release()
                return False
            record.theirs = theirs
            return self._try_commit(transaction)

    def prepared(self, transaction: bytes) -> bool | None:
        """Record that the peer has this node's snapshot. Return whether the transaction commits.

        Returns `None` if the transaction is over, or was never proposed.
        """
        with self._lock:
            record = self._records.get(transaction)
            if record is not None and not record.is_asked:
                return False  # it is the peer's own to decide
            return (
                self._try_commit(transaction) if self._transactions.prepared(transaction) else None
            )

    def outcome(self, transaction: bytes) -> bool:
        """Return whether this node's proposal is committed. False for an unknown proposal."""
        with self._lock:
            return self._transactions.decide(transaction, commit=False, now=self._clock.now())

    def abort(self, transaction: bytes) -> None:
        with self._lock:
            record = self._records.get(transaction)
            if record is not None and not record.is_asked:
                return
            if not self._transactions.decide(transaction, commit=False, now=self._clock.now()):
                self._drop(transaction)

    def decisions_due(self) -> list[tuple[bytes, str, bool]]:
        """Return the decisions to send. See `Transactions.pick_due`."""
        with self._lock:
            return self._transactions.pick_due(self._clock.now())

    def decisions_for(self, peer: str) -> list[tuple[bytes, bool]]:
        """Return all decisions that a peer has not acknowledged."""
        with self._lock:
            undelivered = self._transactions.undelivered(self._clock.now())
            return [
                (transaction, commit) for transaction, name, commit in undelivered if name == peer
            ]

    @property
    def has_undelivered(self) -> bool:
        with self._lock:
            return bool(self._transactions.undelivered(self._clock.now()))

    def noted(self, transaction: bytes) -> None:
        with self._lock:
            self._transactions.noted(transaction)

    # The answering side: the RxThread, and the TxThread that collects for it

    def accept(self, transaction: bytes, peer: str, budget_s: float) -> AgreedTerms | Declined:
        with self._lock:
            known = self._records.get(transaction)
            if known is not None:  # it is repeated
                return agreement(known, is_new=False)
            self.expire()
            own = self._pool.newest()
            if own is None:
                return Declined.NOT_READY
            is_model = own.snapshot.version == self._published_version  # else it is on its way
            if self.terms is Terms.SHARE and not is_model:
                own.release()
                return Declined.NOT_YET
            now = self._clock.now()
            # Not before it expires for the peer.
            expires = now + min(budget_s, self.longest_s) + MARGIN_S
            if (
                has_diverged(own)
                or self._is_traded(own)
                or self._holds_too_many(own)
                or self._has_too_many_of(peer)
                or self._transactions.accept(transaction, peer, now, expires)
                is not Acceptance.ACCEPTED
            ):
                own.release()
                return Declined.BUSY
            return self._accepted(transaction, peer, own)

    def _accepted(self, transaction: bytes, peer: str, own: Lease) -> AgreedTerms | Declined:
        units = 0
        if self.terms is Terms.SHARE:
            share = self._mass.split_half(transaction)
            if share is None:
                self._transactions.decided(transaction, commit=False)
                own.release()
                return Declined.NOT_READY
            units = share
        record = self._records[transaction] = TransactionRecord(
            peer, own, is_asked=False, units=units
        )
        self._forget_decided()
        return agreement(record, is_new=True)

    def clock_of(self, transaction: bytes) -> float:
        """Return the clock of this node's snapshot in a transaction, or 0 if it has ended."""
        with self._lock:
            record = self._records.get(transaction)
            return 0.0 if record is None else record.own.snapshot.progress.clock

    def collected(self, transaction: bytes, theirs: Lease) -> bool:
        """Record that the proposer's snapshot arrived. Return whether to report the arrival."""
        with self._lock:
            record = self._records.get(transaction)
            if (
                record is None
                or record.theirs is not None
                or not self._transactions.mark_ready(transaction)
            ):
                theirs.release()
                return False
            record.theirs = theirs
            return True

    def collect_failed(self, transaction: bytes) -> bool:
        """Record a failed fetch of a peer's snapshot. Return whether the transaction is aborted."""
        with self._lock:
            record = self._records.get(transaction)
            if record is None or record.theirs is not None:
                return False
            self.decided(transaction, commit=False)
            return True

    def decided(self, transaction: bytes, *, commit: bool) -> None:
        with self._lock:
            outcome = self._transactions.decided(transaction, commit)
            if outcome is DecisionOutcome.COMMIT:
                self._settle(transaction)
            elif outcome is DecisionOutcome.ABORT:
                self._take_back(transaction)

    # Both

    def forget_peer(self, peer: str) -> None:
        with self._lock:
            for transaction in self._transactions.forget_peer(peer, self._clock.now()):
                self._take_back(transaction)
            self._forget_decided()

    def expire(self) -> None:
        """End the transactions whose time is over."""
        if self.terms is Terms.PULL:
            return
        with self._lock:
            for transaction in self._transactions.expire(self._clock.now()):
                self._take_back(transaction)
            self._forget_decided()
            counts = self._transactions.report()
        lost = counts["unresolved"] + counts["given_up"]
        if lost > self._lost:
            self._lost = lost
            log.warning(
                "%s: peers did not confirm %d of %d exchanges within %g s. As a result, %s may be "
                "lost or counted twice. Check the network [DPWA-W013]",
                self._name,
                lost,
                lost + counts["committed"],
                REMEMBER_S,
                "weights of push_sum" if self.terms is Terms.SHARE else "these exchanges",
            )

    def report(self) -> JsonObject:
        with self._lock:
            counts: JsonObject = dict(self._transactions.report())
            if self.terms is Terms.SHARE:
                counts["weight"] = self._mass.weight
                counts["units"] = self._mass.held
                counts["units_in_flight"] = self._mass.in_flight
            return counts

    def close(self) -> None:
        with self._lock:
            for transaction in list(self._records):
                self._drop(transaction)
            while self._settled:
                self._settled.popleft().release()

    @property
    def _has_untaken(self) -> bool:
        """Whether the trainer has not merged the last committed exchange yet."""
        is_exchange = self.terms is Terms.EXCHANGE
        return is_exchange and bool(self._settled) and not self._settled[-1].is_taken

    def _is_traded(self, own: Lease) -> bool:
        is_exchange = self.terms is Terms.EXCHANGE
        is_old = is_exchange and own.snapshot.version <= self._traded_version
        return is_old or self._has_untaken

    def _holds_too_many(self, newest: Lease) -> bool:
        """Return whether transactions keep so many snapshots that the pool may lack free slots."""
        versions = {record.own.snapshot.version for record in self._records.values()}
        return len(versions - {newest.snapshot.version}) >= self._pool.most_slots

    def _has_too_many_of(self, peer: str) -> bool:
        """Return whether one peer has more open proposals than a correct peer can have."""
        names = [record.peer for record in self._records.values() if not record.is_asked]
        return names.count(peer) >= MAX_PEER_PROPOSALS

    def _try_commit(self, transaction: bytes) -> bool:
        now, record = self._clock.now(), self._records.get(transaction)
        if (
            record is None
            or record.theirs is None
            or not self._transactions.may_commit(transaction, now)
        ):
            return False
        if not self._transactions.decide(transaction, commit=True, now=now):
            return False
        if self.terms is Terms.SHARE:
            del self._records[transaction]
            record.own.release()  # the trainer has published a newer one by the time it merges
            self._settled.append(Settled(record.peer, record.theirs, units=record.units))
        else:
            self._settle(transaction)
        return True

    def _settle(self, transaction: bytes) -> None:
        """Complete a committed transaction. Queue the snapshots of an exchange for the trainer."""
        record = self._records.pop(transaction)
        if self.terms is Terms.SHARE:
            self._mass.delivered(transaction)
            record.own.release()
        elif record.theirs is not None:
            self._traded_version = max(self._traded_version, record.own.snapshot.version)
            self._settled.append(Settled(record.peer, record.theirs, record.own))

    def _take_back(self, transaction: bytes) -> None:
        """Undo an accepted transaction. Push-sum mass for the peer will be merged again."""
        record = self._records.get(transaction)
        if record is None:
            return
        if self.terms is Terms.SHARE:
            del self._records[transaction]
            back = Settled(self._name, record.own, units=record.units, returned=transaction)
            self._settled.append(back)
        else:
            self._drop(transaction)

    def _drop(self, transaction: bytes) -> None:
        record = self._records.pop(transaction, None)
        if record is not None:
            record.own.release()
            if record.theirs is not None:
                record.theirs.release()

    def _forget_decided(self) -> None:
        """Release snapshots of this node's aborted proposals (by a timeout or another proposal)."""
        for transaction, _, commit in self._transactions.undelivered(self._clock.now()):
            if not commit:
                self._drop(transaction)
