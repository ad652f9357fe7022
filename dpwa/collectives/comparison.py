"""Comparison checks in each step that nodes in sync still have the same state."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

EVERY_STEPS = 100  # steps within which all of the state is compared
AGAIN_STEPS = 3 * EVERY_STEPS  # steps after which a difference does not count as repeated
DIGEST_BYTES = 8
MAX_TIMES = 3  # differences after which nodes are made equal only every `EVERY_STEPS`

Sample = Mapping[str, int]  # digests by name of tensor


class History(NamedTuple):
    """The counts of compared steps and of differences. They are equal on all nodes in sync."""

    turn: int = 0  # number of steps; a node that arrives later continues the others' count
    times: int = 0  # number of repeated differences
    differed: int = 0  # the turn of the last difference


class Comparison:
    """Compares this node's state with the states of other nodes.

    A node that arrives later continues with the history of the others, so that all compare the same
    part in the same step, and make the same decision.

    Args:
        sample: returns digests of a part of the state by its number, such as those of some tensors.
            `EVERY_STEPS` consecutive numbers cover the whole state.
    """

    def __init__(self, sample: Callable[[int], Sample]) -> None:
        self._sample = sample
        self._compared: Sample = {}
        self.history = History()
        self.differs = False  # whether nodes differ in this step

    @property
    def is_often(self) -> bool:
        """Whether the states of nodes have differed repeatedly, `MAX_TIMES` times or more."""
        return self.history.times >= MAX_TIMES

    def sample_state(self) -> None:
        """Compute the digests of the state to compare, between two steps.

        During a step, a training loop may change the state briefly, such as by adding noise to
        weights.
        """
        turn, _, differed = self.history
        is_due = not self.is_often or turn - differed >= EVERY_STEPS
        self._compared = self._sample(turn) if is_due else {}

    def digest(self) -> bytes:
        """Return the digest to compare with other nodes, or b"" if this step compares nothing."""
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
        """Return the compared digests if nodes differed in this step, else an empty mapping."""
        return self._compared if self.differs else {}

    def made_equal(self, history: History) -> None:
        self.history, self.differs = history, False


class Difference(NamedTuple):
    """The names of the tensors that differ between nodes, and the nodes in the minority."""

    tensors: list[str]
    odd: list[str]  # all nodes if no state has a majority


def difference(samples: Mapping[str, Sample]) -> Difference | None:
    """Return the difference between the nodes' digests, or `None` if they are equal."""
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
