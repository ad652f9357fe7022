"""`dpwa.connect`: gossip for a model, wherever its process was started."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpwa.config import ConfigSource
from dpwa.connection import close_former
from dpwa.discovery.finding import find, from_folder, load
from dpwa.errors import UserError

if TYPE_CHECKING:
    import torch

    from dpwa.adapters.pytorch import DpwaPyTorchAdapter


def connect(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    config: ConfigSource | None = None,
    name: str | None = None,
    **overrides: Any,
) -> DpwaPyTorchAdapter:
    """Make a `DpwaPyTorchAdapter` for a model, whoever has started this process.

        with dpwa.connect(model, optimizer) as gossip:
            for inputs, targets in batches:
                loss = train_step(inputs, targets)
                gossip.step(loss)
            gossip.finish()

    Which node this is, and where its peers are, is taken from the first that says so: the
    arguments; DPWA_CONFIG and DPWA_NAME, as `dpwa launch` sets them; `dpwa.yaml` in the working
    folder with DPWA_NAME; torchrun; an actor or a task of Ray; SLURM (`srun`); SkyPilot. See
    docs/connect.md, and `dpwa config show --where`. A `config` that has neither `nodes` nor `join`
    is used for its other settings.

    In an interactive session (a notebook, Python's prompt), where a cell is run again, what was
    made before for the same node is closed first. In a script that is a mistake, and an error.

    Args:
        model: a `torch.nn.Module`.
        optimizer: of the model; its state is handed on, kept and taken over together with it.
        config: a path to a YAML file, a mapping, or a `Config`.
        name: of this node.
        overrides: settings by name, before those of `config` and of the environment:
            `dpwa.connect(model, algorithm="elastic", timeout_ms=2000)`.

    Raises:
        UserError: nobody says which node this is; the message lists where was looked. Or the other
            processes of the run do not come.
        ConfigError: the settings have mistakes.
        AddressError, NameTakenError, ParametersError: as `DpwaPyTorchAdapter` does.
    """
    from dpwa.adapters.pytorch import DpwaPyTorchAdapter

    _require_no_import_by_worker()
    folder = Path.cwd()
    overrides = from_folder(folder, overrides)
    discovery = find(config, name, overrides, os.environ, folder)
    own_name, loaded = load(discovery, overrides, os.environ)
    if hasattr(sys, "ps1"):  # the prompt: IPython and its kernels have it, too
        loaded.require(own_name)
        close_former(own_name, loaded)
    return DpwaPyTorchAdapter(model, own_name, loaded, optimizer=optimizer)


def _require_no_import_by_worker() -> None:
    # What multiprocessing itself goes by, when a script starts processes while it is imported.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError(
            "a worker process that was spawned imports this script, and would make its node again: "
            'put what the script does beneath `if __name__ == "__main__":`'
        )
