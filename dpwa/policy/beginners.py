"""Beginners, whose parameters are so little trained that averaging them would undo training.

An average with factor f keeps 1-f of a node's training, which pays only if the peer has trained,
too. In the demonstration (four nodes with private classes) one merge with a late starter, 98
updates behind, reduced the accuracy of a node from .73 to .19. So, at both ends of a merge:

    a training with clock b is far behind one with clock a  if
        b < 1000   and   b < a/2   and   a - b >= 10

A node that is far behind a peer copies its parameters (factor 1), and its clock. A peer that is far
behind is not merged.

The clock is interpolated at each merge like the parameters, so it measures the training in them,
whichever node did it. A node that is ten times slower and merges with factor f lags by about
10(1-f)/f updates, however long the run. One that has never merged lags by all missed updates.

No node is left out forever. Of two nodes at most one is far behind. Nodes that are all at the
beginning are within ten updates of each other, or catch up by their next merge. No node is a
beginner after 1000 updates, or half as many as the others.

A peer may lie about its clock, and one lie would replace the training of all nodes. So a clock that
is at least ten updates ahead counts as far as the others confirm it, by their own clocks of the
last minute (`doubt_of`):

- If some other peer is near it, it is true.
- If it has grown faster than updates can be made, or above any training, it is impossible.
- If all others are far behind it, and one of them has ten updates of training to lose, it is
  refuted. It is merged, but its clock counts as at most ten updates above theirs, so that liars
  raise clocks no faster than updates do. No node copies it.
- If no other peer has sent a clock, it is unconfirmed. A node that would copy it asks others first.

With only one peer, it is believed if it is possible.

Source: late nodes adopt the state of training nodes in Hivemind (Ryabinin et al., 2020) and
torchft's live recovery. The bounds are dpwa's own.
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
    """Return whether a training at `clock` must copy one at `ahead` instead of averaging."""
    return clock < BEGINNING and clock < SHARE * ahead and ahead - clock >= LEAD


class Doubt(Enum):
    """Whether a peer's clock can be believed."""

    NONE = "none"
    UNCONFIRMED = "unconfirmed"
    CONTRADICTED = "contradicted"
    IMPOSSIBLE = "impossible"


def bears_out(clock: float, ahead: float) -> bool:
    """Return whether a training at `clock` confirms that another may have reached `ahead`."""
    return clock >= SHARE * ahead or ahead - clock < LEAD


def can_have_grown(before: float, after: float, elapsed_s: float) -> bool:
    """Return whether a clock can have grown from `before` to `after` in these seconds."""
    return after - before < LEAD + MAX_UPDATES_PER_S * elapsed_s


def doubt_of(
    clock: float, own: float, best: float | None, before: float, elapsed_s: float
) -> Doubt:
    """Judge the clock that a peer sends to a node whose own is `own`.

    `best` is the highest clock that other peers recently sent of their own, `before` the clock that
    this peer sent `elapsed_s` ago (infinite: never).
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
    """Return the maximum clock that counts for a node whose peers have reached `best`."""
    return max(own, best + LEAD)


def trace_of(values: Sequence[float]) -> bytes:
    """Return `TRACE_VALUES` of a training's first parameters, or b"" if they are all 0 or not
    finite.
    """
    if not any(values) or not all(math.isfinite(value) for value in values):
        return b""
    try:
        return _TRACE.pack(*values, _NO_STEP)
    except OverflowError:
        return b""


def with_first_step(trace: bytes, loss: float, values: Sequence[float]) -> bytes:
    """Return a trace with a digest of the first step: its loss, and the same values after it.

    The trace is unchanged if it has a digest, or if few of the values have changed. Then steps on
    other data may give the same digest, for example if only a head of zeros is trained at first.
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
    """Return whether two trainings began with unrelated parameters, by their traces.

    Parameters that differ by rounding or a few training steps are related. An empty trace shows
    nothing.
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
