"""The state of an optimizer in torch: copied into an image, and taken over from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack
import safetensors.torch
import torch

from dpwa.adapters.optimizer_forms import adapted, check_own
from dpwa.adapters.sharded_tensors import local, shard_like_parameters
from dpwa.adapters.tensor_images import copied, dtype_name, layout_of, storable
from dpwa.data.kernels import is_finite
from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.state.image import StatePart
from dpwa.state.target import UnfitStateError
from dpwa.wire import limits
from dpwa.wire.messages import unpack

_GROUP = "group"
_LEARNING_RATES = ("lr", "initial_lr")


def kind_of(optimizer: torch.optim.Optimizer) -> Layout:
    """Describe an optimizer: its class, and the parameters of each group."""
    kind = type(optimizer)
    specs = [TensorSpec(f"{kind.__module__}.{kind.__qualname__}", "optimizer", (), 0)]
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            name = f"parameter {index} of group {number}"
            specs.append(TensorSpec(name, dtype_name(parameter), tuple(parameter.shape), 0))
    return Layout(tuple(specs))


def optimizer_part(optimizer: torch.optim.Optimizer) -> StatePart | None:
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
    named = storable(tensors.items())
    if len(named) < len(tensors) or len(numbers) > limits.MAX_DETAIL_BYTES:
        return None
    layout = layout_of(named)
    return StatePart(kind_of(optimizer), layout, copied(layout, named), bytes(numbers))


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    image: ByteArray,
    numbers: bytes,
    *,
    keeps_lr: bool,
    is_guarded: bool,
    tries: bool = False,
) -> None:
    """Take over the state of another optimizer, all of it or nothing.

    Args:
        optimizer: whose state is replaced.
        image: the tensors, as `optimizer_part` lays them out.
        numbers: all that is no tensor, likewise.
        keeps_lr: whether learning rates stay as they are here.
        is_guarded: whether a state that is not finite is refused.
        tries: whether it is only tried, and nothing is changed in any case.

    Raises:
        UnfitStateError: this optimizer would not have a state of that form; nothing is changed.
    """
    before = optimizer.state, optimizer.param_groups
    try:
        tensors = safetensors.torch.load(image.tobytes())
        if is_guarded:
            _check_finite(tensors)
        state = _state_dict_of(optimizer, tensors, unpack(numbers))
        if keeps_lr:
            _keep_learning_rates(optimizer, state)
        optimizer.load_state_dict(state)
        shard_like_parameters(optimizer)
        if tries:
            optimizer.state, optimizer.param_groups = before
    except Exception as error:  # noqa: BLE001 - of whatever optimizer, and whatever was sent
        optimizer.state, optimizer.param_groups = before
        reason = str(error) if isinstance(error, UnfitStateError) else f"{error!r:.300}"
        raise UnfitStateError(reason) from None


def _without_tensors(
    prefix: str, own: Mapping[str, Any], tensors: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the plain values of a mapping; note its tensors under names with the prefix."""
    found = {k: local(v) for k, v in own.items() if isinstance(v, torch.Tensor)}
    tensors.update({f"{prefix}.{key}": tensor for key, tensor in found.items()})
    return {key: value for key, value in own.items() if not isinstance(value, torch.Tensor)}


def _state_dict_of(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a state that fits, for `optimizer.load_state_dict`.

    Raises:
        UnfitStateError, LookupError, TypeError, ValueError: it does not belong to this optimizer.
    """
    groups = [dict(group) for group in values["groups"]]
    state: dict[int, dict[str, Any]] = {int(i): dict(own) for i, own in values["state"].items()}
    for name, tensor in tensors.items():
        place, key = name.rsplit(".", 1)
        if place.startswith(_GROUP):
            groups[int(place.removeprefix(f"{_GROUP}."))][key] = tensor
        else:
            state[int(place)][key] = tensor
    groups = adapted(optimizer, groups)
    check_own(optimizer, groups, state)
    return {"state": state, "param_groups": groups}


def _check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise UnfitStateError(f"{name!r:.80} is not finite")


def _keep_learning_rates(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    for own, group in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for key in _LEARNING_RATES:
            if key in own:
                group[key] = own[key]
            else:
                group.pop(key, None)
