"""`dpwa.connect` gossips a model, however its process was started.

It looks for the cluster in several places, in order, and uses the first place that names it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpwa.config import Config, load_config
from dpwa.config.load import ConfigSource, settings_in
from dpwa.config.schema import PATHS
from dpwa.discovery.launchers import Kubernetes, Launcher, Mpi, Ray, SkyPilot, Slurm, Torchrun
from dpwa.errors import UserError

if TYPE_CHECKING:
    import torch

    from dpwa.adapters.optimizer import Given, Schedulers
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter

LAUNCHERS: Sequence[Launcher] = (Torchrun(), Ray(), Mpi(), Slurm(), SkyPilot(), Kubernetes())
FILE = "dpwa.yaml"
_CLUSTER = frozenset({"nodes", "join"})  # settings with the addresses of peers


def connect(
    model: torch.nn.Module,
    optimizer: Given = None,
    *,
    scheduler: Schedulers = None,
    config: ConfigSource | None = None,
    name: str | None = None,
    **overrides: Any,
) -> DpwaPyTorchAdapter:
    """Create a `DpwaPyTorchAdapter` for a model, however this process was started.

        with dpwa.connect(model, optimizer) as gossip:
            for inputs, targets in batches:
                loss = train_step(inputs, targets)
                gossip.step(loss)
            gossip.finish()

    dpwa searches for the name of this node and the addresses of its peers in this order: the
    arguments, DPWA_CONFIG and DPWA_NAME (which `dpwa launch` sets), `dpwa.yaml` in the working
    folder with DPWA_NAME, torchrun, Ray, mpirun, SLURM, SkyPilot, and Kubernetes (an indexed job).
    It uses the first source that has both. See docs/launch.md, and `dpwa config show --where`. If
    `config` has neither `nodes` nor `join`, its other settings are used.

    In an interactive session (a notebook, or Python's prompt), where you may run a cell again, the
    earlier adapter of the same node is closed first. In a script, a second adapter is an error.

    Args:
        model: a `torch.nn.Module`.
        optimizer: the optimizer of the model, or a list of several. Its state is sent, saved and
            loaded together with the model's state.
        scheduler: the learning rate scheduler, or a list of several, with a `GradScaler` if you
            have one. Their states are treated like the optimizer's. Pass an empty list if you
            restore the schedulers yourself when the node adopts a state.
        config: a path to a YAML file, a mapping, or a `Config`.
        name: the name of this node.
        overrides: settings by name. They override those of `config` and of the environment:
            `dpwa.connect(model, algorithm="elastic", timeout_ms=2000)`.

    Raises:
        UserError: the node of this process is unknown (the message lists the searched places), or
            the other processes of the run do not arrive.
        ConfigError: the settings have mistakes.
        AddressError, NameTakenError, ParametersError: as for `DpwaPyTorchAdapter`.
    """
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.connection import close_former

    _require_no_import_by_worker()
    folder = Path.cwd()
    overrides = from_folder(folder, overrides)
    try:
        discovery = find(config, name, overrides, os.environ, folder)
        own_name, loaded = load(discovery, overrides, os.environ)
        if hasattr(sys, "ps1"):  # the prompt, which IPython and its kernels have, too
            loaded.require(own_name)
            close_former(own_name, loaded)
        return DpwaPyTorchAdapter(model, own_name, loaded, optimizer=optimizer, scheduler=scheduler)
    except UserError as error:
        # The message and the caller's line say enough, so the lines of dpwa are left out.
        raise error.with_traceback(None) from None


def _require_no_import_by_worker() -> None:
    # multiprocessing itself uses this to detect a script that starts processes at its import.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError(
            "a spawned worker process imports this script, and would start a second node. Put the "
            'statements of the script under `if __name__ == "__main__":` [DPWA-E037]'
        )


@dataclass(frozen=True)
class Look:
    """A place that was searched for this node's settings, and what was found there, as text."""

    place: str
    found: str
    knows: bool = False  # whether it says which node this is, and where the peers are


@dataclass(frozen=True)
class Discovery:
    """The places where a process finds its cluster and its settings."""

    looks: tuple[Look, ...]
    source: ConfigSource | None  # of the settings; `None`: the defaults
    name: str | None  # of the node; `None`: the launcher must know it
    launcher: Launcher | None = None  # the launcher that knows the cluster; `None`: the settings do
    cluster: ConfigSource | None = None  # names the nodes; it may be the same as `source`

    @property
    def is_complete(self) -> bool:
        return any(look.knows for look in self.looks)

    def lines(self) -> list[str]:
        return [f"{look.place}: {look.found}" for look in self.looks]


def find(
    config: ConfigSource | None,
    name: str | None,
    overrides: Mapping[str, Any],
    environ: Mapping[str, str],
    folder: Path,
) -> Discovery:
    """Search for the cluster of this process, without messages to other processes.

    Settings come from `config`, else from the file of DPWA_CONFIG, else from `dpwa.yaml` in the
    folder. The first of these with `nodes` or `join` is the cluster, if the node has a name, too.
    Otherwise, a launcher must know the cluster.
    """
    own = name or environ.get("DPWA_NAME", "").strip() or None
    looks: list[Look] = []
    source: ConfigSource | None = None
    if _CLUSTER & set(overrides):
        looks.append(Look("arguments nodes= and join=", _used(own), knows=own is not None))
    is_decided = bool(looks)  # because arguments precede everything that is found
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
                continue  # without a name, this file may not be meant
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
    """Return the settings in `overrides`, with relative paths resolved against `folder`."""
    found = dict(overrides)
    for setting, *option in PATHS:
        value = found.get(setting)
        if not option and value and isinstance(value, (str, os.PathLike)):
            found[setting] = str(folder / value)
        elif option and isinstance(value, Mapping) and value.get(option[0]):
            found[setting] = {**value, option[0]: str(folder / value[option[0]])}
    return found


def load(
    discovery: Discovery, overrides: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[str, Config]:
    """Return the name of this node and its configuration. A launcher may wait for other nodes."""
    if not discovery.is_complete:
        looked = "\n".join(f"  {line}" for line in discovery.lines())
        raise UserError(
            "dpwa does not know which node this is, or where its peers are. Pass config= and "
            "name=, or set DPWA_CONFIG and DPWA_NAME, or start the script with `dpwa launch -n 4 "
            f"-- python SCRIPT` or torchrun. Searched places:\n{looked} [DPWA-E036]"
        )
    source = {} if discovery.source is None else discovery.source
    if discovery.launcher is None:
        beneath = None if discovery.cluster is source else discovery.cluster
        loaded = load_config(source, beneath=beneath, overrides=overrides, environ=environ)
        return str(discovery.name), loaded
    name, settings = discovery.launcher.cluster(environ, discovery.name)
    known = {**overrides, **settings}
    return name, load_config(source, overrides=known, environ=environ)


def _used(name: str | None) -> str:
    if name is None:
        return "names the nodes, but neither name= nor DPWA_NAME says which node this is"
    return f"used, for node {name}"


def _sources(
    config: ConfigSource | None, environ: Mapping[str, str], folder: Path
) -> list[tuple[str, ConfigSource | None]]:
    variable = environ.get("DPWA_CONFIG", "").strip()
    file = folder / FILE
    return [
        ("argument config=", config),
        ("DPWA_CONFIG (dpwa launch)", variable or None),
        (f"{FILE} in {folder}", file if file.is_file() else None),
    ]
