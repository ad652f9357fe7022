"""Sharded tensors: DTensors, of which each rank has a shard in plain memory."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from dpwa.errors import ParametersError


def is_sharded(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")  # imported by whoever has made one
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the shard of a DTensor that this rank has, in place; any other tensor as it is."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        shard: torch.Tensor = sharded.to_local()
    return shard


def place_of(tensor: torch.Tensor) -> str:
    """Say which shard of what this rank has; nothing of a tensor that is not sharded.

    Two groups of ranks hold the same shards if their names, with these places, are the same.
    """
    sharded: Any = tensor
    if not is_sharded(tensor) or sharded.device_mesh.size() == 1:
        return ""
    mesh = sharded.device_mesh
    placements = ", ".join(str(placement) for placement in sharded.placements)
    return f" {list(sharded.shape)} {placements} at {mesh.get_coordinate()} of {list(mesh.shape)}"


def require_unsharded(net: nn.Module) -> None:
    """Refuse a module that was sharded over several ranks, unseen by the adapter.

    Raises:
        ParametersError: names the first parameter of which this rank has a shard.
    """
    for name, parameter in net.named_parameters():
        if place_of(parameter):
            raise ParametersError(
                f"parameter {name!r} was sharded after the adapter was made: make the adapter, "
                "on all ranks, once `fully_shard` is done"
            )


def reshard(net: nn.Module) -> None:
    """Have `fully_shard` free the whole parameters that it may hold since the last forward pass."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is not None:
        for module in net.modules():
            if isinstance(module, kind):
                module.reshard()


def shard_like_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Make DTensors of what an optimizer keeps of those of its parameters that are DTensors."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if is_sharded(parameter):
                own = optimizer.state.get(parameter, {})
                own.update({key: _like(parameter, value) for key, value in own.items()})


def _like(parameter: Any, value: Any) -> Any:
    is_shard = isinstance(value, torch.Tensor) and value.dim() and not is_sharded(value)
    if not is_shard or value.shape != local(parameter).shape:
        return value
    kind = type(parameter.data)
    return kind.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
