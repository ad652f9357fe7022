"""Repeats: which snapshots of peers a node has merged, so that it need not merge them again.

A peer that trains ten times slower publishes once while others update ten times. Whoever merges
each time what it has published last is drawn to the same point again and again, by
1 - (1 - f)^10 in all: the slower the peer, the more it weighs. With `repeat: skip` a version
counts once, as each update of a peer does in the analysis of asynchronous gossip (X. Lian et al.,
Asynchronous Decentralized Parallel Stochastic Gradient Descent, 2018).

A peer that has taken its last training step is no slow one: it publishes nothing new, and all that
it has learnt is in its last version. That is merged again and again, so that whoever trains on does
not end with a model of its own data alone. It says so together with the version, and counts as such
until there is a newer one.

>>> merged = MergedVersions()
>>> merged.add("w2", 7, WHOLE)
>>> merged.of("w2", WHOLE), merged.of("w3", WHOLE)
(7, 0)
"""

from __future__ import annotations

from dpwa.wire.shards import WHOLE, Shard


class MergedVersions:
    """The version of each peer that was merged last, and which shards of it.

    One thread adds; any may call the other methods.
    """

    def __init__(self) -> None:
        self._merged: dict[str, tuple[int, frozenset[Shard]]] = {}
        self._last: dict[str, int] = {}  # of those who train no more, as they say

    def add(self, peer: str, version: int, shard: Shard) -> None:
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

    def forget(self, peer: str) -> None:
        self.begins_anew(peer)
        self.trains(peer)

    def of(self, peer: str, shard: Shard) -> int:
        """Return the version of which this shard is not wanted again; 0: there is none."""
        version, shards = self._merged.get(peer, (0, frozenset[Shard]()))
        if version <= self._last.get(peer, -1):
            return 0
        return version if shard in shards or WHOLE in shards else 0
