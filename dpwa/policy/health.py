"""The outcomes of fetches, and the health of a peer that follows from them.

A node logs each change of a peer's `Health` once, and shows the health in its report. Flow control
picks only peers that are not `ABSENT`.
"""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """The result of one fetch from one peer."""

    FETCHED = "fetched"
    NOT_READY = "not_ready"
    NOTHING_NEW = "nothing_new"  # since the version that was merged last
    TIMED_OUT = "timed_out"
    LOST = "lost"
    UNREACHABLE = "unreachable"
    OTHER_VERSION = "other_version"
    OTHER_MODEL = "other_model"
    OTHER_SETTINGS = "other_settings"
    BUSY = "busy"
    SUPERSEDED = "superseded"  # the promised version does not exist any more
    MISBEHAVED = "misbehaved"
    DIVERGED = "diverged"
    NOT_MAPPED = "not_mapped"
    BEHIND = "behind"
    MISTAKEN = "mistaken"  # a different node answered, or the peer refuses this node's name


class Health(Enum):
    """A node's estimate of the health of a peer."""

    UNKNOWN = "unknown"
    ALIVE = "alive"
    FINISHED = "finished"
    LEFT = "left"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    OTHER_VERSION = "other_version"
    OTHER_MODEL = "other_model"
    OTHER_SETTINGS = "other_settings"
    MISBEHAVING = "misbehaving"
    DIVERGED = "diverged"
    NOT_MAPPED = "not_mapped"
    BEHIND = "behind"
    MISTAKEN = "mistaken"


_HEALTH_AFTER = {
    Outcome.FETCHED: Health.ALIVE,
    Outcome.NOT_READY: Health.ALIVE,
    Outcome.NOTHING_NEW: Health.ALIVE,
    Outcome.TIMED_OUT: Health.SILENT,
    Outcome.LOST: Health.UNREACHABLE,
    Outcome.UNREACHABLE: Health.UNREACHABLE,
    Outcome.OTHER_VERSION: Health.OTHER_VERSION,
    Outcome.OTHER_MODEL: Health.OTHER_MODEL,
    Outcome.OTHER_SETTINGS: Health.OTHER_SETTINGS,
    Outcome.BUSY: Health.ALIVE,
    Outcome.SUPERSEDED: Health.ALIVE,
    Outcome.MISBEHAVED: Health.MISBEHAVING,
    Outcome.DIVERGED: Health.DIVERGED,
    Outcome.NOT_MAPPED: Health.NOT_MAPPED,
    Outcome.BEHIND: Health.BEHIND,
    Outcome.MISTAKEN: Health.MISTAKEN,
}

IN_WORDS = {
    Health.UNKNOWN: "is unknown",
    Health.ALIVE: "is alive",
    Health.FINISHED: "has finished",
    Health.LEFT: "has left",
    Health.SILENT: "does not answer in time",
    Health.UNREACHABLE: "cannot be reached",
    Health.OTHER_VERSION: "uses a different protocol version",
    Health.OTHER_MODEL: "has a different model",
    Health.OTHER_SETTINGS: "has different settings and is not merged",
    Health.MISBEHAVING: "breaks the protocol",
    Health.DIVERGED: "has diverged and is not merged",
    Health.NOT_MAPPED: "shares no memory, which `transport: shm` needs",
    Health.BEHIND: "has trained too little, and is not merged until it has caught up",
    Health.MISTAKEN: "is not connected, because names clash",
}

HAVE_ENDED = (Health.FINISHED, Health.LEFT)  # on purpose
# After these outcomes, this node has heard nothing from the peer.
UNHEARD = (Outcome.TIMED_OUT, Outcome.LOST, Outcome.UNREACHABLE, Outcome.MISTAKEN)
UNTIL_RECONNECTED = (
    *HAVE_ENDED,
    Health.OTHER_VERSION,
    Health.OTHER_SETTINGS,
    Health.MISTAKEN,
)
ABSENT = (Health.UNREACHABLE, *UNTIL_RECONNECTED)  # while there is no connection
RECONSIDERED_AFTER_S = 0.25  # because two nodes change their models at slightly different times
REFUSED = (  # because of the configuration of one of both nodes
    Health.OTHER_VERSION,
    Health.OTHER_SETTINGS,
    Health.MISTAKEN,
    Health.NOT_MAPPED,
    Health.OTHER_MODEL,
)


def health_after(outcome: Outcome, before: Health, *, is_starting: bool) -> Health:
    """Return the new health of a peer after the outcome of a fetch.

    While a run `is_starting`, a peer that was never reached is not called unreachable. A peer that
    has ended on purpose, or is refused, keeps that health until it is connected again. An outcome
    without a snapshot does not change the verdict on the peer's model.
    """
    is_of_model = outcome not in (Outcome.NOT_READY, Outcome.BUSY)
    if before in UNTIL_RECONNECTED or (before is Health.OTHER_MODEL and not is_of_model):
        return before
    after = _HEALTH_AFTER[outcome]
    is_expected = before is Health.UNKNOWN and is_starting
    return before if after is Health.UNREACHABLE and is_expected else after


def may_be_fit(health: Health, judged_ago_s: float) -> bool:
    """Return whether a peer may be merged, given its health and the health's age in seconds."""
    if health is Health.OTHER_MODEL:
        return judged_ago_s >= RECONSIDERED_AFTER_S
    return health not in UNTIL_RECONNECTED


def is_failure(outcome: Outcome) -> bool:
    """Return whether flow control counts this outcome as a failure, like a timeout.

    A peer that is not ready, in a different transaction, or still at the beginning has done nothing
    wrong. An absent peer was not asked, and costs no time.
    """
    return outcome not in (
        Outcome.FETCHED,
        Outcome.NOT_READY,
        Outcome.NOTHING_NEW,
        Outcome.BUSY,
        Outcome.BEHIND,
        Outcome.UNREACHABLE,
        Outcome.MISTAKEN,
    )
