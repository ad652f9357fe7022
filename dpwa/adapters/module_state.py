"""Which tensors of a module are gossiped, and how they map to the flat bytes of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.snapshot import ByteArray
from dpwa.errors import ParametersError


@dataclass(frozen=True)
class Entry:
    """One gossiped tensor of the module."""

    name: str
    tensor: torch.Tensor
    is_buffer: bool


class ModuleState:
    """The trainable parameters of a module and, if wanted, its floating buffers.

    Attributes:
        entries: the tensors, each once, by falling element size, else in the module's order, parameters first.
        layout: their layout.
    """

    def __init__(self, net: torch.nn.Module, *, with_buffers: bool) -> None:
        self._net = _unwrapped(net)
        self._with_buffers = with_buffers
        self._identity: tuple[object, ...] | None = None
        self._views: dict[int, tuple[ByteArray, list[torch.Tensor]]] = {}
        self.entries: tuple[Entry, ...] = ()
        self.layout = Layout(())
        self.refresh()

    @property
    def nbytes(self) -> int:
        """Size of a snapshot in bytes."""
        return self.layout.nbytes or 0

    def refresh(self) -> None:
        """Notice tensors that were replaced, frozen or cast since the last round.

        Raises:
            ParametersError: nothing is left to gossip.
        """
        # The largest elements first: packed densely, each tensor is then aligned to its own.
        entries = tuple(sorted(self._walk(), key=lambda e: -e.tensor.element_size()))
        identity = tuple((id(e.tensor), e.tensor.dtype, e.tensor.shape) for e in entries)
        if identity == self._identity:
            return
        if not any(not entry.is_buffer for entry in entries):
            raise ParametersError(
                f"{type(self._net).__name__} has no trainable floating parameter to gossip"
            )
        self.entries = entries
        self.layout = Layout(tuple(_spec(entry) for entry in entries))
        self._identity = identity
        self._views.clear()

    @torch.no_grad()
    def copy_to(self, data: ByteArray) -> None:
        """Copy every tensor to its place in a snapshot, shape `(nbytes,)`."""
        for entry, view in zip(self.entries, self.views(data), strict=True):
            view.copy_(entry.tensor)

    def views(self, data: ByteArray) -> list[torch.Tensor]:
        """Return the tensors in a snapshot, in place, on the CPU; kept for buffers seen before."""
        known = self._views.get(id(data))
        if known is not None and known[0] is data:
            return known[1]
        if len(self._views) > _KEPT_BUFFERS:
            self._views.clear()
        views = list(self._make_views(data))
        self._views[id(data)] = data, views
        return views

    def _make_views(self, data: ByteArray) -> Iterator[torch.Tensor]:
        flat = torch.from_numpy(data)
        for entry, spec, offset in zip(
            self.entries, self.layout.tensors, self.layout.offsets, strict=True
        ):
            part = flat[offset : offset + spec.nbytes]
            yield part.view(entry.tensor.dtype).view(spec.shape)

    def _walk(self) -> Iterator[Entry]:
        seen: set[object] = set()
        for name, parameter in self._net.named_parameters():
            if parameter.requires_grad and _is_new(parameter, seen):
                _require_mergeable(name, parameter)
                yield Entry(_plain(name), parameter, is_buffer=False)
        if self._with_buffers:
            for name, buffer in self._state_buffers():
                if _is_mergeable(buffer) and _is_new(buffer, seen):
                    yield Entry(_plain(name), buffer, is_buffer=True)

    def _state_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the floating buffers that are part of the state dict, not mere caches and masks."""
        for prefix, module in self._net.named_modules():
            transient = module._non_persistent_buffers_set
            for name, buffer in module.named_buffers(prefix, recurse=False):
                if buffer.is_floating_point() and name.rpartition(".")[2] not in transient:
                    yield name, buffer


_KEPT_BUFFERS = 8  # the slots of a pool and the receive buffer, with room to spare


def _spec(entry: Entry) -> TensorSpec:
    tensor = entry.tensor
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(entry.name, dtype, tuple(tensor.shape), tensor.element_size())


def _unwrapped(net: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside of wrappers, so that wrapped and plain nodes can gossip."""
    while isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        net = net.module
    return net


def _plain(name: str) -> str:
    """Return the name of a tensor as it is without torch.compile."""
    return name.replace("_orig_mod.", "")


def _is_new(tensor: torch.Tensor, seen: set[object]) -> bool:
    """Tell whether this memory was not seen before: tied tensors are merged once."""
    if nn.parameter.is_lazy(tensor) or tensor.is_meta or tensor.numel() == 0:
        return True
    memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
    is_new = memory not in seen
    seen.add(memory)
    return is_new


def _is_mergeable(tensor: torch.Tensor) -> bool:
    return not _why_not(tensor)


def _require_mergeable(name: str, tensor: torch.Tensor) -> None:
    reason = _why_not(tensor)
    if reason:
        raise ParametersError(f"parameter {name!r} cannot be gossiped: {reason}")


def _why_not(tensor: torch.Tensor) -> str:
    """Say why a tensor cannot be copied from and merged into; nothing when it can."""
    if nn.parameter.is_lazy(tensor):
        return "it has no shape before the module's first forward pass"
    if tensor.is_meta:
        return "it is on the meta device and has no values"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}, not dense"
    if any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        return "it is expanded: several of its elements share one place in memory"
    return ""
