"""What a node keeps of one transaction, and what both sides agree on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from dpwa.data.snapshot import Lease


@dataclass
class Settled:
    """A snapshot that is to be merged, because a transaction holds or mass has come back.

    Attributes:
        peer: whose.
        theirs: the snapshot.
        own: this node's in the transaction; `None`: the one it has published in the round.
        units: of push-sum mass that come with it.
        returned: the transaction that is off, if the mass is this node's own.
        is_taken: whether it is the trainer's by now, and its mass this node's.
    """

    peer: str
    theirs: Lease
    own: Lease | None = None
    units: int = 0
    returned: bytes | None = None
    is_taken: bool = False

    def release(self) -> None:
        """Give the snapshots back; may be called again without effect."""
        self.is_taken = True
        self.theirs.release()
        if self.own is not None:
            self.own.release()


@dataclass
class TransactionRecord:
    """One transaction that is under way.

    Attributes:
        peer: the other side.
        own: this node's snapshot.
        is_asked: whether this node has proposed it.
        theirs: the peer's snapshot, once it is here.
        units: the mass that this node gives away.
    """

    peer: str
    own: Lease
    is_asked: bool
    theirs: Lease | None = None
    units: int = 0


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
    """Return what to answer to a proposal that was agreed to."""
    own = record.own.snapshot
    return AgreedTerms(own.version, own.standing.clock, record.units, is_new)


def has_diverged(own: Lease) -> bool:
    """Tell whether nobody would take this snapshot."""
    return own.snapshot.is_finite is False or own.snapshot.standing.loss == math.inf
