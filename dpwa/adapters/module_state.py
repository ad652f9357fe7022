"""Which tensors of a module are gossiped, and how they map to the flat bytes of a snapshot."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dpwa.adapters.contents import contents
from dpwa.adapters.cuda_side import CudaSide
from dpwa.adapters.device_side import DeviceSide
from dpwa.adapters.frozen import FrozenParameters, digests
from dpwa.adapters.host_side import HostSide
from dpwa.adapters.merging import MergeTerms, Merging
from dpwa.adapters.module_watch import ModuleWatch
from dpwa.adapters.plain_tensors import require_plain, why_not_mergeable
from dpwa.adapters.sharded_tensors import local, place_of, require_unsharded
from dpwa.adapters.tiles import Tile, cut
from dpwa.adapters.values import TensorValues
from dpwa.config import Config
from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import SnapshotCopy
from dpwa.errors import ParametersError, UserError
from dpwa.types import JsonObject

MOST_TOLD = 512  # digests of single tensors


@dataclass(frozen=True)
class GossipedTensor:
    """One gossiped tensor of the module, or the shard of it that this rank has."""

    name: str
    tensor: torch.Tensor
    is_buffer: bool


class ModuleState:
    """The trainable parameters of a module and, if wanted, its floating buffers.

    Args:
        net: the module.
        with_buffers: whether its floating buffers are gossiped, too.
        fits_frozen: whether peers must have the same frozen parameters.
        whole: see below; `None`: the module is not sharded over several ranks.

    Attributes:
        entries: the tensors, each once, by falling element size, else in the module's order,
            parameters first.
        layout: their layout.
        contents: what is gossiped and what is not, in counts.
        generation: rises whenever `refresh` finds that the parameters are in other memory than
            before, or that the layout is another: copies of parameters may not fit them any more.
        whole: returns the Euclidean norm of all that a sharded module has, of that of the shards
            here; all ranks call it alike.
    """

    def __init__(
        self,
        net: torch.nn.Module,
        *,
        with_buffers: bool,
        fits_frozen: bool = False,
        whole: Callable[[float], float] | None = None,
    ) -> None:
        self._net = unwrapped(net)
        self._with_buffers = with_buffers
        self._fits_frozen = fits_frozen
        self._frozen = FrozenParameters()
        self._module_watch: ModuleWatch | None = None
        self._side = HostSide(())
        self._rounds = 0
        self._values = TensorValues(())
        self.generation = 0
        self.whole: Callable[[float], float] = whole or float
        self._may_be_sharded = whole is not None
        self.entries: tuple[GossipedTensor, ...] = ()
        self.layout = Layout(())
        self.contents: JsonObject = {}
        self.refresh()

    @classmethod
    def of(
        cls,
        net: torch.nn.Module,
        config: Config,
        whole: Callable[[float], float] | None = None,
    ) -> ModuleState:
        """Return what of a module is gossiped by a configuration."""
        return cls(
            net,
            with_buffers=config.buffers == "average",
            fits_frozen=config.state == "trainable",
            whole=whole,
        )

    @property
    def nbytes(self) -> int:
        """Size of a snapshot in bytes."""
        return self.layout.nbytes or 0

    def refresh(self) -> None:
        """Notice tensors that were replaced, frozen, cast, resized or moved since the last time.

        Raises:
            ParametersError: nothing is left to gossip.
        """
        watch = self._module_watch
        if watch is not None and watch.still_holds() and self._frozen.still_hold():
            return
        self._module_watch = None
        require_plain(self._net)
        if not self._may_be_sharded:
            require_unsharded(self._net)
        # The largest elements first: packed densely, each tensor is then aligned to its own.
        entries = tuple(sorted(self._walk(), key=lambda e: -e.tensor.element_size()))
        if not any(e.tensor.numel() for e in entries if not e.is_buffer):
            found = "only empty ones" if any(not e.is_buffer for e in entries) else "none"
            if self._may_be_sharded:
                found += " on this rank; shard over fewer ranks"
            raise ParametersError(
                f"{type(self._net).__name__} has no trainable floating parameter to gossip: {found}"
            )
        layout = Layout(tuple(_spec(entry) for entry in entries), self._find_frozen(entries))
        values = TensorValues([entry.tensor for entry in entries if not entry.is_buffer])
        if layout != self.layout or not values.is_same_memory(self._values):
            self.generation += 1
            self._values = values
        if layout != self.layout:
            self.layout = layout  # an equal one is kept, with the fingerprint it has computed
        self.entries = entries
        self.contents = contents(
            self._net,
            [entry.tensor for entry in entries if not entry.is_buffer],
            [entry.tensor for entry in entries if entry.is_buffer],
            with_buffers=self._with_buffers,
        )
        self._side = _side_of(self._cut(values))
        self._module_watch = ModuleWatch(self._net, with_buffers=self._with_buffers)

    def _find_frozen(self, entries: Sequence[GossipedTensor]) -> str:
        """Describe the frozen parameters, if peers must have the same."""
        if not self._fits_frozen:
            return ""
        seen: set[object] = set()
        for entry in entries:
            _is_new(entry.tensor, seen)  # what shares the memory of these is not frozen
        frozen = FrozenParameters(
            (_plain(name) + place_of(parameter), local(parameter))
            for name, parameter in self._net.named_parameters()
            if not parameter.requires_grad and _is_new(local(parameter), seen)
        )
        if self.layout.frozen and frozen.is_same(self._frozen):
            return self.layout.frozen
        self._frozen = frozen
        return frozen.described()

    def _cut(self, values: TensorValues) -> tuple[Tile, ...]:
        """Cut a snapshot of parameters, and of the live buffers, into tiles."""
        parameters = iter(values.tensors)
        tensors = [
            (entry.tensor if entry.is_buffer else next(parameters), entry.is_buffer)
            for entry in self.entries
        ]
        return cut(tensors, self.layout)

    def handed_on(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what makes up the state of a training, each tensor once.

        It is all of the module, or only what is gossiped if all have the rest already.
        """
        if not self._fits_frozen:
            return state_tensors(self._net)
        return ((entry.name, entry.tensor) for entry in self.entries)

    def rest(self) -> dict[str, str]:
        """Digest what of the state is not gossiped: frozen parameters, other buffers; by name.

        Numbers that merely count, such as a batch norm's batches, are left out: nodes may differ in
        them. Of very many tensors, the last ones have one digest together.
        """
        seen: set[object] = set()
        for entry in self.entries:
            _is_new(entry.tensor, seen)
        named = [
            (name, tensor)
            for name, tensor in state_tensors(self._net)
            if (tensor.ndim or tensor.is_floating_point())
            and not (self._fits_frozen and isinstance(tensor, nn.Parameter))  # the same anyway
            and _is_new(tensor, seen)
        ]
        found = [hashlib.blake2b(each, digest_size=8).hexdigest() for each in digests(named)]
        rest = {name: digest for (name, _), digest in zip(named, found, strict=True)}
        if more := found[MOST_TOLD:]:
            together = hashlib.blake2b("".join(more).encode(), digest_size=8).hexdigest()
            rest = dict(list(rest.items())[:MOST_TOLD]) | {f"{len(more)} others": together}
        return rest

    def copy_to(self, data: ByteArray, check_finite: bool) -> bool:
        """Copy every tensor to its place in a snapshot, shape `(nbytes,)`.

        Returns:
            Whether all values are finite; `True` when that is not checked.
        """
        return self.start_copy(data, check_finite).wait() is not False

    def start_copy(
        self, data: ByteArray, check_finite: bool, values: TensorValues | None = None
    ) -> SnapshotCopy:
        """Start to copy every tensor to its place in a snapshot, shape `(nbytes,)`.

        The tensors may be changed at once. On the CPU the copy is complete at once, too.

        Args:
            data: where they go.
            check_finite: whether to check that all values are finite.
            values: to be copied in place of the parameters; the host waits for these.

        Raises:
            ParametersError: `values` are not like the parameters.
        """
        return self._side_for(values).start_copy(data, check_finite)

    def _side_for(self, values: TensorValues | None) -> HostSide:
        if values is None or values is self._values:
            return self._side
        if not values.is_like(self._values):
            raise ParametersError(
                "what an algorithm publishes must have the shapes, dtypes and devices of the "
                f"{len(self._values.tensors)} trainable parameters of {type(self._net).__name__}"
            )
        return _plain_side_of(self._cut(values))

    def merging(self, terms: MergeTerms) -> Merging:
        """Begin to merge a peer's snapshot of this layout into the tensors."""
        self._rounds += 1
        return self._side.merging(terms, self._rounds)

    def distance(self, data: ByteArray, start: int, published: ByteArray | None) -> float:
        """Measure the Euclidean distance between a peer's bytes and the tensors, in one pass.

        It is exact, and over parameters and buffers alike: a peer that lies may do so in either.
        Sums of tiles, in float32 or wider, are added up in float64.

        Args:
            data: whole pieces of the peer's snapshot, writable memory though never written to.
            start: where they begin in it.
            published: the bytes of a whole snapshot, whose parameters are measured in place of
                those in training.

        Returns:
            The distance; NaN or infinite if one of the values is, or if a sum overflows.
        """
        return self.whole(self._side.distance(data, start, published))

    def values(self) -> TensorValues:
        """Return the parameters in training; the same object as long as they are the same."""
        return self._values

    def norm(self) -> float:
        """Return the Euclidean norm of the parameters in training."""
        norms = (float(torch.linalg.vector_norm(t)) for t in self._values.tensors)
        return self.whole(math.hypot(*norms))

    def state_with(self, values: TensorValues) -> dict[str, torch.Tensor]:
        """Return a copy of the module's state dict, with these values for the parameters.

        Names are those without wrappers. Frozen parameters and buffers are the module's own.

        Raises:
            UserError: the module is sharded over several ranks.
        """
        if self._may_be_sharded:
            raise UserError("center: this rank has shards only of a module that is sharded")
        found = [(e.tensor, v) for e, v in zip(self._parameters(), values.tensors, strict=True)]
        by_object = {id(tensor): value for tensor, value in found}

        def value_of(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in by_object or not tensor.requires_grad:
                return by_object.get(id(tensor), tensor)
            # Another parameter may share the memory of one that is gossiped.
            return next((value for own, value in found if own.is_set_to(tensor)), tensor)

        state = self._net.state_dict(keep_vars=True)
        return {_plain(name): value_of(t).detach().clone() for name, t in state.items()}

    def _parameters(self) -> Iterator[GossipedTensor]:
        return (entry for entry in self.entries if not entry.is_buffer)

    def view_of(self, data: ByteArray) -> TensorValues:
        """Return the parameters in the bytes of a whole snapshot, shape `(nbytes,)`.

        On the CPU they are views, to be read as long as the bytes stay; else they are copies.
        """
        devices = [tensor.device for tensor in self._values.tensors]
        views = zip(self._views(data), devices, strict=True)
        return TensorValues([view.to(device) for view, device in views])

    @torch.no_grad()
    def values_of(self, data: ByteArray, into: TensorValues | None = None) -> TensorValues:
        """Return a copy of the parameters in the bytes of a whole snapshot, shape `(nbytes,)`.

        Args:
            data: the bytes; they are not needed afterwards.
            into: an earlier copy, to be overwritten and returned if it is like the parameters.
        """
        copy = into if into and into.is_like(self._values) else self._values.empty()
        for own, view in zip(copy.tensors, self._views(data), strict=True):
            own.copy_(view)
        return copy

    def _views(self, data: ByteArray) -> Iterator[torch.Tensor]:
        """View the parameters in the bytes of a snapshot."""
        flat = torch.from_numpy(data)
        for entry, offset in zip(self.entries, self.layout.offsets, strict=True):
            if not entry.is_buffer:
                tensor = entry.tensor
                yield flat[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def _walk(self) -> Iterator[GossipedTensor]:
        seen: set[object] = set()
        for name, parameter in self._net.named_parameters():
            if not parameter.requires_grad:
                continue
            _require_mergeable(name, parameter)
            tensor = local(parameter)
            if _is_new(tensor, seen):
                yield GossipedTensor(_plain(name) + place_of(parameter), tensor, is_buffer=False)
        if self._with_buffers:
            for name, buffer in self._state_buffers():
                if not why_not_mergeable(buffer) and _is_new(buffer, seen):
                    yield GossipedTensor(_plain(name), buffer, is_buffer=True)

    def _state_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the floating buffers that are part of the state dict, not mere caches and masks."""
        for name, buffer in _persistent_buffers(self._net):
            if buffer.is_floating_point():
                yield name, buffer


def state_tensors(net: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all that makes up the state of a module, with names as without wrappers.

    These are parameters, frozen ones too, and buffers of the state dict, whatever their dtype; each
    tensor once, and without those that have no values of their own.

    Raises:
        ParametersError: a parameter has no dense memory of its own.
    """
    net, seen = unwrapped(net), set[object]()
    require_plain(net)
    named = [*net.named_parameters(), *_persistent_buffers(net)]
    for name, tensor in named:
        if not why_not_mergeable(tensor) and _is_new(local(tensor), seen):
            yield _plain(name) + place_of(tensor), local(tensor)


def _persistent_buffers(net: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, module in net.named_modules():
        transient = module._non_persistent_buffers_set
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in transient:
                yield name, buffer


def _side_of(tiles: Sequence[Tile]) -> HostSide:
    """Choose what copies and merges tensors, by the devices that they are on."""
    kinds = {tile.room.device.type for tile in tiles}
    return CudaSide(tiles) if "cuda" in kinds else _plain_side_of(tiles)


def _plain_side_of(tiles: Sequence[Tile]) -> HostSide:
    """Choose what copies tensors one after the other, without streams or memory of their own."""
    is_host = all(tile.room.device.type == "cpu" for tile in tiles)
    return HostSide(tiles) if is_host else DeviceSide(tiles)


def _spec(entry: GossipedTensor) -> TensorSpec:
    tensor = entry.tensor
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(entry.name, dtype, tuple(tensor.shape), tensor.element_size())


def unwrapped(net: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside of wrappers, so that wrapped and plain nodes can gossip."""
    while (inner := inside(net)) is not None:
        net = inner
    return net


def inside(net: torch.nn.Module) -> torch.nn.Module | None:
    """Return the module that a wrapper has, `None` if this is none."""
    if isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        module: nn.Module = net.module
        return module
    # Of torch.compile; to import its class takes seconds.
    return net._modules["_orig_mod"] if set(net._modules) == {"_orig_mod"} else None


def _plain(name: str) -> str:
    """Return the name of a tensor as it is without torch.compile."""
    return name.replace("_orig_mod.", "")


def _is_new(tensor: torch.Tensor, seen: set[object]) -> bool:
    """Tell whether this memory was not seen before: tied tensors are merged once."""
    if tensor.numel() == 0 or tensor.data_ptr() == 0:
        return True
    memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
    is_new = memory not in seen
    seen.add(memory)
    return is_new


def _require_mergeable(name: str, tensor: torch.Tensor) -> None:
    reason = why_not_mergeable(tensor)
    if reason:
        raise ParametersError(f"parameter {name!r} cannot be gossiped: {reason}")
