"""Comparison checks, step by step, that nodes which should have the same state have it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

EVERY_STEPS = 100  # all of the state is compared within so many
AGAIN_STEPS = 3 * EVERY_STEPS  # after which a difference is not taken for the same again
DIGEST_BYTES = 8
MAX_TIMES = 3  # that nodes differ before they are made equal every so many steps only

Sample = Mapping[str, int]  # digests by name of tensor


class History(NamedTuple):
    """Since when nodes compare, and how they differed. It is the same on all nodes in sync."""

    turn: int = 0  # in which step, counted on by those who come later
    times: int = 0  # one after the other
    differed: int = 0  # the turn at the last of these times


class Comparison:
    """Compares the state of this node with the state of others.

    A node that arrives later continues with the history of the others, so that all compare the same
    part in the same step, and decide alike.

    Args:
        sample: returns digests of a part of the state by its number, such as those of some tensors.
            `EVERY_STEPS` consecutive numbers cover the whole state.
    """

    def __init__(self, sample: Callable[[int], Sample]) -> None:
        self._sample = sample
        self._compared: Sample = {}
        self.history = History()
        self.differs = False  # in this step, from others

    @property
    def is_often(self) -> bool:
        """Whether nodes have differed again and again."""
        return self.history.times >= MAX_TIMES

    def sample_state(self) -> None:
        """Look at the state between two steps.

        In a step a loop may change it for a while, such as for a pass at weights with noise.
        """
        turn, _, differed = self.history
        is_due = not self.is_often or turn - differed >= EVERY_STEPS
        self._compared = self._sample(turn) if is_due else {}

    def digest(self) -> bytes:
        """Return the digest that the others must have, too. Empty if this step compares nothing."""
        if not self._compared:
            return b""
        return hashlib.blake2b(repr(self._compared).encode(), digest_size=DIGEST_BYTES).digest()

    def note_difference(self) -> None:
        turn, times, differed = self.history
        is_again = turn - differed < AGAIN_STEPS
        self.history = History(turn, times + 1 if is_again else 1, turn)
        self.differs = True

    def stepped(self) -> None:
        self.history = self.history._replace(turn=self.history.turn + 1)

    def told(self) -> Sample:
        """Return the compared digests if nodes differed in this step, else nothing."""
        return self._compared if self.differs else {}

    def made_equal(self, history: History) -> None:
        self.history, self.differs = history, False


class Difference(NamedTuple):
    """The tensors in which nodes differ, and the nodes that are in the minority."""

    tensors: list[str]
    odd: list[str]  # all of them if no state is that of most


def difference(samples: Mapping[str, Sample]) -> Difference | None:
    """Return how the samples of nodes differ, or `None` if they do not."""
    found = {name: sample for name, sample in samples.items() if sample}
    names = dict.fromkeys(name for sample in found.values() for name in sample)
    tensors = [name for name in names if len({s.get(name) for s in found.values()}) > 1]
    if not tensors:
        return None
    (usual, most), *_ = Counter(map(_key, found.values())).most_common(1)
    is_most = 2 * most > len(found)
    odd = [name for name, sample in found.items() if not is_most or _key(sample) != usual]
    return Difference(tensors, odd)


def _key(sample: Sample) -> tuple[tuple[str, int], ...]:
    return tuple(sample.items())
