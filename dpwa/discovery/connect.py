"""`dpwa.connect`: gossip for a model, wherever its process was started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpwa.config import ConfigSource
from dpwa.discovery.finding import find, from_folder, load

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

    folder = Path.cwd()
    overrides = from_folder(folder, overrides)
    discovery = find(config, name, overrides, os.environ, folder)
    own_name, loaded = load(discovery, overrides, os.environ)
    return DpwaPyTorchAdapter(model, own_name, loaded, optimizer=optimizer)
