"""What of a module is gossiped, and what is left alone and why: the counts in `dpwa status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import nn

from dpwa.adapters.plain_tensors import why_not_mergeable, why_not_plain
from dpwa.message_codes import get_log
from dpwa.types import JsonObject

log = get_log("dpwa.adapters")

INTEGER = "integer buffers"
COMPLEX = "complex buffers"
TRANSIENT = "non-persistent buffers"
KEPT = "buffers kept by `buffers: keep`"
WITHOUT_MEMORY = "buffers without dense memory of their own"
CONSTANT = "constant buffers"
TIED = "tied tensors"


def contents(
    net: nn.Module,
    parameters: Iterable[torch.Tensor],
    buffers: Iterable[torch.Tensor],
    constants: int,
    *,
    with_buffers: bool,
) -> JsonObject:
    """Count what a module has, in plain data.

    Args:
        net: the module.
        parameters: those that are gossiped, each once.
        buffers: likewise.
        constants: how many of the floating buffers are no statistics.
        with_buffers: whether floating buffers are gossiped at all.
    """
    trained, averaged = _counted(parameters), _counted(buffers)
    own = [p for module in net.modules() for p in module._parameters.values() if p is not None]
    frozen = {id(p): p for p in own if not p.requires_grad}
    trainable = sum(p.requires_grad for p in own)
    left: Counter[str] = Counter()
    floating = 0
    for module in net.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                reason = _why_alone(module, name, buffer, with_buffers=with_buffers)
                left[reason] += 1
                floating += not reason
    left[CONSTANT] = constants
    tied = trainable - trained["tensors"] + floating - constants - averaged["tensors"]
    left[TIED] = max(0, tied)  # more, if parts of one are gossiped
    return {
        "parameters": trained,
        "buffers": averaged,
        "frozen": _counted(frozen.values()),
        "left_alone": {reason: n for reason, n in sorted(left.items()) if reason and n},
        "elements": trained["elements"] + averaged["elements"],
        "bytes": trained["bytes"] + averaged["bytes"],
    }


def warn_of_left_out(net: nn.Module, node: str) -> None:
    """Warn of the buffers that a state dict has and dpwa cannot hand on, each with the reason."""
    text = "%s: buffer %r is not gossiped, handed on or kept in checkpoints: %s"
    for prefix, module in net.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            is_transient = name.rpartition(".")[2] in module._non_persistent_buffers_set
            reason = "" if is_transient else why_not_plain(buffer)
            if reason:
                log.warning(text, node, name, reason)


def _why_alone(module: nn.Module, name: str, buffer: torch.Tensor, *, with_buffers: bool) -> str:
    """Say why a buffer is left alone; nothing when it is gossiped."""
    if name in module._non_persistent_buffers_set:
        return TRANSIENT
    if buffer.is_complex():
        return COMPLEX
    if not buffer.is_floating_point():
        return INTEGER
    if not with_buffers:
        return KEPT
    return WITHOUT_MEMORY if why_not_mergeable(buffer) else ""


def _counted(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    found = list(tensors)
    return {
        "tensors": len(found),
        "elements": sum(tensor.numel() for tensor in found),
        "bytes": sum(tensor.nbytes for tensor in found),
    }
