"""Plain tensors: those with dense memory of their own, which can be copied and merged."""

from __future__ import annotations

import sys

import torch
from torch import nn

from dpwa.adapters.sharded_tensors import local
from dpwa.errors import ParametersError

_FSDP = "torch.distributed.fsdp"


def why_not_plain(tensor: torch.Tensor) -> str:
    """Say why a tensor, or the shard of it here, has no plain memory; nothing when it has."""
    tensor = local(tensor)
    if nn.parameter.is_lazy(tensor):
        return (
            "it has no shape before the module's first forward pass: run one batch through the "
            "module first"
        )
    if tensor.is_nested:
        return "it is a nested tensor: make its components parameters of their own (ParameterList)"
    if _is_fake(tensor):
        return "it is a FakeTensor and has no values: make the module outside of FakeTensorMode"
    if tensor.is_meta:
        return (
            "it is on the meta device and has no values: give it memory (`to_empty(device=...)`) "
            "and values first"
        )
    if tensor.is_quantized:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return f"it is quantised ({dtype}): gossip the float module, and quantise it afterwards"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}, not dense: keep its values in a dense tensor"
    if _has_no_memory(tensor):
        kind = type(tensor)
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return (
                f"it is a {kind.__name__}, which has no dense memory of its own: gossip a module "
                "of plain tensors"
            )
        return "its memory was given back (its storage is empty): make the adapter while it has it"
    return ""


def why_not_mergeable(tensor: torch.Tensor) -> str:
    """Say why a tensor cannot be copied from and merged into; nothing when it can."""
    reason, tensor = why_not_plain(tensor), local(tensor)
    if not reason and any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        reason = (
            "it is expanded: several of its elements share one place in memory; make it one with "
            "`.clone()`"
        )
    return reason


def require_plain(net: nn.Module) -> None:
    """Refuse a module of which a parameter, frozen or not, has no plain memory.

    Raises:
        ParametersError: names the first one, or the module that is quantised or sharded, says what
            it is and what to do.
    """
    for name, module in net.named_modules():
        if _is_packed(module):
            raise ParametersError(
                f"module {name!r} is a quantised {type(module).__name__}, whose weights are no "
                "tensors: gossip the float module and quantise it afterwards, or make the adapter "
                "of a part that is not quantised"
            )
    fsdp = getattr(sys.modules.get(_FSDP), "FullyShardedDataParallel", None)
    if fsdp is not None:
        for name, module in net.named_modules():
            if isinstance(module, fsdp):
                raise ParametersError(
                    f"module {name!r} is a FullyShardedDataParallel, which keeps parameters "
                    "in a form of its own: shard the module by `fully_shard` (FSDP2)"
                )
    for name, parameter in net.named_parameters():
        reason = why_not_plain(parameter)
        if reason:
            fate = "gossiped" if parameter.requires_grad else "handed on or kept in checkpoints"
            raise ParametersError(f"parameter {name!r} cannot be {fate}: {reason}")


def _is_packed(module: nn.Module) -> bool:
    """Tell whether a module of torch.ao keeps its weights in an object of its kernels."""
    return type(module).__module__.startswith("torch.ao.nn") and any(
        isinstance(value, torch.ScriptObject) for value in vars(module).values()
    )


def _is_fake(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def _has_no_memory(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0:
        return False
    try:
        return tensor.data_ptr() == 0
    except RuntimeError:
        return True
