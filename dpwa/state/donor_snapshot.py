"""DonorSnapshots: copies of the state of the training, from which the RxThread serves joiners."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from dpwa.data.checksum import checksum
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.runtime import Runtime
from dpwa.state.image import State
from dpwa.types import TrainingProgress
from dpwa.wire import limits

HOLD_S = 10.0  # a copy that nobody asks for is given back
FRESH_S = 30.0  # a copy that is older is made anew for the next joiner
NEW_S = 2.0  # joiners that ask at about the same time share one copy in any case
FRESH = 0.95  # likewise for one whose clock is below so much of that of the node


@dataclass
class DonorSnapshot:
    """A copied state that joiners fetch.

    Attributes:
        token: by which they name it.
        state: what was copied.
        taken: when.
        asked: when somebody last asked for something of it.
        piece_bytes: of each piece but the last.
    """

    token: bytes
    state: State
    taken: float
    asked: float
    piece_bytes: int = limits.CHUNK_BYTES
    _checksums: dict[tuple[str, int], int] = field(default_factory=dict)

    def piece(self, part: str, index: int) -> tuple[ByteArray, int] | None:
        """Return a piece and its checksum; `None` if there is no such piece."""
        found = self.state.parts.get(part)
        start = index * self.piece_bytes
        if found is None or start >= found.image.nbytes:
            return None
        data = found.image[start : start + self.piece_bytes]
        key = part, index
        if key not in self._checksums:
            self._checksums[key] = checksum(data)
        return data, self._checksums[key]


class DonorSnapshots:
    """At most one copy of the state of this node; made only when it is wanted.

    Args:
        runtime: of the node.
        hold_s: how long a copy is kept that nobody asks for.
        piece_bytes: of each piece but the last.

    Attributes:
        is_wanted: whether the training thread is to make a copy at its next update.
        standing: how far this node is.
        kinds: what kind each part of its state is of.
        copies: how many were made.
    """

    def __init__(
        self, runtime: Runtime, hold_s: float = HOLD_S, piece_bytes: int = limits.CHUNK_BYTES
    ) -> None:
        self.is_wanted = False
        self.standing = TrainingProgress(clock=0.0)
        self.kinds: Mapping[str, Layout] = {}
        self.copies = 0
        self._clock = self._runtime = runtime
        self._hold_s = hold_s
        self._piece_bytes = piece_bytes
        self._lock = threading.RLock()
        self._copy: DonorSnapshot | None = None

    @property
    def held_bytes(self) -> int:
        """Size of the copy that is held."""
        copy = self._copy
        parts = () if copy is None else copy.state.parts.values()
        return sum(part.image.nbytes for part in parts)

    def put(self, state: State) -> None:
        """Lay a new copy there; joiners that fetch the one before must ask anew."""
        now = self._clock.now()
        with self._lock:
            self.is_wanted = False
            self.copies += 1
            token = self._runtime.token_bytes(limits.STATE_TOKEN_BYTES)
            self._copy = DonorSnapshot(token, state, now, now, self._piece_bytes)

    def current(self) -> DonorSnapshot | None:
        """Return the copy, if there is one."""
        with self._lock:
            if self._copy is not None:
                self._copy.asked = self._clock.now()
            return self._copy

    def want(self) -> None:
        """Have the training thread make a copy at its next update."""
        self.is_wanted = True

    def is_stale(self, copy: DonorSnapshot) -> bool:
        """Tell whether a copy is too old for joiners that begin now."""
        age_s = self._clock.now() - copy.taken
        is_behind = copy.state.clock < FRESH * self.standing.clock
        return age_s > FRESH_S or (is_behind and age_s > NEW_S)

    def expire(self) -> None:
        """Give a copy back that nobody has asked for in a while."""
        with self._lock:
            copy = self._copy
            if copy is not None and self._clock.now() - copy.asked > self._hold_s:
                self._copy = None

    def clear(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self.is_wanted, self._copy = False, None
