"""Where a process looks for its cluster, in order: the first that knows it is taken."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpwa.config import Config, load_config
from dpwa.config.load import ConfigSource, settings_in
from dpwa.config.schema import PATHS
from dpwa.discovery.launcher import Environ, Launcher
from dpwa.discovery.ray import Ray
from dpwa.discovery.skypilot import SkyPilot
from dpwa.discovery.slurm import Slurm
from dpwa.discovery.torchrun import Torchrun
from dpwa.errors import UserError

LAUNCHERS: Sequence[Launcher] = (Torchrun(), Ray(), Slurm(), SkyPilot())
FILE = "dpwa.yaml"
_CLUSTER = frozenset({"nodes", "join"})  # settings that say where peers are


@dataclass(frozen=True)
class Look:
    """One place that was looked at.

    Attributes:
        place: what was looked for.
        found: what is there, in words.
        knows: whether it says which node this is, and where its peers are.
    """

    place: str
    found: str
    knows: bool = False


@dataclass(frozen=True)
class Discovery:
    """Where a process finds its cluster and its settings.

    Attributes:
        looks: the places that were looked at, in order.
        source: of the settings; `None` for the defaults.
        cluster: what says who is there, if not the arguments or a launcher; it may be the source.
        name: of the node; `None` as long as a launcher has to tell.
        launcher: knows the cluster; `None`: the settings do.
    """

    looks: tuple[Look, ...]
    source: ConfigSource | None
    name: str | None
    launcher: Launcher | None = None
    cluster: ConfigSource | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the cluster is known."""
        return any(look.knows for look in self.looks)

    def lines(self) -> list[str]:
        """Say where was looked, and what was found: a line for each place."""
        return [f"{look.place}: {look.found}" for look in self.looks]


def find(
    config: ConfigSource | None,
    name: str | None,
    overrides: Mapping[str, Any],
    environ: Environ,
    folder: Path,
) -> Discovery:
    """Look for the cluster of this process; nobody is asked yet, and nothing is awaited.

    Settings come from `config`, else from the file of DPWA_CONFIG, else from `dpwa.yaml` in the
    folder. The first of these that lists `nodes`, or has `join`, says who is there, and the node
    needs a name, too. If none does, a launcher has to tell.

    Args:
        config: what the user has passed, if anything.
        name: likewise.
        overrides: settings that the user has passed by name.
        environ: the environment.
        folder: the working folder.

    Raises:
        ConfigError: a file cannot be read.
    """
    own = name or environ.get("DPWA_NAME", "").strip() or None
    looks: list[Look] = []
    source: ConfigSource | None = None
    if _CLUSTER & set(overrides):
        looks.append(Look("arguments nodes= and join=", _used(own), knows=own is not None))
    is_decided = bool(looks)  # what the user has passed goes before all that is found
    cluster: ConfigSource | None = None
    for place, candidate in _sources(config, environ, folder):
        if candidate is None:
            looks.append(Look(place, "not there"))
            continue
        if is_decided or not _CLUSTER & settings_in(candidate):
            looks.append(Look(place, "not used" if source is not None else "used for its settings"))
        else:
            looks.append(Look(place, _used(own), knows=own is not None))
            if own is None and candidate is not config:
                continue  # nobody has said that this file is meant
            is_decided, cluster = True, candidate
        source = candidate if source is None else source
    if is_decided:
        return Discovery(tuple(looks), source, own, cluster=cluster)
    for launcher in LAUNCHERS:
        place = launcher.name
        if launcher.variables:
            place += f" ({', '.join(launcher.variables)})"
        what = launcher.told(environ)
        looks.append(Look(place, what or "not there", knows=bool(what)))
        if what:
            return Discovery(tuple(looks), source, own, launcher)
    return Discovery(tuple(looks), source, own)


def from_folder(folder: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the paths that they have taken relative to a folder.

    Those of a file are relative to that file, which `dpwa launch -n` has made in a folder of its
    own.
    """
    found = dict(overrides)
    for setting, *option in PATHS:
        value = found.get(setting)
        if not option and value and isinstance(value, (str, os.PathLike)):
            found[setting] = str(folder / value)
        elif option and isinstance(value, Mapping) and value.get(option[0]):
            found[setting] = {**value, option[0]: str(folder / value[option[0]])}
    return found


def load(
    discovery: Discovery, overrides: Mapping[str, Any], environ: Environ
) -> tuple[str, Config]:
    """Return the name of this node and its configuration; a launcher may have to wait for others.

    Raises:
        UserError: the cluster is not known, or the others do not come.
        ConfigError: the configuration has mistakes.
    """
    if not discovery.is_complete:
        looked = "\n".join(f"  {line}" for line in discovery.lines())
        raise UserError(
            "which node this is, and where its peers are, is not known. Pass config= and name=, or "
            f"start it with `dpwa launch -n 4 -- python SCRIPT` or torchrun. Looked for:\n{looked}"
        )
    source = {} if discovery.source is None else discovery.source
    if discovery.launcher is None:
        beneath = None if discovery.cluster is source else discovery.cluster
        loaded = load_config(source, beneath=beneath, overrides=overrides, environ=environ)
        return str(discovery.name), loaded
    cluster = discovery.launcher.cluster(environ, discovery.name)
    known = {**overrides, **cluster.settings}
    return cluster.name, load_config(source, overrides=known, environ=environ)


def _used(name: str | None) -> str:
    if name is None:
        return "says who is there, but neither name= nor DPWA_NAME says which node this is"
    return f"used, for node {name}"


def _sources(
    config: ConfigSource | None, environ: Environ, folder: Path
) -> list[tuple[str, ConfigSource | None]]:
    variable = environ.get("DPWA_CONFIG", "").strip()
    file = folder / FILE
    return [
        ("argument config=", config),
        ("DPWA_CONFIG (dpwa launch)", variable or None),
        (f"{FILE} in {folder}", file if file.is_file() else None),
    ]
