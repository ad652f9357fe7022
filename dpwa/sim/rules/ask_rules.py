"""What of a peer's snapshot is wanted, by the settings and the algorithm."""

from __future__ import annotations

from dpwa.algorithms import Algorithm, Ask, Terms
from dpwa.config import Config
from dpwa.sim.rules.arrays import part_of
from dpwa.sim.rules.participant import WHOLE, ArraySnapshot, Participant
from dpwa.sim.rules.peer_book import PeerBook
from dpwa.wire.shards import WHOLE as WHOLE_SHARD
from dpwa.wire.shards import Shard


def shard_of(part: slice) -> Shard:
    """Return what a node calls this part of the parameters: one piece for each of them."""
    return WHOLE_SHARD if part == WHOLE else Shard(1, part.start, part.stop - part.start)


class AskRules:
    """As `dpwa.node.fetch_targets` has it.

    Args:
        config: of the run.
        kind: the algorithm.
    """

    def __init__(self, config: Config, kind: type[Algorithm]) -> None:
        default = "merge" if kind.repeats else "skip"
        self._repeats = (config.repeat or default) == "merge"
        self._is_cut = config.fraction < 1.0 and not kind.needs_whole and not kind.keeps
        self._fraction = config.fraction

    def part(self, node: Participant, ask: Ask) -> slice:
        """Return which parameters a node fetches in this round."""
        if not self._is_cut or ask.terms is not Terms.PULL:
            return WHOLE
        return part_of(self._fraction, node.updates - 1, len(node.x))

    def is_known(
        self, book: PeerBook, peer: str, snapshot: ArraySnapshot, ask: Ask, part: slice
    ) -> bool:
        """Tell whether this part of a snapshot was merged before, and is not wanted again."""
        if self._repeats or ask.terms is not Terms.PULL:
            return False
        return book.merged.of(peer, shard_of(part)) == snapshot.version
