"""What a node keeps of one transaction, and what both sides agree on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from dpwa.data.snapshot import Lease


@dataclass
class Settled:
    """A snapshot to be merged, because a transaction is committed or mass has come back."""

    peer: str
    theirs: Lease
    # this node's snapshot in the transaction; `None`: the one published in the round
    own: Lease | None = None
    units: int = 0  # of push-sum mass that come with it
    returned: bytes | None = None  # the aborted transaction, if the mass is this node's own
    is_taken: bool = False  # the trainer has it by now, and its mass is this node's

    def release(self) -> None:
        """May be called again without effect."""
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
    """What to answer to a proposal that cannot be agreed to."""

    BUSY = "busy"
    NOT_READY = "not_ready"
    NOT_YET = "not_yet"  # the newest snapshot is still being copied


@dataclass(frozen=True)
class AgreedTerms:
    """What to answer to one that can: this node's snapshot, and the mass that goes with it."""

    version: int
    clock: float
    units: int
    is_new: bool


def agreement(record: TransactionRecord, *, is_new: bool) -> AgreedTerms:
    own = record.own.snapshot
    return AgreedTerms(own.version, own.progress.clock, record.units, is_new)


def has_diverged(own: Lease) -> bool:
    """Tell whether nobody would take this snapshot."""
    return own.snapshot.is_finite is False or own.snapshot.progress.loss == math.inf
