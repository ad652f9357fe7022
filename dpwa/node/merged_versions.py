"""MergedVersions records each peer's last merged version, so a node merges each version only once.

Assume that a peer publishes once while other nodes update ten times. A node that merges the peer's
last snapshot each time is pulled to the same point repeatedly, by 1 - (1 - f)^10 in all. So a
slower peer would have more weight. With `repeat: skip`, a node merges each version once, like each
update of a peer in the analysis of asynchronous gossip (X. Lian et al., Asynchronous Decentralized
Parallel Stochastic Gradient Descent, 2018).

A peer that has taken its last training step is not slow. Nodes that still train merge this version
repeatedly, so that they do not end with a model of their own data alone. The peer marks this
version as its last one, and the mark holds until the peer publishes a newer version.

>>> merged = MergedVersions()
>>> merged.record_merge("w2", 7, WHOLE)
>>> merged.merged_version("w2", WHOLE), merged.merged_version("w3", WHOLE)
(7, 0)
"""

from __future__ import annotations

from dpwa.wire.shards import WHOLE, Shard


class MergedVersions:
    """The last merged version of each peer, and its merged shards.

    One thread records merges. Any thread may call the other methods.
    """

    def __init__(self) -> None:
        self._merged: dict[str, tuple[int, frozenset[Shard]]] = {}
        self._last: dict[str, int] = {}  # the last version of each peer that trains no more

    def record_merge(self, peer: str, version: int, shard: Shard) -> None:
        """Record a merge of a shard. Versions are whole numbers from 1 on."""
        before, shards = self._merged.get(peer, (0, frozenset[Shard]()))
        self._merged[peer] = (version, (shards if version == before else frozenset()) | {shard})

    def trains(self, peer: str) -> None:
        self._last.pop(peer, None)

    def ends(self, peer: str, version: int) -> None:
        """Record the version that a peer published after the end of the peer's training."""
        self._last[peer] = version

    def begins_anew(self, peer: str) -> None:
        """Forget a peer's merged version, because a restarted peer counts versions from 1 again."""
        self._merged.pop(peer, None)

    def forget_peer(self, peer: str) -> None:
        self.begins_anew(peer)
        self.trains(peer)

    def merged_version(self, peer: str, shard: Shard) -> int:
        """Return the version of a peer's snapshot whose `shard` must not be merged again, or 0."""
        version, shards = self._merged.get(peer, (0, frozenset[Shard]()))
        if version <= self._last.get(peer, -1):
            return 0
        return version if shard in shards or WHOLE in shards else 0
