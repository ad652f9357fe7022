"""What a node is made of, beside its threads: the parts that several of its objects share."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dpwa.algorithms import algorithm
from dpwa.clock import Clock
from dpwa.config import Config
from dpwa.data.snapshot import SnapshotPool
from dpwa.node.assembly import shared_memory_of
from dpwa.node.deal_desk import DealDesk
from dpwa.node.kept import KeptSnapshots
from dpwa.node.newsroom import Newsroom
from dpwa.node.peers import PeerBook
from dpwa.node.upload import Upload
from dpwa.wire import limits
from dpwa.wire.fetching import Greeting

FEWEST_KNOWN = 64  # nodes that may join later
KNOWN_PER_NODE = 4  # so that strangers cannot make the news grow for ever


@dataclass(frozen=True)
class Parts:
    """The parts of one node.

    Attributes:
        name, config, seed, clock: as given.
        book: its peers.
        newsroom: what it knows of losses and leaders.
        pool: its snapshots.
        kept: snapshots of others that it serves.
        desk: its deals.
        upload: how fast it sends payloads.
    """

    name: str
    config: Config
    seed: int
    clock: Clock
    book: PeerBook
    newsroom: Newsroom
    pool: SnapshotPool
    kept: KeptSnapshots
    desk: DealDesk
    upload: Upload

    @classmethod
    def of(cls, name: str, config: Config, seed: int, clock: Clock) -> Parts:
        """Make the parts of a node.

        Raises:
            UserError: the configuration needs shared memory, and there is none.
        """
        group = config.group_of(name)
        chance = random.Random(f"{seed}/{name}/news")
        newsroom = Newsroom(
            name,
            group,
            config.loss_window,
            config.leader_silence_s,
            FEWEST_KNOWN + KNOWN_PER_NODE * most_nodes(config),
            clock,
            chance,
        )
        pool = SnapshotPool(clock, longest_s(config), config.slots, shared_memory_of(config))
        terms = algorithm(config.algorithm).terms
        desk = DealDesk(name, terms, pool, clock, longest_s(config))
        book = PeerBook(name, clock, random.Random(f"{seed}/{name}/rests"))
        kept, upload = KeptSnapshots(), Upload(config.max_upload_mbps, clock)
        return cls(name, config, seed, clock, book, newsroom, pool, kept, desk, upload)

    def rng(self, purpose: str) -> random.Random:
        """Return randomness of its own for a purpose."""
        return random.Random(f"{self.seed}/{self.name}/{purpose}")

    def greeting(self) -> Greeting:
        """Return what requests say of this node."""
        return Greeting(self.name, self.config.algorithm, self.newsroom.news())

    def forget(self, peer: str) -> None:
        """End the deals with a peer, and what is known of its loss."""
        self.desk.gone(peer)
        self.newsroom.forget(peer)

    def close(self) -> None:
        """Let go of all memory."""
        self.desk.close()
        self.pool.close()


def longest_s(config: Config) -> float:
    """Return the most that serving a snapshot may take, whatever the peer asks."""
    return 2 * config.timeout_ms / 1000


def most_nodes(config: Config) -> int:
    """Return how many nodes there may be at once, with those that are still to join."""
    return limits.MAX_MEMBERS if config.is_open else len(config.nodes)
