"""Which settings all nodes must have alike. The metadata `Unlike` of their fields says so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

from dpwa.algorithms import algorithm
from dpwa.config.methods import KINDS, method
from dpwa.config.model import Config
from dpwa.types import Unlike

MAX_SHOWN = 200  # characters of a value


def unlike(setting: str, option: str = "") -> Unlike:
    """Return what follows if nodes differ in a setting, or in an option below it.

    An option of a method is like the setting that selects the method, unless it says otherwise.
    """
    found = method(setting) if option else None
    fields = Config.model_fields if found is None else found.options.model_fields
    metadata = fields[setting if found is None else option].metadata
    default = Unlike.ALLOWED if found is None else unlike(found.kind)
    return next((each for each in metadata if isinstance(each, Unlike)), default)


def compared(config: Config) -> dict[str, str]:
    """Return the values of the settings in use that all nodes must have alike, as short texts."""
    return {".".join(path): _shown(value) for path, value in _compared(config)}


def differences(own: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, Unlike]:
    """Return in words how a peer's settings differ, and what follows of each difference.

    Settings that one of both does not have are left out: an option of another method, or a
    setting of another version.
    """
    return {
        f"{name} is {value} here, {theirs[name]} there": unlike(*name.split(".", 1))
        for name, value in own.items()
        if theirs.get(name, value) != value
    }


def _compared(config: Config) -> Iterator[tuple[tuple[str, ...], object]]:
    values = config.to_mapping()
    values["nodes"] = ", ".join(
        node.name + (f" (group {node.group})" if node.group else "") for node in config.nodes
    )
    averages = algorithm(config.algorithm).averages_gradients
    for name in Config.model_fields:
        rule = unlike(name)
        is_open = name == "nodes" and config.is_open
        if rule is not Unlike.ALLOWED and not is_open and (averages or rule is not Unlike.WARNS_IF_AVERAGED):
            yield (name,), values[name]
    for kind in KINDS:
        name = values[kind.setting]
        for option, value in values.get(name, {}).items():
            if unlike(name, option) is not Unlike.ALLOWED:
                yield (name, option), value


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... (digest {digest})"
