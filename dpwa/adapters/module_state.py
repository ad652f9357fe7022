"""ModuleState selects the gossiped tensors of a module: parameters, and buffers (BatchNorm).

It places each of these tensors in the bytes of a snapshot.
"""

from __future__ import annotations

import bisect
import fnmatch
import hashlib
import itertools
import logging
import math
import operator
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn

from dpwa.adapters.host_side import DeviceSide, HostSide
from dpwa.adapters.plain_tensors import (
    Named,
    is_sharded,
    local,
    parts_apart,
    place_of,
    require_plain,
    require_unsharded,
    spec_of,
    why_not_mergeable,
    why_not_plain,
)
from dpwa.adapters.tensor_merging import Merging, Tile, cut
from dpwa.adapters.tensor_values import TensorValues
from dpwa.algorithms import Values
from dpwa.config import Config
from dpwa.data.kernels import Rounding, is_bit, is_finite, is_narrow, norm
from dpwa.data.layout import FINGERPRINT_BYTES, Layout
from dpwa.data.segments import ByteArray
from dpwa.data.snapshot import MergeTerms, SnapshotCopy
from dpwa.errors import ParametersError, UserError
from dpwa.types import JsonObject
from dpwa.wire.shards import Shard, shard_between

log = logging.getLogger("dpwa.adapters")

INTEGER = "integer buffers"
COMPLEX = "complex buffers"
TRANSIENT = "non-persistent buffers"
KEPT = "buffers kept by `buffers: keep`"
WITHOUT_MEMORY = "buffers without dense memory of their own"
CONSTANT = "constant buffers"
TIED = "tied tensors"


def contents(
    net: nn.Module,
    parameters: Iterable[torch.Tensor],  # the gossiped parameters, each once
    buffers: Iterable[torch.Tensor],  # the gossiped buffers, each once
    statistics: Iterable[nn.Parameter],  # frozen parameters that count as buffers
    constants: int,  # the number of floating buffers that are not statistics
    *,
    with_buffers: bool,  # whether floating buffers are gossiped at all
) -> JsonObject:
    """Count the parameters and buffers of a module."""
    trained, averaged = _counted(parameters), _counted(buffers)
    own = [p for module in net.modules() for p in module._parameters.values() if p is not None]
    of_statistics = {id(p) for p in statistics}
    frozen = {id(p): p for p in own if not p.requires_grad and id(p) not in of_statistics}
    trainable = sum(p.requires_grad for p in own)
    left: Counter[str] = Counter()
    floating = len(of_statistics)
    for module in net.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                reason = _why_alone(module, name, buffer, with_buffers=with_buffers)
                left[reason] += 1
                floating += not reason
    left[CONSTANT] = constants
    tied = trainable - trained["tensors"] + floating - constants - averaged["tensors"]
    left[TIED] = max(0, tied)  # parts of a tied tensor can make the difference negative
    return {
        "parameters": trained,
        "buffers": averaged,
        "frozen": _counted(frozen.values()),
        "left_alone": {reason: n for reason, n in sorted(left.items()) if reason and n},
        "elements": trained["elements"] + averaged["elements"],
        "bytes": trained["bytes"] + averaged["bytes"],
    }


def warn_of_left_out(net: nn.Module, node: str) -> None:
    """Warn of each buffer of a state dict that dpwa cannot send, and give the reason."""
    text = "%s: buffer %r is not gossiped, sent or saved in checkpoints: %s [DPWA-W049]"
    for prefix, module in net.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            is_transient = name.rpartition(".")[2] in module._non_persistent_buffers_set
            reason = "" if is_transient else why_not_plain(buffer)
            if reason:
                log.warning(text, node, name, reason)


def _why_alone(module: nn.Module, name: str, buffer: torch.Tensor, *, with_buffers: bool) -> str:
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


MAX_THREADS = 8  # more threads exceed the memory bandwidth
PIECE_BYTES = 64 * 1024**2  # maximum size of one copy from a device to the host


class FrozenParameters:
    """A module's frozen parameters, with a digest that is computed again only after a change.

    A change in place is noticed by autograd's version counter of the tensor. A change through
    `.data` is not noticed. `named` holds each parameter once, under its name without wrappers.
    """

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]] = ()) -> None:
        self._named = sorted(named, key=lambda item: item[0])
        self._state = self._find_state()

    def still_hold(self) -> bool:
        return self._find_state() == self._state

    def is_same(self, other: FrozenParameters) -> bool:
        """Return whether both objects found the same tensors with the same values."""
        return self._names() == other._names() and self._state == other._state

    def described(self) -> str:
        """Return text with the number and size of the parameters, and a digest of the parameters.

        The digest covers names, dtypes, shapes and bytes. It takes about a second for each GB and
        core.
        """
        digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
        for each in digests(self._named):
            digest.update(each)
        nbytes = sum(tensor.nbytes for _, tensor in self._named)
        return f"{len(self._named)} tensors, {nbytes} bytes, digest {digest.hexdigest()}"

    def _names(self) -> list[str]:
        return [name for name, _ in self._named]

    def _find_state(self) -> list[tuple[int, int]]:
        return [(tensor.data_ptr(), _version(tensor)) for _, tensor in self._named]


def digests(named: Sequence[tuple[str, torch.Tensor]]) -> list[bytes]:
    """Return a digest of the name, dtype, shape and bytes of each tensor.

    This takes about a second for each GB and core.
    """
    threads = min(MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "dpwa-digest") as pool:
        found = pool.map(_digest, [tensor for _, tensor in named])
        kinds = (f"{name} {tensor.dtype} {list(tensor.shape)}".encode() for name, tensor in named)
        return [
            hashlib.blake2b(kind).digest() + of_bytes
            for kind, of_bytes in zip(kinds, found, strict=True)
        ]


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # inference tensors have no version


@torch.no_grad()
def _digest(tensor: torch.Tensor) -> bytes:
    """Return a digest of a tensor's bytes, on any device. Copy the tensor in pieces."""
    digest = hashlib.blake2b()
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    step = PIECE_BYTES // tensor.element_size()
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].contiguous()
        digest.update(piece.view(torch.uint8).cpu().numpy().data)
    return digest.digest()


class ModuleWatch:
    """A record of a module's submodules, its tensors, and the memory of the gossiped tensors.

    The record is checked for changes twice in each training step. The check costs a fraction of a
    walk through `named_parameters`.
    """

    def __init__(
        self, net: nn.Module, statistics: Iterable[nn.Parameter], *, with_buffers: bool
    ) -> None:
        self._modules = list(net.modules())
        self._members = self._find_members()
        self._parameters = [
            parameter
            for module in self._modules
            for parameter in module._parameters.values()
            if parameter is not None
        ]
        self._trainable = self._find_trainable()
        watched: list[torch.Tensor] = [p for p in self._parameters if p.requires_grad]
        watched += statistics
        if with_buffers:
            watched += [
                buffer
                for module in self._modules
                for buffer in module._buffers.values()
                if buffer is not None
            ]
        self._watched = watched
        # A tensor without memory can get memory and stay the same object.
        self._is_certain = not any(map(why_not_plain, watched))
        self._local = local if any(map(is_sharded, watched)) else None
        self._aliases = [t.detach() for t in self._locals()] if self._is_certain else []
        self._dtypes = self._find_dtypes()

    def still_holds(self) -> bool:
        """Return whether no tensor was replaced, frozen, unfrozen, cast, resized or moved."""
        members = self._find_members()
        return (
            self._is_certain
            and len(members) == len(self._members)
            and all(map(operator.is_, members, self._members))
            and self._find_trainable() == self._trainable
            and self._find_dtypes() == self._dtypes
            and all(map(torch.Tensor.is_set_to, self._locals(), self._aliases))
        )

    def _locals(self) -> Iterable[torch.Tensor]:
        return self._watched if self._local is None else map(self._local, self._watched)

    def _find_members(self) -> list[object]:
        """Return the parameters with their names, the buffers, and the children of all modules."""
        members: list[object] = []
        for module in self._modules:
            members += module._parameters
            members += module._parameters.values()
            members += module._buffers.values()
            members += module._modules.values()
        return members

    def _find_trainable(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]

    def _find_dtypes(self) -> list[torch.dtype]:
        return [tensor.dtype for tensor in self._watched]


MAX_DIGESTS = 512  # maximum number of tensors with a digest of their own
MAX_NAMED = 8  # maximum number of names in a message


@dataclass(frozen=True)
class GossipedTensor:
    """A gossiped tensor of the module, or this rank's shard of it."""

    name: str  # without wrapper prefixes
    tensor: torch.Tensor  # the tensor, or a view of the part that no other entry has
    is_buffer: bool
    is_constant: bool = False  # a buffer that was no statistic when it was found, such as a mask


class ModuleState:
    """A module's gossiped tensors: trainable parameters and, if chosen, floating-point buffers."""

    def __init__(
        self,
        net: torch.nn.Module,
        *,
        with_buffers: bool,
        statistics: Sequence[str] = (),  # names of frozen parameters that count as buffers
        fits_frozen: bool = False,  # whether peers must have the same frozen parameters
        # `whole` returns the Euclidean norm over all ranks, from the norm of this rank's shards.
        # All ranks call it together. `None` if the module is not sharded.
        whole: Callable[[float], float] | None = None,
        rounding: Rounding | None = None,  # the way to round results to narrow dtypes
    ) -> None:
        self._net = unwrapped(net)
        self._with_buffers = with_buffers
        self._statistics = statistics
        self._fits_frozen = fits_frozen
        self._frozen = FrozenParameters()
        self._module_watch: ModuleWatch | None = None
        self._side = HostSide(())
        self._rounds = 0
        self.rounding = rounding or Rounding()
        # byte ranges where `kernels.are_finite` allows values that are not finite
        self.spared: list[tuple[int, int]] = []
        # The tensors that `sample` reads, with the index of each end, in elements. `None`: unknown
        # yet.
        self._sampled: tuple[list[tuple[str, torch.Tensor]], list[int]] | None = None
        self._judged: dict[str, bool] = {}  # by name: whether other nodes say a buffer is constant
        self._values = TensorValues(())
        # rises when `refresh` finds new memory or another layout, because older copies of
        # parameters may not fit any more
        self.generation = 0
        self.whole: Callable[[float], float] = whole or float
        self._may_be_sharded = whole is not None
        # each tensor once: larger elements first, then parameters first, then the module's order
        self.entries: tuple[GossipedTensor, ...] = ()
        self.layout = Layout(())
        self.contents: JsonObject = {}  # the counts of gossiped tensors and of other tensors
        self.refresh()

    @classmethod
    def from_module(
        cls,
        net: torch.nn.Module,
        config: Config,
        whole: Callable[[float], float] | None = None,
        rounding: Rounding | None = None,
    ) -> ModuleState:
        return cls(
            net,
            with_buffers=config.buffers == "average",
            statistics=config.statistics,
            fits_frozen=config.state == "trainable",
            whole=whole,
            rounding=rounding,
        )

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes or 0

    @property
    def constants(self) -> list[str]:
        """The names of the constant buffers, such as masks. All nodes agree on them."""
        return [entry.name for entry in self.entries if entry.is_constant]

    @constants.setter
    def constants(self, names: list[str]) -> None:
        self._judged = {e.name: e.name in names for e in self.entries if e.is_buffer}
        self._module_watch = None
        self.refresh()

    def refresh(self) -> None:
        """Update the list of tensors if any was replaced, frozen, cast, resized or moved.

        Raises `ParametersError` if no trainable parameter is left to gossip.
        """
        watch = self._module_watch
        if watch is not None and watch.still_holds() and self._frozen.still_hold():
            return
        self._module_watch = None
        require_plain(self._net)
        if not self._may_be_sharded:
            require_unsharded(self._net)
        # With the largest elements first, each tensor is aligned without padding.
        entries = tuple(sorted(self._walk(), key=lambda e: -e.tensor.element_size()))
        if not any(e.tensor.numel() for e in entries if not e.is_buffer):
            found = " with any elements" if any(not e.is_buffer for e in entries) else ""
            if self._may_be_sharded:
                found += " on this rank. Shard the module over fewer ranks"
            raise ParametersError(
                f"{type(self._net).__name__} has no trainable floating-point parameter{found}"
                " [DPWA-E110]"
            )
        statistics = [parameter for _, parameter in self._find_statistics()]
        layout = Layout(
            tuple(spec_of(e.name, e.tensor) for e in entries), self._find_frozen(entries)
        )
        parameters = [entry.tensor for entry in entries if not entry.is_buffer]
        values = TensorValues(parameters, self.rounding)
        if layout != self.layout or not values.is_same_memory(self._values):
            self.generation += 1
            self._values = values
        if layout != self.layout:
            self.layout = layout  # an equal layout is kept, because it has computed its fingerprint
        self.entries = entries
        self.spared[:] = [  # in place, because other threads read the list
            (offset, offset + entry.tensor.nbytes)
            for entry, offset in zip(entries, layout.offsets, strict=True)
            if entry.is_constant
        ]
        self.contents = contents(
            self._net,
            parameters,
            [entry.tensor for entry in entries if entry.is_buffer and not entry.is_constant],
            statistics,
            len(self.spared),
            with_buffers=self._with_buffers,
        )
        self._side = _side_of(self._cut(values))
        self._sampled = None
        self._module_watch = ModuleWatch(self._net, statistics, with_buffers=self._with_buffers)

    def _find_frozen(self, entries: Sequence[GossipedTensor]) -> str:
        if not self._fits_frozen:
            return ""
        named = _on_this_rank(
            (name, p) for name, p in self._net.named_parameters() if not p.requires_grad
        )
        frozen = FrozenParameters(parts_apart(named, [(e.name, e.tensor) for e in entries]))
        if self.layout.frozen and frozen.is_same(self._frozen):
            return self.layout.frozen
        self._frozen = frozen
        return frozen.described()

    def _cut(self, values: TensorValues) -> tuple[Tile, ...]:
        """Divide a snapshot of given parameters and of the module's buffers into tiles."""
        parameters = iter(values.tensors)
        tensors = [
            (
                entry.tensor if entry.is_buffer else next(parameters),
                entry.is_buffer,
                entry.is_constant,
            )
            for entry in self.entries
        ]
        return cut(tensors, self.layout)

    def handed_on(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the module's tensors that are in the training state. Shared tensors come only once.

        These are all tensors of the module. If nodes already agree on the frozen parameters, these
        are only the gossiped tensors.
        """
        if not self._fits_frozen:
            return state_tensors(self._net)
        return ((entry.name, entry.tensor) for entry in self.entries)

    def rest(self) -> dict[str, str]:
        """Return digests, by name, of frozen parameters and of buffers that are not gossiped.

        Counters, such as a batch norm's number of batches, are left out, because they may differ.
        If there are more than `MAX_DIGESTS` tensors, the last ones share one digest.
        """
        others = [
            (name, tensor)
            for name, tensor in state_tensors(self._net)
            if (tensor.ndim or tensor.is_floating_point())
            and not (self._fits_frozen and isinstance(tensor, nn.Parameter))  # equal on all nodes
        ]
        named = parts_apart(others, [(entry.name, entry.tensor) for entry in self.entries])
        found = [hashlib.blake2b(each, digest_size=8).hexdigest() for each in digests(named)]
        rest = {name: digest for (name, _), digest in zip(named, found, strict=True)}
        if more := found[MAX_DIGESTS:]:
            together = hashlib.blake2b("".join(more).encode(), digest_size=8).hexdigest()
            rest = dict(list(rest.items())[:MAX_DIGESTS]) | {f"{len(more)} others": together}
        return rest

    @torch.no_grad()
    def sample(self, turn: int, turns: int) -> dict[str, int]:
        """Return checksums, by name, of part `turn` of `turns` parts of the parameters.

        These parameters must be equal on all nodes. `turns` successive calls cover them all. Frozen
        parameters are included, unless nodes have compared them already. If the part is on a
        device, it is copied to the host at once.
        """
        named, ends = self._sampled or self._find_sampled()
        total = ends[-1] if ends else 0
        start, stop = (total * at // turns for at in (turn % turns, turn % turns + 1))
        names, parts = [], []
        index = bisect.bisect_right(ends, start)
        while start < stop:
            name, tensor = named[index]
            first, end = ends[index] - tensor.numel(), min(stop, ends[index])
            if start < end:
                names.append(name)
                parts.append(_part(tensor, start - first, end - first))
            index, start = index + 1, end
        data = _on_host(parts)
        return {name: zlib.crc32(each.numpy().data) for name, each in zip(names, data, strict=True)}

    def _find_sampled(self) -> tuple[list[tuple[str, torch.Tensor]], list[int]]:
        differ = {name for name, _ in self._find_statistics()}
        named: list[tuple[str, torch.Tensor]] = [
            (_plain(name), parameter)
            for name, parameter in self._net.named_parameters()
            if (parameter.requires_grad or not self._fits_frozen)
            and _plain(name) not in differ
            and not why_not_plain(parameter)
        ]
        ends = list(itertools.accumulate(tensor.numel() for _, tensor in named))
        self._sampled = named, ends
        return named, ends

    def start_copy(
        self, data: ByteArray, check_finite: bool, values: Values | None = None
    ) -> SnapshotCopy:
        """Start to copy every tensor to its place in the snapshot `data`, shape `(nbytes,)`.

        After the call, the caller may change the tensors. On the CPU the copy is then complete. If
        `values` are given, they are copied instead of the parameters, and the call waits for the
        copy. Raises `ParametersError` if `values` do not have the parameters' shapes, dtypes and
        devices.
        """
        return self._side_for(values).start_copy(data, check_finite)

    def _side_for(self, values: Values | None) -> HostSide:
        if values is None or values is self._values:
            return self._side
        if not isinstance(values, TensorValues) or not values.is_like(self._values):
            raise ParametersError(
                "the values that an algorithm publishes must have the shapes, dtypes and devices "
                f"of the {len(self._values.tensors)} trainable parameters of "
                f"{type(self._net).__name__} [DPWA-E115]"
            )
        return _plain_side_of(self._cut(values))

    def merging(self, terms: MergeTerms) -> Merging:
        self._rounds += 1
        return self._side.merging(terms, self._rounds, self.rounding)

    def merge(self, start: int, data: ByteArray, terms: MergeTerms) -> float:
        merging = self.merging(terms)
        merging.merge_bytes(start, data)
        return self.whole(merging.consensus_distance)

    def begin_mean(self) -> None:
        """Start to add rounding errors to the next merge, because several merges form one mean."""
        narrow = [
            (offset, entry.tensor.device)
            for entry, offset in zip(self.entries, self.layout.offsets, strict=True)
            if is_narrow(entry.tensor)
        ]
        if narrow:  # narrow tensors are the last entries
            self.rounding.keep_rests(narrow[0][0], self.nbytes, {device for _, device in narrow})

    def distance(self, data: ByteArray, start: int, base: ByteArray | None) -> float:
        """Return the Euclidean distance between a peer's snapshot and the module's tensors.

        The distance is exact. It includes parameters and buffers, because a malicious peer may
        change either. Sums over tiles, in float32 or wider, are added up in float64. `data` holds
        whole pieces of the peer's snapshot from byte `start` on. It must be writable, but this does
        not write to it. If `base`, a whole snapshot, is given, it is compared instead of the
        parameters in training. The result is NaN or infinite if a value is not finite, or if a sum
        overflows.
        """
        return self.whole(self._side.distance(data, start, base))

    def values(self) -> TensorValues:
        """Return the trainable parameters. The object is new only if a tensor was replaced."""
        return self._values

    def buffers_shard(self) -> Shard | None:
        places = zip(self.layout.tensors, self.layout.offsets, self.entries, strict=True)
        found = [(start, start + spec.nbytes) for spec, start, entry in places if entry.is_buffer]
        return shard_between(self.layout, found[0][0], found[-1][1]) if found else None

    def norm(self) -> float:
        norms = (float(norm(tensor)) for tensor in self._values.tensors)
        return self.whole(math.hypot(*norms))

    def state_with(self, values: TensorValues) -> dict[str, torch.Tensor]:
        """Return a copy of the module's state dict, with `values` as the trainable parameters.

        Names have no wrapper prefixes. Frozen parameters and buffers are the module's own. Raises
        `UserError` if the module is sharded over several ranks.
        """
        if self._may_be_sharded:
            raise UserError(
                "a sharded module has no center that can be read, because no rank has the whole "
                "center [DPWA-E135]"
            )
        copies: dict[int, torch.UntypedStorage] = {}

        def there(tensor: torch.Tensor) -> torch.Tensor:
            """Return the tensor in the copied memory that corresponds to a tensor of the module."""
            place = tensor.storage_offset(), tensor.shape, tensor.stride()
            return tensor.new_empty(0).set_(copies[_memory(tensor)], *place)

        for own, value in zip(self._values.tensors, values.tensors, strict=True):
            if own.numel():
                if _memory(own) not in copies:
                    copies[_memory(own)] = own.untyped_storage().clone()  # type: ignore[no-untyped-call]
                there(own).copy_(value)
        return {
            _plain(name): (there(tensor) if _memory(tensor) in copies else tensor).clone()
            for name, tensor in self._net.state_dict().items()
        }

    def module_parameters(self) -> Iterator[nn.Parameter]:
        return self._net.parameters()

    def parameters(self) -> Iterator[GossipedTensor]:
        return (entry for entry in self.entries if not entry.is_buffer)

    def view_of(self, data: ByteArray) -> TensorValues:
        """Return the trainable parameters of a whole snapshot, from bytes of shape `(nbytes,)`.

        On the CPU these are views, which are valid as long as the bytes are. On other devices they
        are copies.
        """
        devices = [tensor.device for tensor in self._values.tensors]
        views = zip(self._views(data), devices, strict=True)
        return TensorValues([view.to(device) for view, device in views], self.rounding)

    @torch.no_grad()
    def values_of(self, data: ByteArray, into: Values | None = None) -> tuple[TensorValues, float]:
        """Copy the parameters of a whole snapshot. Return the copy and its distance to the module.

        The copy goes into `into`, an earlier copy, if its shapes, dtypes and devices fit.
        """
        if not (isinstance(into, TensorValues) and into.is_like(self._values)):
            into = self._values.empty()
        for own, view in zip(into.tensors, self._views(data), strict=True):
            own.copy_(view)
        return into, self.whole(into.distance(self._values))

    def _views(self, data: ByteArray) -> Iterator[torch.Tensor]:
        flat = torch.from_numpy(data)
        for entry, offset in zip(self.entries, self.layout.offsets, strict=True):
            if not entry.is_buffer:
                tensor = entry.tensor
                yield flat[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def _walk(self) -> Iterator[GossipedTensor]:
        trained = _on_this_rank(
            (name, parameter)
            for name, parameter in self._net.named_parameters()
            if parameter.requires_grad and _require_mergeable(name, parameter)
        )
        buffers = [
            (name, buffer)
            for name, buffer in _persistent_buffers(self._net)
            if self._with_buffers
            and buffer.is_floating_point()  # other buffers are not statistics
            and not why_not_mergeable(buffer)
        ]
        for name, tensor in parts_apart(trained):
            yield GossipedTensor(name, tensor, is_buffer=False)
        for name, tensor in parts_apart(
            _on_this_rank([*buffers, *self._find_statistics()]), trained
        ):
            is_constant = self._judged.get(name)
            if is_constant is None:
                is_constant = _is_constant(tensor)
            yield GossipedTensor(name, tensor, is_buffer=True, is_constant=is_constant)

    def _find_statistics(self) -> list[tuple[str, nn.Parameter]]:
        """Return the frozen parameters whose names match the setting `statistics`. Raises
        `UserError` if a pattern matches no parameter.
        """
        if not self._statistics:
            return []
        named = {_plain(name): parameter for name, parameter in self._net.named_parameters()}
        for pattern in self._statistics:
            if not fnmatch.filter(named, pattern):
                known = [name for name in named if not named[name].requires_grad][:MAX_NAMED]
                raise UserError(
                    f"statistics: no parameter is named {pattern!r} (frozen parameters: "
                    f"{', '.join(known) or 'none'}) [DPWA-E311]"
                )
        return [
            (name, parameter)
            for name, parameter in named.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._statistics)
            and parameter.is_floating_point()
            and not (parameter.requires_grad or why_not_mergeable(parameter))
        ]


def state_tensors(net: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a module's state, with their names without wrapper prefixes.

    These are all parameters, including frozen ones, and the buffers of the state dict, of any
    dtype. Each tensor is yielded once. Buffers without memory of their own are left out. Raises
    `ParametersError` if a parameter has no dense memory of its own.
    """
    net = unwrapped(net)
    require_plain(net)
    named = [*net.named_parameters(), *_persistent_buffers(net)]
    plain = ((name, tensor) for name, tensor in named if not why_not_mergeable(tensor))
    return iter(parts_apart(_on_this_rank(plain)))


def _on_this_rank(named: Iterable[Named]) -> list[Named]:
    """Return this rank's shards of tensors, with the tensors' names without wrapper prefixes."""
    return [(_plain(name) + place_of(tensor), local(tensor)) for name, tensor in named]


def _part(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return the bytes of a range of a tensor's elements, in their order, shape `(nbytes,)`."""
    if tensor.is_contiguous():
        # A dimension of size 1 may have any stride.
        flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    else:  # copy only the rows of the range
        row = tensor.numel() // len(tensor)
        first = start // row
        flat = tensor.detach()[first : -(-stop // row)].reshape(-1).contiguous()
        start, stop = start - first * row, stop - first * row
    if flat.is_conj() or flat.is_neg():
        return flat[start:stop].resolve_conj().resolve_neg().view(torch.uint8)
    return flat[start:stop].view(torch.uint8)


def _on_host(parts: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    if all(part.is_cpu for part in parts):
        return parts
    if len({part.device for part in parts}) > 1:
        return [part.cpu() for part in parts]
    return torch.split(torch.cat(parts).cpu(), [part.numel() for part in parts])  # a single copy


def _persistent_buffers(net: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, module in net.named_modules():
        transient = module._non_persistent_buffers_set
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in transient:
                yield name, buffer


def _side_of(tiles: Sequence[Tile]) -> HostSide:
    kinds = {tile.room.device.type for tile in tiles}
    if "cuda" in kinds:
        from dpwa.adapters.cuda_side import CudaSide

        return CudaSide(tiles)
    return _plain_side_of(tiles)


def _plain_side_of(tiles: Sequence[Tile]) -> HostSide:
    """Return a `HostSide` or `DeviceSide`, which has no CUDA streams and no staging buffers."""
    is_host = all(tile.room.device.type == "cpu" for tile in tiles)
    return HostSide(tiles) if is_host else DeviceSide(tiles)


def unwrapped(net: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside its wrappers, so that nodes with and without wrappers can gossip."""
    while (inner := inside(net)) is not None:
        net = inner
    return net


def inside(net: torch.nn.Module) -> torch.nn.Module | None:
    if isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        module: nn.Module = net.module
        return module
    # A wrapper of torch.compile. Importing its class would take seconds.
    return net._modules["_orig_mod"] if set(net._modules) == {"_orig_mod"} else None


def _plain(name: str) -> str:
    """Return a tensor's name without the prefixes that torch.compile adds."""
    return name.replace("_orig_mod.", "")


def _memory(tensor: torch.Tensor) -> int:
    """Return the address of the start of a tensor's memory, or 0 if it has no memory."""
    return 0 if why_not_plain(tensor) else tensor.untyped_storage().data_ptr()


def _is_constant(buffer: torch.Tensor) -> bool:
    """Return whether a buffer is constant: only 0 and 1, like a mask, or any non-finite value."""
    if not is_finite(buffer):
        return True
    ones = buffer == 1.0
    return bool(is_bit(buffer).all() and ones.any() and not ones.all())


def _require_mergeable(name: str, tensor: torch.Tensor) -> bool:
    reason = why_not_mergeable(tensor)
    if reason:
        raise ParametersError(f"parameter {name!r} cannot be gossiped: {reason} [DPWA-E109]")
    return True
