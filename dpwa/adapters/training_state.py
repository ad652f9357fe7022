"""The state of a training in torch: a module and, if wanted, its optimizer, as images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgpack
import safetensors
import safetensors.torch
import torch

from dpwa.adapters.module_state import state_tensors
from dpwa.data.kernels import is_finite
from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError
from dpwa.state.face import Target, UnfitStateError
from dpwa.state.image import ImageLayout, Part, can_be_stored
from dpwa.wire import limits
from dpwa.wire.messages import unpack

MOST_OPTIMIZER_BYTES = 64 * 1024**2  # beside so many times the size of the module:
MOST_OPTIMIZER_SIZES = 16
_GROUP = "group"
_LEARNING_RATES = ("lr", "initial_lr")
_OF_THE_DEVICE = ("capturable", "foreach", "fused")  # which may be another one here

Named = Iterable[tuple[str, torch.Tensor]]


class TrainingState:
    """What a node hands on to nodes that join late, keeps on disk, and takes over itself.

    Args:
        net: the module; its tensors keep their identity when a state is loaded.
        keeps_lr: whether learning rates stay as they are here: nodes have different ones.
        is_guarded: whether parameters that are not finite are refused.

    Attributes:
        optimizer: whose state is part of it; `None`: none.
    """

    def __init__(
        self, net: torch.nn.Module, *, keeps_lr: bool = False, is_guarded: bool = True
    ) -> None:
        self._net = net
        self._keeps_lr = keeps_lr
        self._is_guarded = is_guarded
        self.optimizer: torch.optim.Optimizer | None = None

    def capture(self) -> dict[str, Part]:
        """Copy all parts, from whatever device to memory of the host."""
        named = _stored(state_tensors(self._net))
        layout = _layout_of(named)
        parts = {"model": Part(layout.tensors, layout, _copied(layout, named))}
        if self.optimizer is not None:
            part = _optimizer_part(self.optimizer)
            if part is not None:
                parts["optimizer"] = part
        return parts

    def model(self) -> Target:
        """Return the module, to be replaced."""
        layout = _layout_of(_stored(state_tensors(self._net)))
        return Target("model", layout.tensors, layout, layout.nbytes, self._load_model)

    def optimizer_target(self, optimizer: torch.optim.Optimizer) -> Target:
        """Return the state of the optimizer, to be replaced."""
        most_bytes = MOST_OPTIMIZER_BYTES + MOST_OPTIMIZER_SIZES * self.model().most_bytes
        return Target("optimizer", _kind_of(optimizer), None, most_bytes, self._load_optimizer)

    @torch.no_grad()
    def _load_model(self, image: ByteArray, numbers: bytes) -> None:  # noqa: ARG002
        named = _stored(state_tensors(self._net))
        layout = _layout_of(named)
        data = layout.tensors_of(image)
        if data is None:
            raise UnfitStateError("its header is not that of this model")
        found = dict(_views(layout, data))
        if self._is_guarded and not _are_finite(self._net, named, found):
            raise UnfitStateError("it has parameters that are not finite")
        for name, tensor in named:
            tensor.copy_(found[name])

    def _load_optimizer(self, image: ByteArray, numbers: bytes) -> None:
        if self.optimizer is None:
            return
        try:
            tensors = safetensors.torch.load(image.tobytes())
            state = _state_dict_of(self.optimizer, tensors, unpack(numbers))
            if self._keeps_lr:
                _keep_learning_rates(self.optimizer, state)
            self.optimizer.load_state_dict(state)
        except (
            safetensors.SafetensorError,
            ProtocolError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            RuntimeError,
        ) as error:
            raise UnfitStateError(f"{type(error).__name__}: {error}") from None


# Images


def _stored(named: Named) -> list[tuple[str, torch.Tensor]]:
    """Return tensors as the format can store them: those of no known dtype are left out."""
    stored = []
    for name, tensor in named:
        values = tensor.detach()
        if values.dtype == torch.complex128:
            values = torch.view_as_real(values)
        if can_be_stored(_dtype(values)):
            stored.append((name, values))
    return stored


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _layout_of(named: Named) -> ImageLayout:
    return ImageLayout.of(
        TensorSpec(name, _dtype(tensor), tuple(tensor.shape), tensor.element_size())
        for name, tensor in named
    )


@torch.no_grad()
def _copied(layout: ImageLayout, named: Named) -> ByteArray:
    """Return a new image of tensors."""
    image = layout.empty()
    views = dict(_views(layout, image[len(layout.header) :]))
    for name, tensor in named:
        views[name].copy_(tensor)
    return image


def _views(layout: ImageLayout, data: ByteArray) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in the bytes behind the header of an image."""
    flat = torch.from_numpy(data) if data.nbytes else torch.empty(0, dtype=torch.uint8)
    for spec, start in zip(layout.tensors.tensors, layout.tensors.offsets, strict=True):
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if spec.nbytes:
            yield spec.name, flat[start : start + spec.nbytes].view(dtype).view(spec.shape)
        else:
            yield spec.name, torch.empty(spec.shape, dtype=dtype)


def _are_finite(net: torch.nn.Module, named: Named, found: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether all parameters are finite; buffers, such as masks, need not be."""
    parameters = {p.data_ptr() for p in net.parameters() if p.requires_grad}
    return all(
        is_finite(found[name])
        for name, tensor in named
        if tensor.data_ptr() in parameters and tensor.is_floating_point()
    )


# Optimizers


def _kind_of(optimizer: torch.optim.Optimizer) -> Layout:
    """Describe an optimizer: its class, and the parameters of each group."""
    kind = type(optimizer)
    specs = [TensorSpec(f"{kind.__module__}.{kind.__qualname__}", "optimizer", (), 0)]
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            name = f"parameter {index} of group {number}"
            specs.append(TensorSpec(name, _dtype(parameter), tuple(parameter.shape), 0))
    return Layout(tuple(specs))


def _optimizer_part(optimizer: torch.optim.Optimizer) -> Part | None:
    """Copy the state of an optimizer; `None` if it is not made of tensors and plain values."""
    state = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {"groups": [], "state": {}}
    for number, group in enumerate(state["param_groups"]):
        own = {key: value for key, value in group.items() if key != "params"}
        values["groups"].append(_without_tensors(f"{_GROUP}.{number}", own, tensors))
    for index, own in state["state"].items():
        values["state"][str(index)] = _without_tensors(str(index), own, tensors)
    try:
        numbers = msgpack.packb(values)
    except (TypeError, ValueError, OverflowError):
        return None
    named = _stored(tensors.items())
    if len(named) < len(tensors) or len(numbers) > limits.MAX_DETAIL_BYTES:
        return None
    layout = _layout_of(named)
    return Part(_kind_of(optimizer), layout, _copied(layout, named), bytes(numbers))


def _without_tensors(
    prefix: str, own: Mapping[str, Any], tensors: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the plain values of a mapping; note its tensors under names with the prefix."""
    tensors.update({f"{prefix}.{k}": v for k, v in own.items() if isinstance(v, torch.Tensor)})
    return {key: value for key, value in own.items() if not isinstance(value, torch.Tensor)}


def _state_dict_of(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a state that `optimizer.load_state_dict` takes.

    Raises:
        LookupError, TypeError, ValueError: it does not belong to this optimizer.
    """
    present = optimizer.state_dict()["param_groups"]
    groups = [dict(group) for group in values["groups"]]
    state: dict[int, dict[str, Any]] = {int(i): dict(own) for i, own in values["state"].items()}
    for name, tensor in tensors.items():
        place, key = name.rsplit(".", 1)
        if place.startswith(_GROUP):
            groups[int(place.removeprefix(f"{_GROUP}."))][key] = tensor
        else:
            state[int(place)][key] = tensor
    count = sum(len(group["params"]) for group in present)
    if len(groups) != len(present) or not all(0 <= index < count for index in state):
        raise ValueError("it is of other parameters")
    for own, theirs in zip(present, groups, strict=True):
        _adapt(own, theirs)
    return {"state": state, "param_groups": groups}


def _adapt(own: Mapping[str, Any], theirs: dict[str, Any]) -> None:
    """Make a foreign group one of this optimizer."""
    if {*own} != {*theirs, "params"}:
        raise ValueError(f"a group has {sorted(theirs)}")
    theirs["params"] = own["params"]
    theirs.update({key: own[key] for key in _OF_THE_DEVICE if key in own})
    for key, value in own.items():
        if _is_number(value) and not _is_number(theirs[key]):
            raise ValueError(f"a group has {key} {theirs[key]!r:.40}")
        if isinstance(value, tuple):
            theirs[key] = tuple(theirs[key])


def _keep_learning_rates(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    for own, group in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({key: own[key] for key in _LEARNING_RATES if key in own})


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, torch.Tensor))
