"""The parts of a node that depend on the configuration."""

from __future__ import annotations

from dpwa.algorithms import Algorithm, algorithm
from dpwa.config import Config
from dpwa.config.graphs import topology_of
from dpwa.data.codecs import Codec, codec
from dpwa.data.shared_memory import SharedMemory
from dpwa.errors import UserError
from dpwa.message_codes import get_log
from dpwa.node.fetching.peer_channel import ChannelSettings
from dpwa.node.neighbours import Neighbours
from dpwa.policy.advice import Plan, advice
from dpwa.transport.addresses import is_elsewhere, is_of_this_machine
from dpwa.transport.authorizer import Authorizer, CurveAuthorizer
from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import KeyFolder

log = get_log("dpwa.node")


def codec_of(config: Config, name: str) -> Codec:
    """Make a codec, as the configuration has it; each belongs to one thread."""
    return codec(name, keep=config.topk.keep) if name == "topk" else codec(name)


def algorithm_of(config: Config) -> Algorithm:
    """Make the algorithm of a configuration; its state belongs to one node."""
    return algorithm(config.algorithm)(config.options_of(config.algorithm))


def neighbours_of(config: Config, own: str) -> Neighbours:
    """Return the neighbours of a node in the topology of a configuration.

    Raises:
        UserError: the file of a topology cannot be read, or does not fit the nodes.
    """
    names = [node.name for node in config.nodes]
    options = config.options_of(config.topology)
    found = topology_of(config.topology, options, names)
    neighbours = Neighbours(found, options, own, names)
    neighbours.among([name for name in names if name != own], round_number=0)
    return neighbours


def advice_on(config: Config) -> list[str]:
    """Return what whoever starts a node should know of its configuration, a sentence each."""
    names = [node.name for node in config.nodes]
    options = config.options_of(config.topology)
    plan = Plan(
        algorithm=config.algorithm,
        algorithm_options=config.options_of(config.algorithm),
        interpolation=config.interpolation,
        interpolation_options=config.options_of(config.interpolation),
        topology=topology_of(config.topology, options, names),
        topology_options=options,
        names=names,
        group_of=[node.group or "" for node in config.nodes],
        fetch_probability=config.fetch_probability,
        loss_window=config.loss_window,
    )
    return advice(plan)


def channel_settings(config: Config, own_name: str, peer: str) -> ChannelSettings:
    """Return how a node fetches from a peer."""
    # Its modules are imported now, and not by the thread that answers when the peer asks.
    codec_of(config, config.codec_for(server=own_name, reader=peer))
    return ChannelSettings(
        codec=codec_of(config, config.codec_for(server=peer, reader=own_name)),
        plain=codec_of(config, "none"),
        may_map=config.transport != "tcp",
        may_stream=config.transport != "shm",
    )


def authorizer_of(config: Config, name: str) -> Authorizer:
    """Return the authorizer of a node.

    Raises:
        UserError: there is no CURVE or no key of the node, or others can read or write its files.
    """
    if config.security == "none":
        return Authorizer()
    return CurveAuthorizer(name, Keyring(KeyFolder(config.keys), name, config.allow))


def warn_if_open(config: Config, name: str, endpoint: str) -> None:
    """Say so, once for a node, when whoever reaches it may do what it likes."""
    if config.security == "none" and not is_of_this_machine(endpoint):
        log.warning(
            "%s: whoever can connect to %s may read and change what is trained here: set "
            "`security: curve`, unless the network is your own",
            name,
            endpoint,
        )


def warn_if_hidden(config: Config, name: str, endpoint: str) -> None:
    """Say so when there are nodes on other machines, and this one listens on loopback unasked."""
    node = next((node for node in config.nodes if node.name == name), None)
    if node is None or node.endpoint or node.bind or not is_of_this_machine(endpoint):
        return
    others = (peer.host for peer in config.peers_of(name) if not peer.endpoint)
    far = next((host for host in others if host != node.host and is_elsewhere(host)), None)
    if far is not None:
        log.warning(
            "%s: listens on %s, where no node on %s or any other machine can connect, as %s is "
            'this machine itself here (see /etc/hosts): set `bind: "*"` for it',
            name,
            endpoint,
            far,
            node.host,
        )


def shared_memory_of(config: Config) -> SharedMemory | None:
    """Return shared memory for a node's snapshots, if it is wanted and there is any.

    Raises:
        UserError: there is none, and nothing else is wanted.
    """
    if config.transport == "tcp":
        return None
    try:
        return SharedMemory()
    except OSError as error:
        problem = f"shared memory cannot be used ({error})"
        if config.transport == "shm":
            raise UserError(f"{problem}, which `transport: shm` needs") from None
        log.warning("%s: snapshots can only be streamed", problem)
        return None
