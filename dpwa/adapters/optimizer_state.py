"""The state of optimizers in torch: copied into an image, and taken over from one.

Groups and parameters of several optimizers are numbered on. Learning rate schedulers go with them,
as the numbers that they have come to.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgpack
import safetensors.torch
import torch

from dpwa.adapters.optimizer import Optimizers, is_training
from dpwa.adapters.plain_tensors import local, shard_like_parameters
from dpwa.data.kernels import is_finite
from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.state.image import ImageLayout, StatePart, can_be_stored
from dpwa.state.target import UnfitStateError
from dpwa.wire import limits
from dpwa.wire.messages import unpack

Named = Iterable[tuple[str, torch.Tensor]]


def storable(named: Named) -> list[tuple[str, torch.Tensor]]:
    """Leave out tensors of a dtype that the format does not know."""
    stored = []
    for name, tensor in named:
        values = tensor.detach()
        if values.dtype == torch.complex128:
            values = torch.view_as_real(values)
        if can_be_stored(dtype_name(values)):
            stored.append((name, values))
    return stored


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def layout_of(named: Named) -> ImageLayout:
    return ImageLayout.of(
        TensorSpec(name, dtype_name(tensor), tuple(tensor.shape), tensor.element_size())
        for name, tensor in named
    )


@torch.no_grad()
def copied(layout: ImageLayout, named: Named) -> ByteArray:
    image = layout.empty()
    in_image = dict(views(layout, image[len(layout.header) :]))
    for name, tensor in named:
        in_image[name].copy_(tensor)
    return image


def views(layout: ImageLayout, data: ByteArray) -> Iterator[tuple[str, torch.Tensor]]:
    flat = torch.from_numpy(data) if data.nbytes else torch.empty(0, dtype=torch.uint8)
    for spec, start in zip(layout.tensors.tensors, layout.tensors.offsets, strict=True):
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if spec.nbytes:
            yield spec.name, flat[start : start + spec.nbytes].view(dtype).view(spec.shape)
        else:
            yield spec.name, torch.empty(spec.shape, dtype=dtype)


_OF_THE_DEVICE = ("capturable", "foreach", "fused")  # which may be another one here
_STEP = "step"  # which torch does not cast either, when it loads a state

Kept = Mapping[str, Any]  # what an optimizer keeps for one parameter, by key


def adapted(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return foreign groups as groups of this optimizer, or raise `UnfitStateError`."""
    present, is_of_torch = optimizer.state_dict()["param_groups"], _is_of_torch(optimizer)
    if len(groups) != len(present):
        raise UnfitStateError(f"it has {len(groups)} groups, expected {len(present)}")
    pairs = zip(present, groups, strict=True)
    return [_adapted(own, theirs, is_of_torch=is_of_torch) for own, theirs in pairs]


def check_own(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], state: Mapping[int, Kept]
) -> None:
    """Raise `UnfitStateError` if this optimizer would keep something else with adapted groups."""
    parameters = dict(_numbered(optimizer))
    for index in state:
        if index not in parameters:
            raise UnfitStateError(f"it keeps something for parameter {index}, which is not here")
    keepers = [_Keeper(type(optimizer), settings) for settings in groups]
    for index, (number, parameter) in parameters.items():
        kept = state.get(index, {})
        if _is_of_torch(optimizer) and (kept or optimizer.state.get(parameter)):
            expected = keepers[number].kept_for(local(parameter))
            if kept or expected.is_there_at_once:  # else it has had no gradient so far
                _check_equal_form(index, expected.after_a_step, kept)
        _check_steps(index, kept)


def _is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    return f"{type(optimizer).__module__}.".startswith("torch.optim.")


def _numbered(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[int, tuple[int, torch.Tensor]]]:
    """Yield the parameters and the numbers of their groups, by the indices of a state dict."""
    index = 0
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            yield index, (number, parameter)
            index += 1


# Groups


def _adapted(
    own: Mapping[str, Any], theirs: Mapping[str, Any], *, is_of_torch: bool
) -> dict[str, Any]:
    of_here = {key: own[key] for key in ("params", *_OF_THE_DEVICE) if key in own}
    adapted = {}
    for key, value in theirs.items():
        if key in of_here:
            continue
        # Learning rate schedulers add settings, and may be made only after this.
        like = own[key] if key in own else _added(key, value)
        adapted[key] = _like(key, like, value, may_be_negative=not is_of_torch)
    return {**own, **adapted, **of_here}


def _added(key: str, value: Any) -> Any:
    """Return a setting that is not here, if it is a plain one."""
    is_plain = isinstance(value, bool) or _is_number(value)
    if not is_plain or not key.isidentifier():
        raise UnfitStateError(f"a group has {key!r:.40} {value!r:.40}, which is not here")
    return value


def _like(key: str, own: Any, theirs: Any, *, may_be_negative: bool) -> Any:
    """Return a foreign setting that has the form of the one that it replaces."""
    if isinstance(own, str):
        return own  # such as the name of a parameter
    if isinstance(own, list | tuple) and isinstance(theirs, list) and len(own) == len(theirs):
        pairs = zip(own, theirs, strict=True)
        return type(own)(_like(key, *pair, may_be_negative=may_be_negative) for pair in pairs)
    if _is_number(own) and _is_number(theirs):
        if _sign(theirs) >= 0 or _sign(own) < 0 or may_be_negative:
            return theirs
        raise UnfitStateError(f"a group has {key} {theirs!r:.40}, here it is {own!r:.40}")
    if type(own) is type(theirs) and (isinstance(own, bool) or own == theirs):
        return theirs
    raise UnfitStateError(f"a group has {key} {theirs!r:.40}, here it is {own!r:.40}")


def _is_number(value: object) -> bool:
    """Tell whether a value is a finite number, or a tensor with nothing else in it."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex() and math.isfinite(value.item())
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _sign(number: float | torch.Tensor) -> float:
    return math.copysign(1.0, number) if number else 0.0


# What is kept for a parameter


def _check_equal_form(index: int, expected: Kept, kept: Kept) -> None:
    if {*kept} != {*expected}:
        raise UnfitStateError(
            f"it keeps {sorted(kept)!r:.200} for parameter {index}, expected {sorted(expected)}"
        )
    for key, like in expected.items():
        value = kept[key]
        is_other = _form(value) != _form(like)
        if is_other and not (_is_scalar(value) and _is_scalar(like)):
            raise UnfitStateError(
                f"{key} of parameter {index} is {_form(value)}, expected {_form(like)}"
            )


def _check_steps(index: int, kept: Kept) -> None:
    steps = kept.get(_STEP, 0)
    if not _is_number(steps) or steps < 0:
        raise UnfitStateError(f"parameter {index} has made {steps!r:.40} steps")


def _form(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value)}{list(value.shape)}"
    return "a number" if _is_number(value) else type(value).__name__


def _is_scalar(value: object) -> bool:
    # Torch keeps them in its default dtype, and casts most of them when it loads a state.
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()


class _Expected(NamedTuple):
    """What is kept for a parameter once it has had a gradient, and whether it is there before."""

    after_a_step: Kept
    is_there_at_once: bool


class _Keeper:
    """Knows what an optimizer keeps for parameters of a group with these settings."""

    def __init__(self, optimizer: type[torch.optim.Optimizer], settings: Mapping[str, Any]) -> None:
        self._class = optimizer
        off = dict.fromkeys((key for key in _OF_THE_DEVICE if key in settings), False)
        self._settings = {k: v for k, v in settings.items() if k != "params"} | off
        self._known: dict[tuple[torch.Size, torch.dtype], _Expected] = {}

    def kept_for(self, parameter: torch.Tensor) -> _Expected:
        """Raises `UnfitStateError` if no step can be taken with these settings."""
        key = parameter.shape, parameter.dtype
        if key not in self._known:
            self._known[key] = self._tried(parameter)
        return self._known[key]

    def _tried(self, parameter: torch.Tensor) -> _Expected:
        problem = ""
        for device, is_sparse in (("meta", False), ("cpu", False), ("cpu", True)):
            trial = torch.zeros_like(parameter, device=device, requires_grad=False)
            gradient = torch.zeros_like(trial)
            trial.grad = gradient.to_sparse() if is_sparse else gradient
            try:
                return self._after_a_step(trial)
            except Exception as error:  # noqa: BLE001 - whatever these settings bring about
                problem = problem or f"no step can be taken with its settings: {error!r:.200}"
        raise UnfitStateError(problem)

    @torch.no_grad()
    def _after_a_step(self, trial: torch.Tensor) -> _Expected:
        names = inspect.signature(self._class).parameters
        named = {key: value for key, value in self._settings.items() if key in names}
        optimizer: torch.optim.Optimizer = self._class([trial], **named)
        optimizer.param_groups[0].update(self._settings)
        is_there_at_once = bool(optimizer.state[trial])
        optimizer.step()
        return _Expected(optimizer.state[trial], is_there_at_once)


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
    values["scalers"] = [progress_of(each) for each in optimizers.scalers]
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
    image: ByteArray,  # the tensors, as `optimizer_part` lays them out
    numbers: bytes,  # all that is no tensor, likewise
    *,
    keeps_lr: bool,  # learning rates stay as they are here
    is_guarded: bool,  # refuse a state that is not finite
    tries: bool = False,  # only try: change nothing in any case
) -> None:
    """Take over the state of other optimizers, all of it or nothing.

    Schedulers go on as theirs, if there were such. Raises `UnfitStateError`, with nothing changed,
    if these optimizers would not have a state of that form.
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
        with suppress(Exception):  # likewise; they are found out by and by
            resume(optimizers.scalers, values.get("scalers", []))


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

    Raises `UnfitStateError`, LookupError, TypeError or ValueError if they do not belong to these.
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

    Raises `UnfitStateError`, with nothing changed, if they would not have come to such numbers.
    """
    if len(schedulers) != len(progress):
        raise UnfitStateError(f"there are {len(progress)} schedulers, expected {len(schedulers)}")
    states = []
    for scheduler, told in zip(schedulers, progress, strict=True):
        if told[_KIND] != type(scheduler).__qualname__:
            raise UnfitStateError(f"a scheduler is {told[_KIND]!r:.40}")
        kept = _RATES_OF_SCHEDULERS if keeps_lr else ()
        own = scheduler.state_dict()
        if "scale" in own:  # of a `GradScaler`: as its user has written it, maybe a whole number
            own["scale"] = float(own["scale"])
        states.append(_with_numbers(own, told, kept))
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
