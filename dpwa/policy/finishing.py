"""The end of a training: the nodes' messages about it, the peers to wait for, the agreement.

A node that has taken its last training step announces it, and continues in rounds. It publishes its
parameters, and reads those of every peer that has ended too, each with the weight that makes the
result their plain mean. (If gradients are averaged, it is the mean of those with the most steps,
which are equal anyway.) It publishes the mean when all others have read its last snapshot. If all
arrive at the same time, each has the exact mean after one round. If some arrive later, die, or
stand still, the rounds continue until all agree.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

SILENT_AFTER_S = 10.0  # a peer that answers nothing for so long is not waited for
IDLE_AFTER_S = 60.0  # nor is one that lives, but trains no more
AGREEMENT = 1e-5  # distance between two nodes, relative to the length of the parameters
MAX_APART = 1e-2  # the same, of nodes that have reached their mean in the coarsest dtype, bfloat16
STILL_FALLS = (
    0.9  # a distance that is a greater part of what it was when it fell last does not fall
)
ALONE = "finished together with nobody"
MAX_NAMED = 3  # tensors of each peer, in the one line of a report
MAX_PEERS_READ = 16  # peers in one round; of more, some are drawn
FLAT_ROUNDS = 3  # after so many that do not fall, they will not


@dataclass(frozen=True)
class Ending:
    """A node's message about the end of its training."""

    updates: int = 0  # training steps that it has taken
    round_number: int = 0  # 0 while it trains; then the round that its newest snapshot belongs to
    among: int = 0  # the nodes of that round, as a number; 0 if it is no matter who they are
    has_read: int = 0  # the last round in which it has read the snapshots of all others
    agrees: bool = False  # or is as near to the others as it gets
    values: bytes = b""  # digest of what it has published for that round
    is_over: bool = False  # it averages no more, and only serves what it has

    @property
    def is_finishing(self) -> bool:
        return self.round_number > 0


@dataclass(frozen=True)
class FinishReport:
    """The result of `finish`.

    Attributes:
        took_part: names of the peers that have the same parameters at the end, as far as this node
            knows. A peer that stopped or was lost during the rounds is in `missed`.
        missed: the other peers, by name, with the reasons.
        rounds: how many times the parameters were averaged.
        distance_before: consensus distance in the first round, which is the root mean square of the
            distances to the peers, as they were read. `None` if no peer was read.
        distance_after: the same in the last round.
        waited_s: seconds in which others still trained, or had sent nothing yet.
        averaged_s: seconds from then to the end.
        differing: names of the tensors of the state that are not averaged, such as frozen
            parameters, and differ from those of a peer that took part, by the peer's name.
        diverged: description of this node's values that are not finite at the end, or "".
        is_apart: whether most peers still had other parameters after rounds of averaging.
    """

    took_part: tuple[str, ...]
    missed: Mapping[str, str]
    rounds: int
    distance_before: float | None
    distance_after: float | None
    waited_s: float
    averaged_s: float
    differing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    diverged: str = ""
    is_apart: bool = False

    @property
    def problem(self) -> str:
        """Why the training has ended badly, or "" if it has not."""
        if self.diverged:
            return self.diverged
        if self.is_apart:
            distance = f"consensus distance {self.distance_after:.3g}"
            return f"the nodes are still apart after {self.rounds} rounds: {distance}"
        is_alone = self.missed and not self.took_part
        return f"{ALONE}{self._missed_in_words}" if is_alone else ""

    @property
    def _missed_in_words(self) -> str:
        told = ", ".join(f"{name} ({why})" for name, why in self.missed.items())
        return f"; without {told}" if told else ""

    def __str__(self) -> str:
        with_whom = ", ".join(self.took_part) or "nobody"
        text = f"finished together with {with_whom}"
        if self.diverged:
            text += f", but not well: {self.diverged}"
        elif self.distance_before is not None and self.distance_after is not None:
            distances = f"{self.distance_before:.3g} to {self.distance_after:.3g}"
            rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
            text += f": consensus distance {distances} in {rounds}"
            text += ", but the nodes are still apart" * self.is_apart
        for names, peers in self._differing_in_words().items():
            text += f"; not averaged, and not the same as of {', '.join(peers)}: {names}"
        text += self._missed_in_words
        return f"{text}; waited {self.waited_s:.1f} s, averaged {self.averaged_s:.1f} s"

    def _differing_in_words(self) -> dict[str, list[str]]:
        """Return the peers of which the same tensors differ, by these in words."""
        found: dict[str, list[str]] = {}
        for peer, names in self.differing.items():
            words = ", ".join(names[:MAX_NAMED])
            more = len(names) - MAX_NAMED
            found.setdefault(f"{words} and {more} more" if more > 0 else words, []).append(peer)
        return found


@dataclass(frozen=True)
class Heard:
    """The last message of a peer about its end, when it arrived, and when the peer last trained."""

    ending: Ending
    at: float
    progressed_at: float

    @classmethod
    def after(cls, before: Heard | None, ending: Ending, now: float) -> Heard:
        stood = before is not None and before.ending.updates == ending.updates
        return cls(ending, now, before.progressed_at if before and stood else now)

    def is_silent(self, now: float) -> bool:
        return now - self.at >= SILENT_AFTER_S

    def is_idle(self, now: float) -> bool:
        """Tell whether it has neither trained nor ended for too long."""
        return not self.ending.is_finishing and now - self.progressed_at >= IDLE_AFTER_S


@dataclass(frozen=True)
class Agreement:
    """Whether the distance to the others is nothing, or falls no more.

    >>> agreement = Agreement()
    >>> for distance in (1.0, 0.3, 0.1, 0.1, 0.1):
    ...     agreement = agreement.measured([distance], length=10.0)
    >>> agreement.is_reached
    False
    >>> agreement.measured([0.1], length=10.0).is_reached
    True
    """

    reference: float = math.inf  # the distance when it fell last
    flat_rounds: int = 0
    is_equal: bool = False
    is_apart: bool = False  # after a first round, which should have made all equal

    @property
    def is_reached(self) -> bool:
        return self.is_equal or self.flat_rounds >= FLAT_ROUNDS

    def measured(self, distances: Sequence[float], length: float) -> Agreement:
        """Take the distances of a round, and the length of the parameters.

        A minority may stay apart: `robust: clip` holds such peers back.
        """
        distance, is_first = max(distances), math.isinf(self.reference)
        falls = distance < STILL_FALLS * self.reference
        return Agreement(
            reference=distance if falls else self.reference,
            flat_rounds=0 if falls else self.flat_rounds + 1,
            is_equal=distance <= AGREEMENT * length,
            is_apart=not is_first and median_low(distances) > MAX_APART * length,
        )


def digest_of(names: Sequence[str]) -> int:
    if len(names) > MAX_PEERS_READ + 1:
        return 0
    return zlib.crc32("\n".join(sorted(names)).encode()) | 1
