"""Plain tensors: tensors with dense memory of their own, which can be copied and merged."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from dpwa.data.layout import TensorSpec
from dpwa.errors import ParametersError

Named = tuple[str, torch.Tensor]


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Return the description of a tensor in a layout."""
    return TensorSpec(name, dtype_name(tensor), tuple(tensor.shape), tensor.element_size())


def is_sharded(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # imported if the process has a DTensor
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, as a view, or any other tensor unchanged."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        shard: torch.Tensor = sharded.to_local()
    return shard


def place_of(tensor: torch.Tensor) -> str:
    """Return a description of this rank's shard of a tensor, or "" if it is not sharded.

    Two groups of ranks hold the same shards if the names and these descriptions are equal.
    """
    sharded: Any = tensor
    if not is_sharded(tensor) or sharded.device_mesh.size() == 1:
        return ""
    mesh = sharded.device_mesh
    placements = ", ".join(str(placement) for placement in sharded.placements)
    return f" {list(sharded.shape)} {placements} at {mesh.get_coordinate()} of {list(mesh.shape)}"


def require_unsharded(net: nn.Module) -> None:
    """Raise `ParametersError` if a module was sharded after its adapter was created."""
    for name, parameter in net.named_parameters():
        if place_of(parameter):
            raise ParametersError(
                f"parameter {name!r} was sharded after the adapter was made. Make the adapter "
                "after `fully_shard`, on all ranks [DPWA-E136]"
            )


def reshard(net: nn.Module) -> None:
    """Free the unsharded parameters that `fully_shard` may still hold after a forward pass."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is not None:
        for module in net.modules():
            if isinstance(module, kind):
                module.reshard()


def shard_like_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Convert an optimizer's state to DTensors for each parameter that is a DTensor."""
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


_FSDP = "torch.distributed.fsdp"


def why_not_plain(tensor: torch.Tensor) -> str:
    """Return why a tensor, or this rank's shard, has no plain memory, or "" for plain memory."""
    tensor = local(tensor)
    if nn.parameter.is_lazy(tensor):
        return (
            "it has no shape before the module's first forward pass. Run one batch through the "
            "module first"
        )
    if tensor.is_nested:
        return "it is a nested tensor. Make its components separate parameters (ParameterList)"
    if _is_fake(tensor):
        return "it is a FakeTensor and has no values. Make the module outside FakeTensorMode"
    if tensor.is_meta:
        return (
            "it is on the meta device and has no values. First give it memory "
            "(`to_empty(device=...)`) and values"
        )
    if tensor.is_quantized:
        dtype = dtype_name(tensor)
        return f"it is quantised ({dtype}). Gossip the float module, and quantise it afterwards"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}, not dense. Keep its values in a dense tensor"
    if tensor.is_conj() or tensor.is_neg():
        how = "conj" if tensor.is_conj() else "neg"
        return f"it is a lazy view of other values. Copy it with `.resolve_{how}()`"
    if _has_no_memory(tensor):
        kind = type(tensor)
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return (
                f"it is a {kind.__name__}, which has no dense memory of its own. Gossip a module "
                "of plain tensors"
            )
        return "its memory was freed (its storage is empty). Make the adapter before that"
    return ""


def why_not_mergeable(tensor: torch.Tensor) -> str:
    """Return the reason why dpwa cannot read or merge a tensor, or "" if dpwa can."""
    reason, tensor = why_not_plain(tensor), local(tensor)
    if not reason and any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        reason = (
            "it is expanded, so several of its elements share one place in memory. Copy it with "
            "`.clone()`"
        )
    return reason


def parts_apart(named: Sequence[Named], before: Sequence[Named] = ()) -> list[Named]:
    """Divide memory that tensors share, and return the parts that belong to each tensor, in order.

    These are the tensor itself, or views of the uncovered rest, or nothing if other tensors cover
    it. Overlapping memory belongs to the tensors of `before`, whose parts are not returned, then to
    the larger ones.
    """
    everything, first = [*before, *named], len(before)
    found: dict[int, list[Named]] = {}
    for together in _together([tensor for _, tensor in everything]):
        taken: list[tuple[int, int, torch.Tensor]] = []  # start, stop and the part
        for index in sorted(together, key=lambda i: (i >= first, -everything[i][1].numel(), i)):
            name, tensor = everything[index]
            parts = list(_beside(tensor, taken))
            is_whole = len(parts) == 1 and parts[0].shape == tensor.shape
            found[index] = [
                (name, tensor) if is_whole else (f"{name}[part {number}]", part)
                for number, part in enumerate(parts)
            ]
            taken += [(*_span(part), part) for part in parts]
    return [part for index in range(first, len(everything)) for part in found[index]]


def _together(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yield the indices of tensors that share memory, in groups. Most groups have one tensor."""
    spans = sorted((str(t.device), *_span(t), index) for index, t in enumerate(tensors))
    together, device, end = list[int](), "", 0
    for where, start, stop, index in spans:
        if together and (where != device or start >= end):
            yield together
            together, end = [], 0
        together.append(index)
        device, end = where, max(end, stop)
    if together:
        yield together


def _beside(
    tensor: torch.Tensor, taken: Sequence[tuple[int, int, torch.Tensor]]
) -> Iterator[torch.Tensor]:
    start, stop = _span(tensor)
    near = [(a, b, other) for a, b, other in taken if a < stop and start < b]
    if not near:
        yield tensor
    elif not any(a <= start and stop <= b and b - a == other.nbytes for a, b, other in near):
        low, high = min(start, *(a for a, _, _ in near)), max(stop, *(b for _, b, _ in near))
        is_taken = torch.zeros(high - low, dtype=torch.bool, device="cpu")
        for _, _, other in near:
            _bytes_in(is_taken, other, low).fill_(True)
        yield from _free(tensor.detach(), _bytes_in(is_taken, tensor, low).any(-1))


def _free(tensor: torch.Tensor, is_taken: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield as few views as possible of the elements whose flags in `is_taken` are unset."""
    if not bool(is_taken.any()):
        yield tensor
    elif not bool(is_taken.all()):
        rows, at = is_taken.reshape(len(is_taken), -1), 0
        for taken, run in itertools.groupby((rows.any(1).int() + rows.all(1)).tolist()):
            count = len(list(run))
            if taken == 0:
                yield tensor[at : at + count]
            for row in range(at, at + count) if taken == 1 else ():  # rows that are taken in part
                yield from _free(tensor[row], is_taken[row])
            at += count


def _bytes_in(memory: torch.Tensor, tensor: torch.Tensor, low: int) -> torch.Tensor:
    """Return a view `(*shape, bytes)` of a tensor's bytes in `memory`, from address `low` on."""
    size = tensor.element_size()
    strides = (*(stride * size for stride in tensor.stride()), 1)
    return memory.as_strided((*tensor.shape, size), strides, tensor.data_ptr() - low)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's memory, and the address after its end, or 0, 0."""
    if tensor.numel() == 0:
        return 0, 0
    steps = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()


def require_plain(net: nn.Module) -> None:
    """Raise `ParametersError` if a parameter, frozen or not, has no plain memory.

    The message names the first such parameter, or a quantised or sharded module, and the remedy.
    """
    for name, module in net.named_modules():
        if _is_packed(module):
            raise ParametersError(
                f"module {name!r} is a quantised {type(module).__name__}, whose weights are not "
                "tensors. Gossip the float module, and quantise the module afterwards. Or gossip "
                "only submodules that are not quantised [DPWA-E137]"
            )
    fsdp = getattr(sys.modules.get(_FSDP), "FullyShardedDataParallel", None)
    if fsdp is not None:
        for name, module in net.named_modules():
            if isinstance(module, fsdp):
                raise ParametersError(
                    f"module {name!r} is a FullyShardedDataParallel, which keeps parameters in its "
                    "own format. Shard the module with `fully_shard` (FSDP2) instead [DPWA-E129]"
                )
    for name, parameter in net.named_parameters():
        reason = why_not_plain(parameter)
        if reason:
            fate = "gossiped" if parameter.requires_grad else "sent or saved in checkpoints"
            raise ParametersError(f"parameter {name!r} cannot be {fate}: {reason} [DPWA-E128]")


def _is_packed(module: nn.Module) -> bool:
    """Return whether a module of torch.ao keeps its weights in a ScriptObject."""
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
