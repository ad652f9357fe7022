"""Beginners: whose parameters are so little trained that to average them would undo training.

An average with factor f keeps 1-f of what a node has learnt; that pays only if the peer has learnt
something, too. In the demonstration (four nodes with private classes) one merge with a late
starter, 98 updates behind, took a node from an accuracy of .73 to .19. So, at both ends of a merge:

    a training with clock b is far behind one with clock a  if
        b < 1000   and   b < a/2   and   a - b >= 10

Whoever is far behind a peer takes its parameters in full (factor 1), and the clock with them; and a
peer that is far behind is not merged.

The clock is interpolated at each merge like the parameters, so it says how much training is in
them, whoever did it. A node that is ten times slower and merges with factor f lags by about
10(1-f)/f updates, however long the run; one that has never merged lags by all that it missed.

Nobody is left out for ever: of two nodes at most one is far behind; nodes that all are at the
beginning are within ten updates of each other, or catch up by their next merge; and nobody is a
beginner after 1000 updates, or half as many as the others.

A peer may lie about its clock, and one lie would take over everybody. So a clock that is ten
updates ahead or more counts as the others bear it out, by what each has said of itself within the
last minute (`doubt_of`):

- some other peer is near it: it is true;
- it has grown faster than updates can be made, or past what any training comes to: it cannot be;
- all others are far behind it, and one of them has ten updates of training to lose: it is
  contradicted. It is merged, but its clock counts as ten updates above theirs at the most, so that
  liars raise clocks no faster than updates do; and nobody takes it over;
- no other has said anything: nobody knows. Who would take it over asks others first.

With one peer only, it is believed if it can be.

Source: late joiners take over the state of those who train in Hivemind (Ryabinin et al., 2020) and
torchft's live recovery; the bounds are dpwa's own.
"""

from __future__ import annotations

import math
import operator
import struct
import zlib
from collections.abc import Sequence
from enum import Enum

from dpwa.types import MAX_CLOCK, TRACE_BYTES

BEGINNING = 1000.0  # updates, after which no training counts as a beginning
SHARE = 0.5  # of the clock of who is ahead
LEAD = 10.0  # updates: to lose fewer costs less than to wait

MAX_UPDATES_PER_S = 1e6  # updates: Python makes no two calls in a microsecond
MAX_BELIEVED_CLOCK = MAX_CLOCK / 2  # whoever takes that over still counts every update

SAME_BATCHES = (
    "%s: trains on the same batches as %s: expected other data on each node, such as by "
    "torch.manual_seed(gossip.seed()) after dpwa.connect, or dpwa.dataset.shard [DPWA-W100]"
)

TRACE_VALUES = 16
_NO_STEP = bytes(4)
_TRACE = struct.Struct(f"<{TRACE_VALUES}f{len(_NO_STEP)}s")
_UNRELATED = 0.5  # distance relative to length: of independent draws it is about 1.4


def is_far_behind(clock: float, ahead: float) -> bool:
    """Tell whether a training at `clock` is to take over one at `ahead`, and not to be averaged."""
    return clock < BEGINNING and clock < SHARE * ahead and ahead - clock >= LEAD


class Doubt(Enum):
    """Whether the clock that a peer tells is to be believed."""

    NONE = "none"
    UNCONFIRMED = "unconfirmed"
    CONTRADICTED = "contradicted"
    IMPOSSIBLE = "impossible"


def bears_out(clock: float, ahead: float) -> bool:
    """Tell whether a training at `clock` shows that another one may have come to `ahead`."""
    return clock >= SHARE * ahead or ahead - clock < LEAD


def can_have_grown(before: float, after: float, elapsed_s: float) -> bool:
    """Tell whether updates can have brought a clock from `before` to `after` in so many seconds."""
    return after - before < LEAD + MAX_UPDATES_PER_S * elapsed_s


def doubt_of(
    clock: float, own: float, best: float | None, before: float, elapsed_s: float
) -> Doubt:
    """Judge the clock that a peer tells to a node whose own is `own`.

    `best` is the highest that other peers told lately of their own, `before` what this one told
    `elapsed_s` ago (infinite: never).
    """
    if clock - own < LEAD:
        return Doubt.NONE
    if clock > MAX_BELIEVED_CLOCK:
        return Doubt.IMPOSSIBLE
    if best is not None and bears_out(best, clock):
        return Doubt.NONE
    if not can_have_grown(max(own, before), clock, elapsed_s):
        return Doubt.IMPOSSIBLE
    if best is None:
        return Doubt.UNCONFIRMED
    return Doubt.NONE if best < LEAD else Doubt.CONTRADICTED


def most_borne_out(own: float, best: float) -> float:
    """Return the highest clock that counts for a node whose peers have come to `best`."""
    return max(own, best + LEAD)


def trace_of(values: Sequence[float]) -> bytes:
    """Return `TRACE_VALUES` of the parameters a training began with; empty if they tell nothing."""
    if not any(values) or not all(math.isfinite(value) for value in values):
        return b""
    try:
        return _TRACE.pack(*values, _NO_STEP)
    except OverflowError:
        return b""


def with_first_step(trace: bytes, loss: float, values: Sequence[float]) -> bytes:
    """Return a trace with a digest of the first step: its loss, and the same values after it.

    The trace is unchanged if it has one, or if few of the values have changed: then steps on other
    data may come to the same, such as where only a head of zeros is trained at first.
    """
    if len(trace) != TRACE_BYTES:
        return trace
    *before, told = _TRACE.unpack(trace)
    after = trace_of(values)[: -len(_NO_STEP)]
    changed = sum(map(operator.ne, before, struct.unpack(f"<{len(after) // 4}f", after)))
    if told != _NO_STEP or changed < TRACE_VALUES // 2:
        return trace
    return _TRACE.pack(*before, zlib.crc32(struct.pack("<d", loss) + after).to_bytes(4, "little"))


def stepped_alike(one: bytes, two: bytes) -> bool:
    """Tell whether the first steps of two trainings were the same, by their traces."""
    return len(one) == len(two) == TRACE_BYTES and one == two and not one.endswith(_NO_STEP)


def began_apart(one: bytes, two: bytes) -> bool:
    """Tell whether two trainings began with unrelated parameters, by their traces.

    What differs in rounding or by a few training steps is related. An empty trace tells nothing.
    """
    if (
        one[: -len(_NO_STEP)] == two[: -len(_NO_STEP)]
        or len(one) != TRACE_BYTES
        or len(two) != TRACE_BYTES
    ):
        return False
    (*ours, _), (*theirs, _) = _TRACE.unpack(one), _TRACE.unpack(two)
    distance = math.dist(ours, theirs)
    return distance > _UNRELATED * max(math.hypot(*ours), math.hypot(*theirs))
