"""The parts of a node that depend on the configuration."""

from __future__ import annotations

import logging

from dpwa.config import Config
from dpwa.data.codecs import Codec, codec
from dpwa.data.shared_memory import SharedMemory
from dpwa.errors import UserError
from dpwa.node.peer_channel import ChannelSettings

log = logging.getLogger("dpwa.node")


def codec_of(config: Config, name: str) -> Codec:
    """Make a codec, as the configuration has it; each belongs to one thread."""
    return codec(name, keep=config.topk.keep) if name == "topk" else codec(name)


def channel_settings(config: Config, own_name: str, peer: str) -> ChannelSettings:
    """Return how a node fetches from a peer."""
    return ChannelSettings(
        codec=codec_of(config, config.codec_for(server=peer, reader=own_name)),
        plain=codec_of(config, "none"),
        may_map=config.transport != "tcp",
        may_stream=config.transport != "shm",
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
