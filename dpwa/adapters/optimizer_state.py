"""The state of optimizers in torch: copied into an image, and taken over from one.

Several are as one: their groups and parameters are numbered on. Learning rate schedulers go with
them, as the numbers that they have come to.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgpack
import safetensors.torch
import torch

from dpwa.adapters.optimizer import Optimizers, is_training
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
_RATES_OF_SCHEDULERS = ("base_lrs", "_last_lr")
_KIND = "kind"


def kind_of(optimizers: Optimizers) -> Layout:
    """Describe optimizers: the class of each, and the parameters of each group."""
    specs = list[TensorSpec]()
    for optimizer, (first, _) in zip(optimizers.given, _places(optimizers), strict=True):
        kind = type(optimizer)
        specs.append(TensorSpec(f"{kind.__module__}.{kind.__qualname__}", "optimizer", (), 0))
        for number, group in enumerate(optimizer.param_groups, first):
            for index, parameter in enumerate(group["params"]):
                name = f"parameter {index} of group {number}"
                specs.append(TensorSpec(name, dtype_name(parameter), tuple(parameter.shape), 0))
    return Layout(tuple(specs))


def optimizer_part(optimizers: Optimizers) -> StatePart | None:
    """Copy the state of optimizers; `None` if it is not made of tensors and plain values."""
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {"groups": [], "state": {}}
    for optimizer, (_, first) in zip(optimizers.given, _places(optimizers), strict=True):
        state = optimizer.state_dict()
        for group in state["param_groups"]:
            own = {key: value for key, value in group.items() if key != "params"}
            prefix = f"{_GROUP}.{len(values['groups'])}"
            values["groups"].append(_without_tensors(prefix, own, tensors))
        for index, own in state["state"].items():
            place = str(first + index)
            values["state"][place] = _without_tensors(place, own, tensors)
    values["schedulers"] = [progress_of(each) for each in optimizers.schedulers or ()]
    try:
        numbers = msgpack.packb(values)
    except (TypeError, ValueError, OverflowError):
        return None
    named = storable(tensors.items())
    if len(named) < len(tensors) or len(numbers) > limits.MAX_DETAIL_BYTES:
        return None
    layout = layout_of(named)
    return StatePart(kind_of(optimizers), layout, copied(layout, named), bytes(numbers))


def load_optimizers(
    optimizers: Optimizers,
    image: ByteArray,
    numbers: bytes,
    *,
    keeps_lr: bool,
    is_guarded: bool,
    tries: bool = False,
) -> None:
    """Take over the state of other optimizers, all of it or nothing.

    Schedulers go on as theirs, if there were such.

    Args:
        optimizers: whose state is replaced.
        image: the tensors, as `optimizer_part` lays them out.
        numbers: all that is no tensor, likewise.
        keeps_lr: whether learning rates stay as they are here.
        is_guarded: whether a state that is not finite is refused.
        tries: whether it is only tried, and nothing is changed in any case.

    Raises:
        UnfitStateError: these optimizers would not have a state of that form; nothing is changed.
    """
    before = [(each, each.state, each.param_groups) for each in optimizers.given]
    training = [each for each in optimizers.to_prepare if is_training(each)]
    try:
        tensors = safetensors.torch.load(image.tobytes())
        if is_guarded:
            _check_finite(tensors)
        values = unpack(numbers)
        states = _state_dicts_of(optimizers, tensors, values)
        for optimizer, state in zip(optimizers.given, states, strict=True):
            if keeps_lr:
                _keep_learning_rates(optimizer, state)
            optimizer.load_state_dict(state)
            shard_like_parameters(optimizer)
        if tries:
            _put_back(before)
    except Exception as error:  # noqa: BLE001 - of whatever optimizer, and whatever was sent
        _put_back(before)
        reason = str(error) if isinstance(error, UnfitStateError) else f"{error!r:.300}"
        raise UnfitStateError(reason) from None
    if not tries:
        for each in training:  # what is handed on was not
            each.train()
        try:
            resume(optimizers.schedulers or (), values["schedulers"], keeps_lr=keeps_lr)
        except Exception:  # noqa: BLE001 - of whatever scheduler, and whatever was sent
            optimizers.have_schedules = False
        else:
            optimizers.have_schedules = True


def _put_back(before: list[tuple[torch.optim.Optimizer, Any, Any]]) -> None:
    for optimizer, state, groups in before:
        if optimizer.state is not state or optimizer.param_groups is not groups:
            optimizer.state, optimizer.param_groups = state, groups


def _places(optimizers: Optimizers) -> Iterator[tuple[int, int]]:
    """Yield where the groups, and the parameters, of each begin among those of all."""
    group, parameter = 0, 0
    for optimizer in optimizers.given:
        yield group, parameter
        group += len(optimizer.param_groups)
        parameter += sum(len(each["params"]) for each in optimizer.param_groups)


def _without_tensors(
    prefix: str, own: Mapping[str, Any], tensors: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the plain values of a mapping; note its tensors under names with the prefix."""
    found = {k: local(v) for k, v in own.items() if isinstance(v, torch.Tensor)}
    tensors.update({f"{prefix}.{key}": tensor for key, tensor in found.items()})
    return {key: value for key, value in own.items() if not isinstance(value, torch.Tensor)}


def _state_dicts_of(
    optimizers: Optimizers,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return states that fit, for `load_state_dict` of each.

    Raises:
        UnfitStateError, LookupError, TypeError, ValueError: they do not belong to these.
    """
    groups = [dict(group) for group in values["groups"]]
    state: dict[int, dict[str, Any]] = {int(i): dict(own) for i, own in values["state"].items()}
    for name, tensor in tensors.items():
        place, key = name.rsplit(".", 1)
        if place.startswith(_GROUP):
            groups[int(place.removeprefix(f"{_GROUP}."))][key] = tensor
        else:
            state[int(place)][key] = tensor
    states, starts = [], [*_places(optimizers)]
    for optimizer, (group, first), (last_group, last) in zip(
        optimizers.given, starts, [*starts[1:], (None, math.inf)], strict=True
    ):
        of_groups = adapted(optimizer, groups[group:last_group])
        own = {i - first: kept for i, kept in state.items() if (first or -math.inf) <= i < last}
        check_own(optimizer, of_groups, own)
        states.append({"state": own, "param_groups": of_groups})
    return states


def _check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise UnfitStateError(f"{name!r:.80} is not finite")


def _keep_learning_rates(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    for own, group in zip(optimizer.param_groups, state["param_groups"], strict=True):
        lr, initial = (group.get(key) for key in _LEARNING_RATES)
        for key in _LEARNING_RATES:
            if key in own:
                group[key] = own[key]
            else:
                group.pop(key, None)
        if lr is not None and initial and "initial_lr" in own:  # a schedule has come so far
            group["lr"] = own["initial_lr"] * float(lr / initial)


# Schedulers


def progress_of(scheduler: Any) -> dict[str, Any]:
    """Return the numbers that a scheduler has come to, in plain data, and what it is."""
    settings = {*inspect.signature(type(scheduler)).parameters} - {"last_epoch"}
    state = {k: v for k, v in scheduler.state_dict().items() if k not in settings}
    return {_KIND: type(scheduler).__qualname__, **_numbers_of(state)}


def resume(
    schedulers: Sequence[Any], progress: Sequence[Mapping[str, Any]], *, keeps_lr: bool = False
) -> None:
    """Let schedulers go on where others have come to, with settings of their own.

    Raises:
        UnfitStateError: they would not have come to such numbers; nothing is changed.
    """
    if len(schedulers) != len(progress):
        raise UnfitStateError(f"there are {len(progress)} schedulers, expected {len(schedulers)}")
    states = []
    for scheduler, told in zip(schedulers, progress, strict=True):
        if told[_KIND] != type(scheduler).__qualname__:
            raise UnfitStateError(f"a scheduler is {told[_KIND]!r:.40}")
        kept = _RATES_OF_SCHEDULERS if keeps_lr else ()
        states.append(_with_numbers(scheduler.state_dict(), told, kept))
    for scheduler, state in zip(schedulers, states, strict=True):
        scheduler.load_state_dict(state)


def _numbers_of(own: Any) -> Any:
    """Return what of a scheduler's state are numbers, in plain data; `None` if it is none."""
    if isinstance(own, Mapping):
        named = ((key, _numbers_of(value)) for key, value in own.items() if isinstance(key, str))
        return {key: value for key, value in named if value is not None}
    if isinstance(own, (list, tuple)):
        return [_numbers_of(value) for value in own]
    if isinstance(own, torch.Tensor) and own.numel() == 1:
        return own.item()
    return own if isinstance(own, (bool, int, float)) else None


def _with_numbers(own: Any, theirs: Any, kept: Collection[str]) -> Any:
    """Return the state of a scheduler with the numbers of another one, but for some keys."""
    if theirs is None or (isinstance(own, Mapping) and not theirs):
        return own
    if isinstance(own, Mapping) and isinstance(theirs, Mapping):
        told = {key: theirs.get(key) for key in own if isinstance(key, str) and key not in kept}
        return {key: _with_numbers(value, told.get(key), kept) for key, value in own.items()}
    if isinstance(own, (list, tuple)) and isinstance(theirs, list) and len(own) == len(theirs):
        return type(own)(_with_numbers(*pair, kept) for pair in zip(own, theirs, strict=True))
    number = own.item() if isinstance(own, torch.Tensor) and own.numel() == 1 else own
    if isinstance(number, (int, float)) and isinstance(theirs, (int, float)):
        is_alike = isinstance(number, float) or type(number) is type(theirs)
        is_possible = math.isfinite(theirs) or not math.isfinite(number)
        if is_alike and is_possible and (theirs >= 0 or number < 0):
            return torch.full_like(own, theirs) if isinstance(own, torch.Tensor) else theirs
    raise UnfitStateError(f"a scheduler has {theirs!r:.40}, here it is {own!r:.40}")
