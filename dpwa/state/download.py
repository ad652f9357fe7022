"""Download: which pieces of a state are asked of whom. Decisions only; time is an argument.

Each donor takes the next missing piece whenever it has room, so fast ones bring more than slow
ones. What is under way with a donor that is lost, or stalls, is missing again; what has come is
kept. When nothing is missing any more, who has nothing to do is asked for the piece that has been
under way for longest: a donor that is stopped holds up the rest for a moment only (the "end game"
of BitTorrent, Cohen 2003).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

WINDOW = 4  # pieces under way with each donor: keeps the wire full
STALL_S = 5.0  # without a piece, although some are under way
DOUBLED_AFTER_S = 0.5  # a piece that is the last to come is asked of another donor, too
LOST_AFTER_S = 0.5  # without a connection: before, it may be on its way to be made
MOST_CORRUPT = 3  # pieces from one donor


@dataclass
class _DonorQueue:
    """What is asked of one donor."""

    moved: float  # when something came last, or was first asked for
    asked: dict[int, float] = field(default_factory=dict)  # pieces under way, and since when
    corrupt: set[int] = field(default_factory=set)  # pieces that it did not bring well
    brought: int = 0


class Download:
    """The pieces of one image.

    Args:
        count: how many there are.
        window: how many are under way with each donor at once.
    """

    def __init__(self, count: int, window: int = WINDOW) -> None:
        self._missing = deque(range(count))
        self._left = set(range(count))
        self._window = window
        self._lanes: dict[str, _DonorQueue] = {}
        self.brought: dict[str, int] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all pieces are there."""
        return not self._left

    @property
    def donors(self) -> tuple[str, ...]:
        """Who is asked for pieces."""
        return tuple(self._lanes)

    def add(self, donor: str, now: float) -> None:
        """Ask a donor, too."""
        self._lanes.setdefault(donor, _DonorQueue(now))

    def remove(self, donor: str) -> None:
        """Ask a donor no more; what was under way with it only is missing again."""
        lane = self._lanes.pop(donor, None)
        if lane is not None:
            self._miss(lane.asked)

    def disconnected(self, donor: str, now: float) -> None:
        """Take note that there is no connection to a donor: what was asked will not come."""
        asked = self._lanes[donor].asked
        lost = [index for index, since in asked.items() if now - since >= LOST_AFTER_S]
        for index in lost:
            del asked[index]
        self._miss(lost)

    def stalled(self, now: float, stall_s: float = STALL_S) -> list[str]:
        """Return the donors that have not brought anything for long, although they were asked."""
        return [
            donor
            for donor, lane in self._lanes.items()
            if lane.asked and now - lane.moved >= stall_s
        ]

    def requests(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield who is to be asked for which piece now; each counts as under way from here on."""
        is_moving = True
        while is_moving:
            is_moving = False
            for donor, lane in self._lanes.items():
                index = self._next_for(donor, now)
                if index is not None:
                    if not lane.asked:
                        lane.moved = now
                    lane.asked[index] = now
                    is_moving = True
                    yield donor, index

    def arrived(self, donor: str, index: int, now: float) -> bool:
        """Take note of a sound piece; return whether it was still wanted."""
        lane = self._lanes.get(donor)
        if lane is not None:
            lane.asked.pop(index, None)
            lane.moved = now
        if index not in self._left:
            return False
        self._left.discard(index)
        self.brought[donor] = self.brought.get(donor, 0) + 1
        return True

    def corrupted(self, donor: str, index: int) -> bool:
        """Take note of a piece that is not what was sent; return whether to give up its donor."""
        lane = self._lanes.get(donor)
        if lane is None:
            return False
        lane.asked.pop(index, None)
        lane.corrupt.add(index)
        self._miss([index])
        return len(lane.corrupt) >= MOST_CORRUPT

    def _miss(self, indices: list[int] | dict[int, float]) -> None:
        elsewhere = {index for lane in self._lanes.values() for index in lane.asked}
        known = elsewhere.union(self._missing)
        self._missing.extendleft(i for i in indices if i in self._left and i not in known)

    def _next_for(self, donor: str, now: float) -> int | None:
        lane = self._lanes[donor]
        if len(lane.asked) >= self._window:
            return None
        is_alone = len(self._lanes) == 1
        while self._missing and self._missing[0] not in self._left:
            self._missing.popleft()  # it came late, from a donor that had been given up
        for index in self._missing:
            if index in self._left and (is_alone or index not in lane.corrupt):
                self._missing.remove(index)
                return index
        return None if self._missing or lane.asked else self._oldest_elsewhere(donor, now)

    def _oldest_elsewhere(self, donor: str, now: float) -> int | None:
        since = {
            index: asked
            for other, lane in self._lanes.items()
            for index, asked in lane.asked.items()
            if other != donor and now - asked >= DOUBLED_AFTER_S and index in self._left
        }
        return min(since, key=since.__getitem__, default=None)
