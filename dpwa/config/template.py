"""A new configuration as people like to find it: every setting, with what it does."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import yaml

from dpwa.config.model import Config
from dpwa.config.nodes import NodeConfig
from dpwa.config.schema import setting_names
from dpwa.types import StrictModel

_HEADER = """\
# Configuration of a dpwa run; every node reads the same file.
# `dpwa config check FILE` finds mistakes, docs/configuration.md explains every key.

"""


def config_text(nodes: Sequence[NodeConfig]) -> str:
    """Return the commented YAML of a new run with these nodes, in the modern form.

    All settings have their defaults, except for `merge: delta`, which new runs should use.
    """
    config = Config(nodes=tuple(nodes), merge="delta")
    values = config.to_mapping()
    parts = [_HEADER, _comment(_description(Config, "nodes")) + "nodes:\n"]
    parts += [f"  - {_flow(node.to_mapping())}\n" for node in config.nodes]
    for key in setting_names()[1:]:
        parts.append(f"\n{_comment(_description(Config, key))}{key}: {_flow(values[key])}\n")
    rule = config.interpolation
    parts.append(
        f"\n# options of the rule {rule}; 0 = its defaults\n{rule}: {_flow(values[rule])}\n"
    )
    return "".join(parts)


def local_nodes(ports: Sequence[int], host: str = "localhost") -> tuple[NodeConfig, ...]:
    """Return nodes w1, w2, ... on one host, one for each port."""
    return tuple(
        NodeConfig(name=f"w{number}", host=host, port=port) for number, port in enumerate(ports, 1)
    )


def _description(model: type[StrictModel], key: str) -> str:
    return model.model_fields[key].description or ""


def _comment(text: str) -> str:
    return textwrap.fill(text, 92, initial_indent="# ", subsequent_indent="# ") + "\n"


def _flow(value: object) -> str:
    text: str = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=1000, allow_unicode=True
    )
    return text.removesuffix("...\n").strip()
