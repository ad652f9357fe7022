"""Which nodes are started again, and when.

After its k-th restart a node that fails waits min(LONGEST_S, FIRST_S * 2**k) seconds: long enough
for what it needs to come back, and a node that fails at once does not fill the screen.

>>> [Restarts(9).pause_s(earlier) for earlier in range(7)]
[1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

FIRST_S = 1.0
LONGEST_S = 30.0


@dataclass(frozen=True)
class Restart:
    """A node that has failed is started again.

    Attributes:
        node: its name.
        code: exit code of its process; negative is a signal.
        number: which restart of this node it is, from 1.
        most: restarts that each node has.
        pause_s: seconds until then.
    """

    node: str
    code: int
    number: int
    most: int
    pause_s: float


class Restarts:
    """Counts the restarts of nodes, and knows who is due. Times are in seconds on any clock.

    Args:
        most: restarts that each node has.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._due: dict[str, float] = {}

    @property
    def waiting(self) -> Collection[str]:
        """The nodes that are to be started."""
        return self._due.keys()

    def after(self, node: str, code: int, now: float) -> Restart | None:
        """Plan the restart of a node that has ended; `None` if it is not to be started again."""
        earlier = self._counts[node]
        if code == 0 or earlier >= self._most:
            return None
        self._counts[node] += 1
        pause_s = self.pause_s(earlier)
        self._due[node] = now + pause_s
        return Restart(node, code, earlier + 1, self._most, pause_s)

    def due(self, now: float) -> list[str]:
        """Return the nodes whose pause is over; each is returned once."""
        found = [node for node, at in self._due.items() if at <= now]
        for node in found:
            del self._due[node]
        return found

    def give_up(self) -> None:
        """Start nobody again from now on."""
        self._most = 0
        self._due.clear()

    def pause_s(self, earlier: int) -> float:
        """Return how long a node waits that was started again so many times before."""
        return min(LONGEST_S, FIRST_S * 2.0 ** min(earlier, 10))
