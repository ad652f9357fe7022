"""Transactions: merges in which both nodes change, or neither does, even if messages get lost.

Two rules need them. The first is symmetric exchange, where both nodes of a random pair average, as
deltas on the pair of published snapshots (X. Lian et al., Asynchronous Decentralized Parallel
Stochastic Gradient Descent, 2018):

    x_A += f (pub_B - pub_A),    x_B += f (pub_A - pub_B),    f = 1/2

The second is push-sum, where mass leaves one node exactly if it reaches the other
(`policy/push_sum.py`).

A transaction is a two-phase commit of two (J. Gray, Notes on Data Base Operating Systems, 1978). A,
the asking side, decides. `TransactionDecision` is sent repeatedly until it is noted:

    A                                        B
    propose    ──────── Propose ────────►    accept
    agreed     ◄─── Agreed (or Busy) ────    (each fetches the snapshot of the other)
    prepared   ◄─────── Prepared ────────    ready
    decide     ── TransactionDecision ──►    decided
    noted      ◄────── DecisionAck ──────

**Both or neither.** A commits only a transaction that B has prepared, and before the deadline. B
aborts by itself what it has not prepared. What it has prepared, it keeps until it receives the
decision, which may be late, as deltas add up in any order. A node that is asked about an unknown
transaction answers abort. So the ends differ only if they are not connected for `remember_s` after
the decision, which is counted. No clocks are compared. `expires` is each side's own, and B's must
not be earlier than A's. No message may live longer than `remember_s`, or be received by a process
other than the one it was sent to.

**Exclusive transactions** (symmetric exchange): a node takes part in one undecided transaction at a
time. Until its own proposal is agreed, it accepts another one with a smaller id, and gives up its
own.

There is no deadlock, because no node ever waits for a lock, as Busy is an answer. There is progress
if no message is lost. The smallest proposal is refused only where a different transaction was
accepted, so one is. The smallest accepted one succeeds, as its asker gives it up only by accepting
a smaller one.

>>> a = Transactions("a", is_exclusive=True, remember_s=60.0)
>>> b = Transactions("b", is_exclusive=True, remember_s=60.0)
>>> a.propose(b"pair-one", "b", now=0.0, expires=2.0)
True
>>> b.accept(b"pair-one", "a", now=0.1, expires=2.1)
<Acceptance.ACCEPTED: 'accepted'>
>>> a.agreed(b"pair-one"), b.mark_ready(b"pair-one"), a.prepared(b"pair-one")
(True, True, True)
>>> a.decide(b"pair-one", commit=True, now=0.3)
True
>>> a.undelivered(now=0.3)
((b'pair-one', 'b', True),)
>>> b.decided(b"pair-one", commit=True)
<DecisionOutcome.COMMIT: 'commit'>
>>> a.noted(b"pair-one")
>>> a.undelivered(now=0.4)
()
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

REMEMBER_S = 60.0  # how a transaction has ended
RESEND_S = 0.25  # its decision, while the peer has not noted it
MAX_REMEMBERED = 1024
MAX_OPEN = 1024
# How often the partner of the last exchange is not asked, once another peer was busy. Where steps
# take equally long, those two are free at the same moment, when nobody else is: without this they
# would exchange with each other for good.
PARTED = 0.5
MAX_COPIES = 4
"""Those that an exclusive node may be answering: one and those in doubt, each with a model."""


class Acceptance(Enum):
    """The answers to a proposal: Agreed, a repeated Agreed, or Busy."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    BUSY = "busy"


class DecisionOutcome(Enum):
    """A decision's effect on its receiver. All are noted, but only `COMMIT` is applied."""

    COMMIT = "commit"
    ABORT = "abort"
    KNOWN = "known"
    UNKNOWN = "unknown"


@dataclass
class _Asked:
    peer: str
    expires: float
    is_agreed: bool = False
    is_prepared: bool = False

    def may_commit(self, now: float) -> bool:
        return self.is_prepared and now < self.expires


@dataclass
class _Answered:
    peer: str
    expires: float
    is_ready: bool


@dataclass
class _Decision:
    peer: str
    commit: bool
    until: float
    sent_at: float = -math.inf


class _Finished:
    """Finished transactions, and whether each transaction was committed.

    In two generations: the older one is dropped once in `remember_s`, and when the younger is full.
    So each is remembered for one to two `remember_s`, and at least the last 512 are.
    """

    def __init__(self, remember_s: float) -> None:
        self._remember_s = remember_s
        self._turned_at = float("-inf")
        self._young: dict[bytes, bool] = {}
        self._old: dict[bytes, bool] = {}

    def record_outcome(self, transaction: bytes, committed: bool) -> None:
        if len(self._young) >= MAX_REMEMBERED // 2:
            self._rotate()
        self._young[transaction] = committed

    def __contains__(self, transaction: bytes) -> bool:
        return transaction in self._young or transaction in self._old

    def is_committed(self, transaction: bytes) -> bool:
        return self._young.get(transaction, False) or self._old.get(transaction, False)

    def age(self, now: float) -> None:
        if now - self._turned_at >= self._remember_s:
            self._turned_at = now
            self._rotate()

    def _rotate(self) -> None:
        self._old, self._young = self._young, {}


class Transactions:
    """One node's transactions, as asker and answerer. Not thread-safe. `now` is in seconds.

    Call `undelivered` and `expire` several times within the time that a transaction may take. With
    `is_exclusive` the node takes part in one undecided transaction at a time, and the answering
    side has something to prepare. Otherwise (push-sum) it is prepared when it accepts.
    `remember_s`: for how long to try to agree on the end of a transaction.
    """

    def __init__(self, own: str, *, is_exclusive: bool, remember_s: float) -> None:
        self._own = own
        self._is_exclusive = is_exclusive
        self._remember_s = remember_s
        self._most_answered = MAX_COPIES if is_exclusive else MAX_OPEN
        self._asked: dict[bytes, _Asked] = {}
        self._decisions: dict[bytes, _Decision] = {}
        self._answered: dict[bytes, _Answered] = {}
        self._finished = _Finished(remember_s)
        self._counts = dict.fromkeys(("committed", "aborted", "busy", "unresolved", "given_up"), 0)

    # Both sides

    def is_engaged(self, now: float) -> bool:
        """Return whether an exclusive transaction is undecided, and its deadline is not over."""
        deadlines = [asked.expires for asked in self._asked.values()]
        deadlines += [answered.expires for answered in self._answered.values()]
        return self._is_exclusive and now < max(deadlines, default=now)

    def expire(self, now: float) -> tuple[bytes, ...]:
        """End transactions whose time is over. Return the ended transactions that peers proposed.

        A transaction that is not prepared ends at its deadline. A prepared one stays in doubt,
        because the peer may have committed, until `remember_s` later. Then it ends as `unresolved`.
        """
        for transaction in [t for t, asked in self._asked.items() if asked.expires <= now]:
            self.decide(transaction, commit=False, now=now)
        over = tuple(t for t, answered in self._answered.items() if self._ends(answered, now))
        for transaction in over:
            is_ready = self._answered[transaction].is_ready
            self._end(transaction, "unresolved" if is_ready else "aborted")
        self._finished.age(now)
        return over

    def forget_peer(self, peer: str, now: float) -> tuple[bytes, ...]:
        """Abort open transactions with an ended peer. Return those that the peer had proposed.

        Decisions hold, and are sent to the peer as long as possible. A transaction that this side
        has prepared stays in doubt like any other.
        """
        for transaction in [t for t, asked in self._asked.items() if asked.peer == peer]:
            self.decide(transaction, commit=False, now=now)
        over = tuple(t for t, a in self._answered.items() if a.peer == peer and not a.is_ready)
        for transaction in over:
            self._end(transaction, "aborted")
        return over

    def report(self) -> dict[str, int]:
        """Return the outcomes of this node's transactions, on both sides.

        `committed` and `aborted`. `busy`: refused by the peer. `unresolved`: prepared, but no
        decision arrived. `given_up`: commits that were never noted, so that the peer may not have
        applied them (they are among `committed` too).
        """
        return dict(self._counts)

    # The asking side

    def propose(self, transaction: bytes, peer: str, now: float, expires: float) -> bool:
        """Propose a transaction (id: 8 new random bytes). `False`: engaged, so nothing is sent."""
        if peer == self._own or self.is_engaged(now) or len(self._asked) >= MAX_OPEN:
            return False
        self._asked[transaction] = _Asked(peer, expires)
        return True

    def agreed(self, transaction: bytes) -> bool:
        """Record the peer's acceptance. `False`: the transaction is over, so answer by `decide`."""
        asked = self._asked.get(transaction)
        if asked is None:
            return False
        asked.is_agreed = True
        asked.is_prepared = asked.is_prepared or not self._is_exclusive
        return True

    def refused(self, transaction: bytes) -> None:
        """End a transaction because the peer was busy and refused it."""
        if self._asked.pop(transaction, None) is not None:
            self._counts["busy"] += 1
            self._finished.record_outcome(transaction, committed=False)
        elif transaction in self._decisions and not self._decisions[transaction].commit:
            self.noted(transaction)

    def prepared(self, transaction: bytes) -> bool:
        """Record that the peer accepted, and has this node's snapshot. Returns as `agreed` does."""
        if not self.agreed(transaction):
            return False
        self._asked[transaction].is_prepared = True
        return True

    def may_commit(self, transaction: bytes, now: float) -> bool:
        """Return whether a transaction can commit: it is prepared, undecided and not expired."""
        return transaction in self._asked and self._asked[transaction].may_commit(now)

    def decide(self, transaction: bytes, *, commit: bool, now: float) -> bool:
        """Decide a transaction irrevocably. Return whether the transaction is committed.

        A transaction that may not be committed is aborted. A decided transaction stays as it is,
        and an unknown one is aborted.
        """
        asked = self._asked.pop(transaction, None)
        if asked is None:
            made = self._decisions.get(transaction)
            return self._finished.is_committed(transaction) if made is None else made.commit
        commit = commit and asked.may_commit(now)
        self._counts["committed" if commit else "aborted"] += 1
        if len(self._decisions) >= MAX_OPEN:
            self._give_up(next(iter(self._decisions)))
        self._decisions[transaction] = _Decision(asked.peer, commit, now + self._remember_s)
        return commit

    def noted(self, transaction: bytes) -> None:
        made = self._decisions.pop(transaction, None)
        if made is not None:
            self._finished.record_outcome(transaction, made.commit)

    def undelivered(self, now: float) -> tuple[tuple[bytes, str, bool], ...]:
        """Return (transaction, peer, commit) of the decisions to send, for up to `remember_s`."""
        for transaction in [
            transaction for transaction, made in self._decisions.items() if made.until <= now
        ]:
            self._give_up(transaction)
        return tuple(
            (transaction, made.peer, made.commit) for transaction, made in self._decisions.items()
        )

    def pick_due(self, now: float) -> list[tuple[bytes, str, bool]]:
        """Return the undelivered decisions that are due for sending, and mark these as sent."""
        due = []
        for decision in self.undelivered(now):
            made = self._decisions[decision[0]]
            if now - made.sent_at >= RESEND_S:
                made.sent_at = now
                due.append(decision)
        return due

    # The answering side

    def accept(self, transaction: bytes, peer: str, now: float, expires: float) -> Acceptance:
        """Accept or refuse a proposal. A refused transaction is never accepted later.

        An own proposal that gives way to this one is aborted, and returned by `undelivered`.
        `expires`: until when the peer may commit, or later.
        """
        if transaction in self._answered:
            return Acceptance.REPEATED
        if transaction in self._finished:
            return Acceptance.BUSY
        if peer == self._own or expires <= now or not self._has_room(transaction, now):
            self._finished.record_outcome(transaction, committed=False)
            return Acceptance.BUSY
        if self._is_exclusive:
            for own_transaction in list(self._asked):
                self.decide(own_transaction, commit=False, now=now)
        self._answered[transaction] = _Answered(peer, expires, is_ready=not self._is_exclusive)
        return Acceptance.ACCEPTED

    def mark_ready(self, transaction: bytes) -> bool:
        """Record that this node has the peer's snapshot. Return whether to (re)send Prepared."""
        answered = self._answered.get(transaction)
        if answered is None:
            return False
        answered.is_ready = True
        return True

    def decided(self, transaction: bytes, commit: bool) -> DecisionOutcome:
        """Record the peer's decision. An unprepared commit is `ABORT`, counted as `unresolved`."""
        answered = self._answered.get(transaction)
        if answered is None:
            return self._outcome_of_unknown(transaction)
        if commit and not answered.is_ready:
            self._end(transaction, "unresolved")
            return DecisionOutcome.ABORT
        self._end(transaction, "committed" if commit else "aborted")
        return DecisionOutcome.COMMIT if commit else DecisionOutcome.ABORT

    def _outcome_of_unknown(self, transaction: bytes) -> DecisionOutcome:
        if transaction in self._finished:
            return DecisionOutcome.KNOWN
        self._finished.record_outcome(
            transaction, committed=False
        )  # its proposal, if it is still to come, is late
        return DecisionOutcome.UNKNOWN

    def _has_room(self, transaction: bytes, now: float) -> bool:
        """Return whether this node can accept a proposal, perhaps by aborting one of its own."""
        if len(self._answered) >= self._most_answered:
            return False
        if not self._is_exclusive:
            return True
        firm = [
            asked.expires
            for own, asked in self._asked.items()
            if asked.is_agreed or own < transaction
        ]
        firm += [answered.expires for answered in self._answered.values()]
        return now >= max(firm, default=now)

    def _ends(self, answered: _Answered, now: float) -> bool:
        return now >= answered.expires + (self._remember_s if answered.is_ready else 0.0)

    def _end(self, transaction: bytes, how: str) -> None:
        del self._answered[transaction]
        self._counts[how] += 1
        self._finished.record_outcome(transaction, committed=how == "committed")

    def _give_up(self, transaction: bytes) -> None:
        self._counts["given_up"] += self._decisions[transaction].commit
        self.noted(transaction)
