"""`dpwa.connect`, which gossips a model, whatever started its process.

It looks for the cluster in several places, in order, and uses the first that knows it.
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
_CLUSTER = frozenset({"nodes", "join"})  # settings that say where peers are


def connect(
    model: torch.nn.Module,
    optimizer: Given = None,
    *,
    scheduler: Schedulers = None,
    config: ConfigSource | None = None,
    name: str | None = None,
    **overrides: Any,
) -> DpwaPyTorchAdapter:
    """Make a `DpwaPyTorchAdapter` for a model, whatever started this process.

        with dpwa.connect(model, optimizer) as gossip:
            for inputs, targets in batches:
                loss = train_step(inputs, targets)
                gossip.step(loss)
            gossip.finish()

    dpwa looks in this order for the name of the node and the addresses of its peers: the arguments,
    DPWA_CONFIG and DPWA_NAME (which `dpwa launch` sets), `dpwa.yaml` in the working folder with
    DPWA_NAME, torchrun, Ray, mpirun, SLURM, SkyPilot, and Kubernetes (an indexed job). The first
    source that has them is used. See docs/launch.md, and `dpwa config show --where`. A `config`
    that has neither `nodes` nor `join` is used for its other settings.

    In an interactive session (a notebook, Python's prompt), where a cell is run again, the earlier
    adapter of the same node is closed first. In a script this is a mistake, and an error.

    Args:
        model: a `torch.nn.Module`.
        optimizer: the optimizer of the model, or a list of several. Its state is sent, saved and
            loaded together with the model's.
        scheduler: the learning rate scheduler, or a list of several, with a `GradScaler` if you
            have one. Its state is treated like the optimizer's. With an empty list, the schedulers
            are your own task when a node adopts a state.
        config: a path to a YAML file, a mapping, or a `Config`.
        name: the name of this node.
        overrides: settings by name, which precede those of `config` and of the environment:
            `dpwa.connect(model, algorithm="elastic", timeout_ms=2000)`.

    Raises:
        UserError: the node of this process is unknown, and the message lists the searched places.
            Or the other processes of the run do not arrive.
        ConfigError: the settings have mistakes.
        AddressError, NameTakenError, ParametersError: as `DpwaPyTorchAdapter` does.
    """
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    from dpwa.connection import close_former

    _require_no_import_by_worker()
    folder = Path.cwd()
    overrides = from_folder(folder, overrides)
    try:
        discovery = find(config, name, overrides, os.environ, folder)
        own_name, loaded = load(discovery, overrides, os.environ)
        if hasattr(sys, "ps1"):  # the prompt: IPython and its kernels have it, too
            loaded.require(own_name)
            close_former(own_name, loaded)
        return DpwaPyTorchAdapter(model, own_name, loaded, optimizer=optimizer, scheduler=scheduler)
    except UserError as error:
        # The caller's line and the message tell all: not which lines of dpwa have found it.
        raise error.with_traceback(None) from None


def _require_no_import_by_worker() -> None:
    # What multiprocessing itself goes by, when a script starts processes while it is imported.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError(
            "a spawned worker process imports this script, and would make its node again. Put the "
            'statements of the script under `if __name__ == "__main__":` [DPWA-E037]'
        )


@dataclass(frozen=True)
class Look:
    """One searched place, and its contents, in words."""

    place: str
    found: str
    knows: bool = False  # which node this is, and where its peers are


@dataclass(frozen=True)
class Discovery:
    """Where a process finds its cluster and its settings."""

    looks: tuple[Look, ...]
    source: ConfigSource | None  # of the settings; `None` for the defaults
    name: str | None  # of the node; `None` as long as a launcher has to tell
    launcher: Launcher | None = None  # knows the cluster; `None`: the settings do
    cluster: ConfigSource | None = None  # says who is there; it may be the source

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
    """Look for the cluster of this process, without questions to other processes.

    Settings come from `config`, else from the file of DPWA_CONFIG, else from `dpwa.yaml` in the
    folder. The first of these with `nodes` or `join` is the cluster, and the node needs a name,
    too. Otherwise a launcher has to know.
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
    """Return settings that were given in code, with their paths relative to a folder."""
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
    """Return the name of this node and its configuration. A launcher may wait for others."""
    if not discovery.is_complete:
        looked = "\n".join(f"  {line}" for line in discovery.lines())
        raise UserError(
            "which node this is, and where its peers are, is not known. Pass config= and name=, "
            "or set DPWA_CONFIG and DPWA_NAME, or start it with `dpwa launch -n 4 -- python "
            f"SCRIPT` or torchrun. Looked for:\n{looked} [DPWA-E036]"
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
        return "says who is there, but neither name= nor DPWA_NAME says which node this is"
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
