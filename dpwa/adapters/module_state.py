"""Which tensors of a module are gossiped, and how they map to the flat bytes of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

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
        entries: the tensors, each once, in the module's order, parameters first.
        layout: their layout.
    """

    def __init__(self, net: torch.nn.Module, *, with_buffers: bool) -> None:
        self._net = net
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
        entries = tuple(self._walk())
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
        for name, parameter in self._net.named_parameters():
            if parameter.requires_grad:
                yield Entry(name, parameter, is_buffer=False)
        if not self._with_buffers:
            return
        seen: set[int] = set()
        for prefix, module in self._net.named_modules():
            # What is not in the state dict (caches, masks) is not part of the model.
            transient = module._non_persistent_buffers_set
            for name, buffer in module.named_buffers(prefix, recurse=False):
                is_state = name.rpartition(".")[2] not in transient
                if is_state and buffer.is_floating_point() and id(buffer) not in seen:
                    seen.add(id(buffer))
                    yield Entry(name, buffer, is_buffer=True)


_KEPT_BUFFERS = 8  # the slots of a pool and the receive buffer, with room to spare


def _spec(entry: Entry) -> TensorSpec:
    tensor = entry.tensor
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(entry.name, dtype, tuple(tensor.shape), tensor.element_size())
