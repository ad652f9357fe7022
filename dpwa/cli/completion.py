"""What shells are offered as values of options, read from the configuration on the same line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

MAX_FILE_BYTES = 1024 * 1024  # of a larger one nothing is offered: people wait for it


def node_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of nodes in the file of `-c`; to load all of it would take too long."""
    path = context.params.get("config")
    found = _names_in(str(path)) if path else []
    return [name for name in found if name.startswith(incomplete)]


def scenario_names(incomplete: str) -> list[str]:
    """Return what may stand after `dpwa sim`; files are the shell's own offer."""
    from dpwa.sim.load import preset_names

    return [name for name in (*preset_names(), "calibrate") if name.startswith(incomplete)]


def _names_in(path: str) -> list[str]:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123  (pathlib takes 10 ms to import)
            root = yaml.safe_load(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return []
    return [str(node["name"]) for node in _nodes(root) if isinstance(node, dict) and "name" in node]


def _nodes(root: Any) -> Iterator[Any]:
    """Yield what stands under `nodes`, in either form of a configuration."""
    for settings in root if isinstance(root, list) else [root]:
        listed = settings.get("nodes") if isinstance(settings, dict) else None
        yield from listed if isinstance(listed, list) else []
