"""Keep the parameters of a torch module in a table, to which each worker adds its changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dpwa.errors import UserError
from dpwa.tables.node_tables import Tables
from dpwa.tables.table import SyncedArray


class ModuleParameterManager:
    """Keeps a module's parameters in sync with the parameters of the other workers.

        manager = ModuleParameterManager(net, tables)
        for batch in batches:
            train(net, batch)
            manager.sync()

    The module starts with the parameters of the first worker. Buffers do not change, because adding
    up the changes of all workers is wrong for running means.

    Args:
        module: the same module on all workers, on any device.
        tables: the tables of this node.
        options: options of the table: `updater`, `options`, `replicas`.

    Raises:
        UserError: the module has no floating-point parameters.
    """

    def __init__(self, module: torch.nn.Module, tables: Tables, **options: Any) -> None:
        self._parameters = [p for p in module.parameters() if p.is_floating_point()]
        if not self._parameters:
            raise UserError("the module has no floating-point parameters [DPWA-E111]")
        is_double = any(p.dtype == torch.float64 for p in self._parameters)
        self._dtype = torch.float64 if is_double else torch.float32
        values = self._collected()
        dtype = "float64" if is_double else "float32"
        table = tables.array(values.size, values, dtype=dtype, **options)
        self._variable = SyncedArray(table, values.shape)
        self._distribute()

    def sync(self) -> None:
        """Add this worker's changes since the last call, and load the sum of all workers' changes.

        Raises:
            The errors of `SyncedArray.sync`.
        """
        self._variable.value[...] = self._collected()
        self._variable.sync()
        self._distribute()

    @torch.no_grad()
    def _collected(self) -> np.ndarray:
        flat = [p.detach().to("cpu", self._dtype).reshape(-1) for p in self._parameters]
        values: np.ndarray = torch.cat(flat).numpy()
        return values

    @torch.no_grad()
    def _distribute(self) -> None:
        start, flat = 0, torch.from_numpy(self._variable.value)
        for parameter in self._parameters:
            stop = start + parameter.numel()
            parameter.copy_(flat[start:stop].reshape(parameter.shape))
            start = stop
