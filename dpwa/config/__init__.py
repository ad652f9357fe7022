"""Turns YAML, mappings and environment variables into one frozen, typed configuration.

`load_config` reports every mistake at once, each with file, line and column.
"""

from __future__ import annotations

from dpwa.config.load import ConfigSource, load_config, peer_config
from dpwa.config.model import Config, NodeConfig

__all__ = ["Config", "ConfigSource", "NodeConfig", "load_config", "peer_config"]
