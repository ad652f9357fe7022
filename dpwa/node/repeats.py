"""MergedVersions: the snapshots of peers that a node has merged, and need not merge again.

A peer that trains ten times slower publishes once while others update ten times. A node that merges
its last snapshot each time is pulled to the same point repeatedly, by 1 - (1 - f)^10 in all. So a
slower peer has more weight. With `repeat: skip` a version counts once, like each update of a peer
in the analysis of asynchronous gossip (X. Lian et al., Asynchronous Decentralized Parallel
Stochastic Gradient Descent, 2018).

A peer that has taken its last training step is not slow. It publishes nothing new, and its last
version contains all that it has learned. This version is merged repeatedly, so that nodes that
still train do not end with a model of their own data alone. The peer reports this with the version,
and it holds until there is a newer version.

>>> merged = MergedVersions()
>>> merged.record_merge("w2", 7, WHOLE)
>>> merged.merged_version("w2", WHOLE), merged.merged_version("w3", WHOLE)
(7, 0)
"""

from __future__ import annotations

from dpwa.wire.shards import WHOLE, Shard


class MergedVersions:
    """The last merged version of each peer, and its merged shards.

    One thread adds. Any thread may call the other methods.
    """

    def __init__(self) -> None:
        self._merged: dict[str, tuple[int, frozenset[Shard]]] = {}
        self._last: dict[str, int] = {}  # of those who train no more, as they say

    def record_merge(self, peer: str, version: int, shard: Shard) -> None:
        """Versions are whole numbers from 1 on."""
        before, shards = self._merged.get(peer, (0, frozenset[Shard]()))
        self._merged[peer] = (version, (shards if version == before else frozenset()) | {shard})

    def trains(self, peer: str) -> None:
        self._last.pop(peer, None)

    def ends(self, peer: str, version: int) -> None:
        """Note that a peer says its training ended before this version."""
        self._last[peer] = version

    def begins_anew(self, peer: str) -> None:
        """Note that a peer may have been started again, and count from 1."""
        self._merged.pop(peer, None)

    def forget_peer(self, peer: str) -> None:
        self.begins_anew(peer)
        self.trains(peer)

    def merged_version(self, peer: str, shard: Shard) -> int:
        """Return the version of which this shard is not wanted again, or 0 if there is none."""
        version, shards = self._merged.get(peer, (0, frozenset[Shard]()))
        if version <= self._last.get(peer, -1):
            return 0
        return version if shard in shards or WHOLE in shards else 0
