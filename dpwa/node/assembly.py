"""Create the parts of a node that depend on the configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from dpwa.algorithms import Algorithm, algorithm
from dpwa.config import Config
from dpwa.config.graphs import topology_of
from dpwa.data.codecs import codec
from dpwa.data.shared_memory import SharedMemory
from dpwa.errors import UserError
from dpwa.node.fetching.peer_channel import ChannelSettings
from dpwa.policy.topology import Topology, neighbours_of, same_every_round
from dpwa.transport.authorizer import Authorizer
from dpwa.types import StrictModel

if TYPE_CHECKING:
    from dpwa.policy.clipping import ClipRadius
    from dpwa.policy.quarantine import Quarantine

log = logging.getLogger("dpwa.node")

WARM_UP = 15  # distances; among fewer, most may by chance come from one adversary of eight nodes


def algorithm_of(config: Config) -> Algorithm:
    return algorithm(config.algorithm)(config.options_of(config.algorithm))


def clip_of(config: Config) -> ClipRadius | None:
    """Return the radius that clips peers' parameters, or `None` if they are not clipped."""
    if config.robust == "none":
        return None
    from dpwa.policy.clipping import ClipRadius

    options: Any = config.options_of(config.robust)
    return ClipRadius(options.quantile, options.window, min(WARM_UP, options.window))


def quarantine_of(config: Config) -> Quarantine | None:
    """Return the `Quarantine` that excludes harmful peers, or `None` if quarantine is off."""
    if config.quarantine_s == 0.0:
        return None
    from dpwa.policy.quarantine import Quarantine

    return Quarantine(duration_s=config.quarantine_s)


def neighbours_in(config: Config, own: str) -> Neighbours:
    """Return a node's neighbours. Raises `UserError` if a topology is unreadable or unsuitable."""
    names = [node.name for node in config.nodes]
    options = config.options_of(config.topology)
    found = topology_of(config.topology, options, names)
    neighbours = Neighbours(found, options, own, names)
    neighbours.among([name for name in names if name != own], round_number=0)
    return neighbours


def channel_settings(config: Config, own_name: str) -> Callable[[str], ChannelSettings]:
    """Return a function that maps a peer's name to the settings for fetches from that peer."""
    # Import the codec's module now, so that the thread that answers peers does not import it later.
    codec(config.codecs_for("")(own_name))
    codec_from = config.codecs_for(own_name)

    @cache
    def settings(name: str) -> ChannelSettings:
        return ChannelSettings(
            codec=codec(name),
            plain=codec("none"),
            may_map=config.transport != "tcp",
            may_stream=config.transport != "shm",
        )

    return lambda peer: settings(codec_from(peer))


def authorizer_of(config: Config, name: str) -> Authorizer:
    """Return a peer authorizer. Raises `UserError` without CURVE, a key, or protected key files."""
    if config.security == "none":
        return Authorizer()
    from dpwa.transport.curve import CurveAuthorizer
    from dpwa.transport.keyring import Keyring
    from dpwa.transport.keys import KeyFolder

    return CurveAuthorizer(name, Keyring(KeyFolder(config.keys), name, config.allow))


def shared_memory_of(config: Config) -> SharedMemory | None:
    """Return shared memory for peers, or `None`. `transport: shm` raises `UserError` instead."""
    if config.transport == "tcp":
        return None
    try:
        return SharedMemory()
    except OSError as error:
        problem = f"shared memory cannot be used ({error})"
        if config.transport == "shm":
            raise UserError(f"{problem}. Set `transport: auto`, not `shm` [DPWA-E096]") from None
        log.warning("%s, so peers can only get snapshots as a stream [DPWA-W023]", problem)
        return None


class Neighbours:
    """The neighbours of one node.

    The position of a node is its position in the configuration. Nodes that joined at run time
    follow, sorted by name. So all nodes that see the same peers compute the same neighbours.
    """

    def __init__(
        self, topology: Topology, options: StrictModel, own: str, names: Sequence[str]
    ) -> None:
        self._topology = topology
        self._options = options
        self._own = own
        self._order = {name: position for position, name in enumerate(names)}
        self._peers: Collection[str] | None = None
        self._nodes: Sequence[str] = ()  # in order of their positions
        self.are_everybody = topology.name in ("random", "full")
        # whether neighbours change with the round, so that both nodes must be in the same round
        self.are_tagged = topology.period is not same_every_round

    def among(self, peers: Collection[str], round_number: int) -> Collection[str] | None:
        """Return the neighbours in a round, or `None` if all peers are neighbours."""
        if self.are_everybody:
            return None
        if peers != self._peers:  # peers seldom change, and there may be thousands
            last = len(self._order)
            nodes = sorted([self._own, *peers], key=lambda n: (self._order.get(n, last), n))
            self._peers, self._nodes = peers, nodes
        own, count = self._nodes.index(self._own), len(self._nodes)
        found = neighbours_of(self._topology, self._options, own, count, round_number)
        return [self._nodes[position] for position in found]
