"""NodeContext: the objects that the parts of a node share, except its threads."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpwa.algorithms import Terms, algorithm
from dpwa.algorithms.base import follows_leaders
from dpwa.config import Config
from dpwa.data.snapshot import SnapshotPool
from dpwa.node.assembly import shared_memory_of
from dpwa.node.leader_table import LeaderTable
from dpwa.node.peers import PeerTable
from dpwa.node.serving.upload import Upload
from dpwa.node.settings import Settings
from dpwa.runtime import Runtime
from dpwa.wire import limits
from dpwa.wire.fetching import Greeting
from dpwa.wire.fields import News

if TYPE_CHECKING:
    from dpwa.node.transactions.manager import TransactionManager

FEWEST_KNOWN = 64  # for nodes that may join later
KNOWN_PER_NODE = 4  # a limit, so that untrusted peers cannot add reports without end


@dataclass(frozen=True)
class NodeContext:
    """The shared objects of one node."""

    name: str
    config: Config
    seed: int
    runtime: Runtime
    peer_table: PeerTable
    leader_table: LeaderTable
    follows_leaders: bool  # whether nodes send each other news of the leader
    pool: SnapshotPool
    transactions: TransactionManager | None  # `None`: the algorithm has no transactions
    upload: Upload  # the rate at which this node sends payloads
    settings: Settings  # settings that must be equal on all nodes

    @classmethod
    def from_config(cls, name: str, config: Config, seed: int, runtime: Runtime) -> NodeContext:
        """Create a node's context. Raises `UserError` if required shared memory is unavailable."""
        group = config.group_of(name)
        chance = random.Random(f"{seed}/{name}/news")
        leader_table = LeaderTable(
            name,
            group,
            config.loss_window,
            config.leader_silence_s,
            FEWEST_KNOWN + KNOWN_PER_NODE * most_nodes(config),
            runtime,
            chance,
        )
        pool = SnapshotPool(runtime, longest_s(config), config.slots, shared_memory_of(config))
        peer_table = PeerTable(name, runtime, random.Random(f"{seed}/{name}/rests"))
        return cls(
            name,
            config,
            seed,
            runtime,
            peer_table,
            leader_table,
            follows_leaders(config.algorithm, config.interpolation),
            pool,
            _transactions_of(name, config, pool, runtime),
            Upload(config.max_upload_mbps, runtime),
            Settings(name, config),
        )

    def rng(self, purpose: str) -> random.Random:
        """Return a separate random generator for each purpose."""
        return random.Random(f"{self.seed}/{self.name}/{purpose}")

    def greeting(self) -> Greeting:
        return Greeting(self.name, self.select_news())

    def select_news(self) -> News:
        """Return the loss reports to forward, or () if the configuration needs no leader."""
        return self.leader_table.select_news() if self.follows_leaders else ()

    def receive_news(self, news: News, sender: str = "") -> None:
        """Receive loss reports. `sender` is the name of a peer that answered this node, or ""."""
        if self.follows_leaders:
            self.leader_table.receive_news(news, sender)

    def forget_peer(self, peer: str) -> None:
        """End the transactions with a peer, and forget the peer's loss."""
        if self.transactions is not None:
            self.transactions.forget_peer(peer)
        self.leader_table.forget_node(peer)

    def close(self) -> None:
        if self.transactions is not None:
            self.transactions.close()
        self.pool.close()


def _transactions_of(
    name: str, config: Config, pool: SnapshotPool, runtime: Runtime
) -> TransactionManager | None:
    terms = algorithm(config.algorithm).terms
    if terms is Terms.PULL:
        return None
    from dpwa.node.transactions.manager import TransactionManager

    return TransactionManager(name, terms, pool, runtime, longest_s(config))


def longest_s(config: Config) -> float:
    """Return the maximum time in seconds to serve a snapshot, even if the peer requests more."""
    return 2 * config.timeout_ms / 1000


def most_nodes(config: Config) -> int:
    """Return the maximum number of nodes at once, including nodes that may still join."""
    return limits.MAX_MEMBERS if config.is_open else len(config.nodes)
