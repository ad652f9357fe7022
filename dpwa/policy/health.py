"""What a fetch can come to, and what that says about the peer.

A fetch ends in exactly one `Outcome`. A peer's `Health` is the last thing its outcomes have shown;
it only decides what is logged (each change once) and shown; whom to ask is for flow control.
"""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """How one fetch from one peer ended."""

    FETCHED = "fetched"
    NOT_READY = "not_ready"
    NOTHING_NEW = "nothing_new"  # since what was merged of it last
    TIMED_OUT = "timed_out"
    LOST = "lost"
    UNREACHABLE = "unreachable"
    OTHER_VERSION = "other_version"
    OTHER_MODEL = "other_model"
    OTHER_ALGORITHM = "other_algorithm"
    BUSY = "busy"
    MISBEHAVED = "misbehaved"
    DIVERGED = "diverged"
    NOT_MAPPED = "not_mapped"
    BEHIND = "behind"


class Health(Enum):
    """What a node knows of a peer."""

    UNKNOWN = "unknown"
    ALIVE = "alive"
    GONE = "gone"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    OTHER_VERSION = "other_version"
    OTHER_MODEL = "other_model"
    OTHER_ALGORITHM = "other_algorithm"
    MISBEHAVING = "misbehaving"
    DIVERGED = "diverged"
    NOT_MAPPED = "not_mapped"
    BEHIND = "behind"


_HEALTH_AFTER = {
    Outcome.FETCHED: Health.ALIVE,
    Outcome.NOT_READY: Health.ALIVE,
    Outcome.NOTHING_NEW: Health.ALIVE,
    Outcome.TIMED_OUT: Health.SILENT,
    Outcome.LOST: Health.UNREACHABLE,
    Outcome.UNREACHABLE: Health.UNREACHABLE,
    Outcome.OTHER_VERSION: Health.OTHER_VERSION,
    Outcome.OTHER_MODEL: Health.OTHER_MODEL,
    Outcome.OTHER_ALGORITHM: Health.OTHER_ALGORITHM,
    Outcome.BUSY: Health.ALIVE,
    Outcome.MISBEHAVED: Health.MISBEHAVING,
    Outcome.DIVERGED: Health.DIVERGED,
    Outcome.NOT_MAPPED: Health.NOT_MAPPED,
    Outcome.BEHIND: Health.BEHIND,
}


def health_after(outcome: Outcome, before: Health, *, is_starting: bool) -> Health:
    """Return what a peer's health is after this outcome.

    A peer that nobody has reached yet is not called unreachable while the run `is_starting`. One
    that has ended on purpose stays gone, whatever was still under way, until it is connected anew.
    """
    if before is Health.GONE:
        return Health.GONE
    after = _HEALTH_AFTER[outcome]
    is_expected = before is Health.UNKNOWN and is_starting
    return before if after is Health.UNREACHABLE and is_expected else after


def is_failure(outcome: Outcome) -> bool:
    """Tell whether flow control counts this outcome like a timeout.

    A peer that is not ready, in another transaction, or still at the beginning has done nothing
    wrong. One that is not there was not even asked, and costs no time: when it is back, it counts
    as before.
    """
    return outcome not in (
        Outcome.FETCHED,
        Outcome.NOT_READY,
        Outcome.NOTHING_NEW,
        Outcome.BUSY,
        Outcome.BEHIND,
        Outcome.UNREACHABLE,
    )
