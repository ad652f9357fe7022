"""Beginners: nodes with so little training that merging them would undo their peers' training.

An average with factor f keeps the share 1-f of a node's training. So it helps only if the peer has
trained, too. In the demo (four nodes with different classes), one merge with a node that started
late, 98 updates behind, reduced the accuracy of a node from .73 to .19. So both nodes check before
a merge:

    training with clock b is far behind training with clock a  if
        b < 1000   and   b < a/2   and   a - b >= 10

A node that is far behind a peer copies the peer's parameters (factor 1) and clock. A peer that is
far behind is not merged.

The clock is interpolated at each merge like the parameters. So it measures the training in the
parameters, whichever node did it. A node that is ten times slower and merges with factor f lags by
about 10(1-f)/f updates, however long the run is. A node that has never merged lags by all missed
updates.

No node is excluded forever. Of two nodes, at most one is far behind. Nodes that have just started
are within ten updates of each other, or catch up by their next merge. No node is a beginner after
1000 updates, or after half as many as the others.

A peer may lie about its clock, and one lie could replace the training of all nodes. So a clock that
is at least ten updates ahead counts only as far as the clocks that other peers sent in the last
minute confirm it (`doubt_of`):

- If the clock of some other peer is near it, the clock is believed.
- If it grew faster than a node can update, or is higher than any training, it is impossible.
- If all others are far behind it, and one of them has at least ten updates to lose, the clock is
  refuted. The peer is merged, but its clock counts as at most ten updates above the others, so that
  liars raise clocks no faster than updates do. No node copies the peer.
- If no other peer has sent a clock, it is unconfirmed. A node that would copy it asks others first.

If there is only one peer, its clock is believed if it is possible.

Source: late nodes adopt the state of training nodes in Hivemind (Ryabinin et al., 2020) and in the
live recovery of torchft. The limits are dpwa's own.
"""

from __future__ import annotations

import math
import operator
import struct
import zlib
from collections.abc import Sequence
from enum import Enum

from dpwa.types import MAX_CLOCK, TRACE_BYTES

BEGINNING = 1000.0  # number of updates after which no node is a beginner
SHARE = 0.5  # of the clock of the node that is ahead
LEAD = 10.0  # updates; to lose fewer updates costs less than to wait

MAX_UPDATES_PER_S = 1e6  # because Python makes no two calls within a microsecond
MAX_BELIEVED_CLOCK = MAX_CLOCK / 2  # a node that copies it can still count every update

SAME_BATCHES = (
    "%s: trains on the same batches as %s. Give each node different data, for example by "
    "torch.manual_seed(gossip.seed()) after dpwa.connect, or by dpwa.dataset.shard [DPWA-W100]"
)

TRACE_VALUES = 16
_NO_STEP = bytes(4)
_TRACE = struct.Struct(f"<{TRACE_VALUES}f{len(_NO_STEP)}s")
_UNRELATED = 0.5  # distance relative to length; between independent random values it is about 1.4


def is_far_behind(clock: float, ahead: float) -> bool:
    """Return whether clock `clock` is so far behind `ahead` that the node must copy the peer."""
    return clock < BEGINNING and clock < SHARE * ahead and ahead - clock >= LEAD


class Doubt(Enum):
    """The reason to distrust a peer's clock, or `NONE`."""

    NONE = "none"
    UNCONFIRMED = "unconfirmed"
    CONTRADICTED = "contradicted"
    IMPOSSIBLE = "impossible"


def bears_out(clock: float, ahead: float) -> bool:
    """Return whether a node's clock `clock` is near enough to confirm a peer's clock `ahead`."""
    return clock >= SHARE * ahead or ahead - clock < LEAD


def can_have_grown(before: float, after: float, elapsed_s: float) -> bool:
    """Return whether a clock can rise from `before` to `after` in `elapsed_s` seconds."""
    return after - before < LEAD + MAX_UPDATES_PER_S * elapsed_s


def doubt_of(
    clock: float, own: float, best: float | None, before: float, elapsed_s: float
) -> Doubt:
    """Return the reason to distrust the clock `clock` of a peer, or `Doubt.NONE`.

    `own` is this node's clock, and `best` is the highest recent clock of the other peers. `before`
    is the clock that this peer sent `elapsed_s` ago (infinite: never).
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
    """Return the highest clock to believe of a peer, if the other peers' highest is `best`."""
    return max(own, best + LEAD)


def trace_of(values: Sequence[float]) -> bytes:
    """Pack `TRACE_VALUES` initial parameters. b"": all are 0, or one is not a finite float32."""
    if not any(values) or not all(math.isfinite(value) for value in values):
        return b""
    try:
        return _TRACE.pack(*values, _NO_STEP)
    except OverflowError:
        return b""


def with_first_step(trace: bytes, loss: float, values: Sequence[float]) -> bytes:
    """Return `trace` with a digest of the first training step's `loss` and resulting `values`.

    The trace is unchanged if it has a digest already, or if few of the values changed. With few
    changes, steps on different data may have the same digest, e.g. if only a new head is trained.
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
    """Return whether the traces of two nodes show the same first training step."""
    return len(one) == len(two) == TRACE_BYTES and one == two and not one.endswith(_NO_STEP)


def began_apart(one: bytes, two: bytes) -> bool:
    """Tell from two traces whether two nodes started with unrelated parameters.

    Parameters that differ only by rounding or by a few training steps are related. An empty trace
    shows nothing.
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
