"""The end of training: the messages about it, the peers to wait for, and the final agreement.

A node that has taken its last step announces this, and continues in rounds. It publishes its
parameters, and reads those of every peer that has also taken its last step. The weights are such
that the result is the plain mean of all these nodes. (If gradients are averaged, it is the mean of
the nodes with the most steps, which are equal anyway.) The node publishes the mean after all others
have read its last snapshot. If all nodes arrive at the same time, each has the exact mean after one
round. If some arrive later, die, or stop, the rounds continue until all nodes agree.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

SILENT_AFTER_S = 10.0  # nodes do not wait for a peer that is silent for so long
IDLE_AFTER_S = 60.0  # nodes do not wait for a peer that is alive, but takes no step for so long
AGREEMENT = 1e-5  # distance between two nodes, relative to the length of the parameters
MAX_APART = 1e-2  # the same for nodes that have reached their mean in bfloat16, the coarsest dtype
STILL_FALLS = 0.9  # a distance falls if it is below this share of the distance when it last fell
ALONE = "finished together with no other node"
MAX_NAMED = 3  # maximum number of tensors of each peer in the line of a report
MAX_PEERS_READ = 16  # maximum number of peers in one round; of more, some are picked at random
FLAT_ROUNDS = 3  # after this many rounds without a fall, the distances will not fall any more


@dataclass(frozen=True)
class Ending:
    """A message of a node about the end of its training."""

    updates: int = 0  # number of training steps of the node
    round_number: int = 0  # 0 while it trains; then the round of its newest snapshot
    among: int = 0  # a number for the nodes of that round; 0 if it does not matter which they are
    has_read: int = 0  # the last round in which it has read the snapshots of all others
    agrees: bool = False  # whether it is as near to the others as it can get
    values: bytes = b""  # digest of the values that it published for that round
    is_over: bool = False  # whether it averages no more, and only serves its snapshot

    @property
    def is_finishing(self) -> bool:
        return self.round_number > 0


@dataclass(frozen=True)
class FinishReport:
    """The result of `finish`.

    Attributes:
        took_part: names of the peers that have the same parameters at the end, as far as this node
            knows. A peer that ended or was lost during the rounds is in `missed`.
        missed: the other peers, by name, with the reasons.
        rounds: number of times that the parameters were averaged.
        distance_before: consensus distance in the first round, which is the root mean square of the
            distances to the peers that were read. `None` if no peer was read.
        distance_after: consensus distance in the last round.
        waited_s: seconds in which other nodes still trained, or had not sent anything yet.
        averaged_s: seconds from then to the end.
        differing: names of tensors that are not averaged, such as frozen parameters, and that
            differ from those of a peer that took part, by the peer's name.
        diverged: description of this node's values that are not finite at the end, or "".
        is_apart: whether most peers still had different parameters after rounds of averaging.
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
        """Description of a problem at the end of the training, or "" if there is none."""
        if self.diverged:
            return self.diverged
        if self.is_apart:
            distance = f"the consensus distance is {self.distance_after:.3g}"
            return f"the nodes have not converged after {self.rounds} rounds, because {distance}"
        is_alone = self.missed and not self.took_part
        return f"{ALONE}{self._missed_in_words}" if is_alone else ""

    @property
    def _missed_in_words(self) -> str:
        told = ", ".join(f"{name} ({why})" for name, why in self.missed.items())
        return f". Missing peers: {told}" if told else ""

    def __str__(self) -> str:
        with_whom = ", ".join(self.took_part) or "no other node"
        text = f"finished together with {with_whom}"
        if self.diverged:
            text += f". Problem: {self.diverged}"
        elif self.distance_before is not None and self.distance_after is not None:
            distances = f"from {self.distance_before:.3g} to {self.distance_after:.3g}"
            rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
            text += f". The consensus distance went {distances} in {rounds}"
            text += ", but the nodes have not converged" * self.is_apart
        for names, peers in self._differing_in_words().items():
            text += f". Not averaged, and different on this node and {', '.join(peers)}: {names}"
        text += self._missed_in_words
        return f"{text}. Waited {self.waited_s:.1f} s, then averaged for {self.averaged_s:.1f} s"

    def _differing_in_words(self) -> dict[str, list[str]]:
        """Return the peers in `differing`, grouped by a text that names their differing tensors."""
        found: dict[str, list[str]] = {}
        for peer, names in self.differing.items():
            words = ", ".join(names[:MAX_NAMED])
            more = len(names) - MAX_NAMED
            found.setdefault(f"{words} and {more} more" if more > 0 else words, []).append(peer)
        return found


@dataclass(frozen=True)
class Heard:
    """A peer's last `Ending` message, the message's time, and the time of the peer's last step."""

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
        """Return whether the peer is not finishing, and has taken no step for `IDLE_AFTER_S`."""
        return not self.ending.is_finishing and now - self.progressed_at >= IDLE_AFTER_S


@dataclass(frozen=True)
class Agreement:
    """Whether the final rounds have converged: distances to peers are near 0, or fall no more.

    >>> agreement = Agreement()
    >>> for distance in (1.0, 0.3, 0.1, 0.1, 0.1):
    ...     agreement = agreement.measured([distance], length=10.0)
    >>> agreement.is_reached
    False
    >>> agreement.measured([0.1], length=10.0).is_reached
    True
    """

    reference: float = math.inf  # the distance when it last fell
    flat_rounds: int = 0
    is_equal: bool = False
    is_apart: bool = False  # after the first round, which should have made all nodes equal

    @property
    def is_reached(self) -> bool:
        return self.is_equal or self.flat_rounds >= FLAT_ROUNDS

    def measured(self, distances: Sequence[float], length: float) -> Agreement:
        """Return the agreement after a round, given distances to peers and the parameters' norm.

        A minority of nodes may stay apart, because `robust: clip` limits how far they are merged.
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
