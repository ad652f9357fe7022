"""Compares settings that must be equal on all nodes. `Unlike` in a field marks such a setting."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

from dpwa.algorithms import algorithm
from dpwa.config.methods import KINDS, method
from dpwa.config.model import Config, NodeConfig
from dpwa.types import Unlike

MAX_SHOWN = 200  # characters of a value


def unlike(setting: str, option: str = "") -> Unlike:
    """Return the consequence if nodes have different values of a setting, or of a setting's option.

    Unless its field says otherwise, the consequence for an option is that of the setting above it,
    or of the setting that selects its method.
    """
    default, fields, name = Unlike.ALLOWED, Config.model_fields, setting
    if option and setting == "nodes":
        fields, name = NodeConfig.model_fields, option
    elif option and (found := method(setting)):
        default, fields, name = unlike(found.kind), found.options.model_fields, option
    return next((each for each in fields[name].metadata if isinstance(each, Unlike)), default)


def compared(config: Config) -> dict[str, str]:
    """Return the settings in use that must be equal on all nodes, with their values as text."""
    return {".".join(path): _shown(value) for path, value in _compared(config)}


def differences(own: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, Unlike]:
    """Return each difference between a peer's settings and this node's, with its consequence.

    Settings that only one of the two nodes has are left out, such as the option of a different
    method, or a setting of a different version.
    """
    return {
        f"{name} is {value} here, {theirs[name]} there": unlike(*name.rsplit(".", 1))
        for name, value in own.items()
        if theirs.get(name, value) != value
    }


def _compared(config: Config) -> Iterator[tuple[tuple[str, ...], object]]:
    values = config.model_copy(update={"nodes": ()}).to_mapping()  # thousands are possible
    groups = (f" (group {node.group})" if node.group else "" for node in config.nodes)
    values["nodes"] = ", ".join(
        n.name + group for n, group in zip(config.nodes, groups, strict=True)
    )
    averages = algorithm(config.algorithm).averages_gradients
    ignored = {Unlike.ALLOWED} if averages else {Unlike.ALLOWED, Unlike.WARNS_IF_AVERAGED}
    for name in Config.model_fields:
        is_known_to_all = name != "nodes" or not config.is_open
        if is_known_to_all and unlike(name) not in ignored:
            yield (name,), values[name]
    for kind in KINDS:
        method_name = values[kind.setting]
        for option, value in values.get(method_name, {}).items():
            if unlike(method_name, option) not in ignored:
                yield (method_name, option), value


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... (digest {digest})"
