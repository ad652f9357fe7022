"""Copy the state of torch optimizers into a saved or sent state, and load such a state.

The groups and parameters of several optimizers are numbered consecutively. The image includes the
progress of learning rate schedulers, as numbers.
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

from dpwa.adapters.object_state import CPU, KEPT, MISSING, Filler, Trees, is_scalar, modules_of
from dpwa.adapters.optimizer import Optimizers, is_training, with_inner
from dpwa.adapters.plain_tensors import dtype_name, local, shard_like_parameters
from dpwa.adapters.tensor_images import copied, layout_of
from dpwa.data.kernels import is_finite
from dpwa.data.layout import Layout, TensorSpec
from dpwa.data.segments import ByteArray
from dpwa.state.replaced_parts import UnfitStateError
from dpwa.state.safetensors_image import StatePart
from dpwa.wire import limits
from dpwa.wire.messages import unpack

OF_THE_DEVICE = ("capturable", "foreach", "fused")  # settings that may differ between nodes
_STEP = "step"  # torch does not cast this value either when it loads a state

Kept = Mapping[str, Any]  # the state that an optimizer keeps for one parameter, by key


def adapted(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert a peer's parameter groups to this optimizer's form, or raise `UnfitStateError`."""
    present, is_of_torch = optimizer.param_groups, _is_of_torch(optimizer)
    if len(groups) != len(present):
        raise UnfitStateError(
            f"the state has {len(groups)} param_groups, but the optimizer of this node has "
            f"{len(present)}"
        )
    pairs = zip(present, groups, strict=True)
    return [_adapted(own, theirs, is_of_torch=is_of_torch) for own, theirs in pairs]


def check_own(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], state: Mapping[int, Kept]
) -> None:
    """Raise `UnfitStateError` if an optimizer with these parameter groups cannot have `state`."""
    parameters = dict(_numbered(optimizer))
    for index in state:
        if index not in parameters:
            raise UnfitStateError(f"the state has an entry for an unknown parameter: {index}")
    keepers = [_Keeper(type(optimizer), settings) for settings in groups]
    for index, (number, parameter) in parameters.items():
        kept = state.get(index, {})
        if _is_of_torch(optimizer) and (kept or optimizer.state.get(parameter)):
            expected = keepers[number].kept_for(local(parameter))
            if kept or expected.is_there_at_once:  # no gradient yet: no state
                _check_equal_form(index, expected.after_a_step, kept)
        _check_steps(index, kept)


def _is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether dpwa knows the form of an optimizer's state. It does not for LBFGS."""
    is_known = f"{type(optimizer).__module__}.".startswith("torch.optim.")
    return is_known and not isinstance(optimizer, torch.optim.LBFGS)


def _numbered(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[int, tuple[int, torch.Tensor]]]:
    """Yield each parameter's index in a state dict, its group's number, and the parameter."""
    index = 0
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            yield index, (number, parameter)
            index += 1


# Parameter groups


def _adapted(
    own: Mapping[str, Any], theirs: Mapping[str, Any], *, is_of_torch: bool
) -> dict[str, Any]:
    of_here = {key: own[key] for key in ("params", *OF_THE_DEVICE) if key in own}
    adapted = {}
    for key, value in theirs.items():
        if key in of_here:
            continue
        # Learning rate schedulers add settings to groups. They may be created later on this node.
        like = own[key] if key in own else _added(key, value)
        adapted[key] = _like(key, like, value, may_be_negative=not is_of_torch)
    return {**own, **adapted, **of_here}


def _added(key: str, value: Any) -> Any:
    """Return a peer's setting that this optimizer lacks, if the value is a number or a boolean."""
    is_plain = isinstance(value, bool) or _is_number(value)
    if not is_plain or not key.isidentifier():
        raise UnfitStateError(
            f"the param_groups of the state have an unknown setting: {key!r:.40} = {value!r:.40}"
        )
    return value


def _like(key: str, own: Any, theirs: Any, *, may_be_negative: bool) -> Any:
    """Return a peer's setting if its type and length match this node's setting."""
    if isinstance(own, str):
        return own  # a text, such as the name of a parameter, stays
    if isinstance(own, list | tuple) and isinstance(theirs, list) and len(own) == len(theirs):
        pairs = zip(own, theirs, strict=True)
        return type(own)(_like(key, *pair, may_be_negative=may_be_negative) for pair in pairs)
    if _is_number(own) and _is_number(theirs):
        if _sign(theirs) >= 0 or _sign(own) < 0 or may_be_negative:
            return theirs
        raise UnfitStateError(
            f"the setting {key} of param_groups is {theirs!r:.40} in the state, but {own!r:.40} on "
            "this node"
        )
    if type(own) is type(theirs) and (isinstance(own, bool) or own == theirs):
        return theirs
    raise UnfitStateError(
        f"the setting {key} of param_groups is {theirs!r:.40} in the state, but {own!r:.40} on "
        "this node"
    )


def _is_number(value: object) -> bool:
    """Return whether a value is a finite number, or a tensor with a single finite number."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex() and math.isfinite(value.item())
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _sign(number: float | torch.Tensor) -> float:
    return math.copysign(1.0, number) if number else 0.0


# State of a parameter


def _check_equal_form(index: int, expected: Kept, kept: Kept) -> None:
    if {*kept} != {*expected}:
        raise UnfitStateError(
            f"the state of parameter {index} has the keys {sorted(kept)!r:.200}, expected the keys "
            f"{sorted(expected)}"
        )
    for key, like in expected.items():
        value = kept[key]
        is_other = _form(value) != _form(like)
        if is_other and not (_is_scalar(value) and _is_scalar(like)):
            raise UnfitStateError(
                f"{key} in the state of parameter {index} is {_form(value)}, expected {_form(like)}"
            )


def _check_steps(index: int, kept: Kept) -> None:
    steps = kept.get(_STEP, 0)
    if not _is_number(steps) or steps < 0:
        raise UnfitStateError(
            f"the state of parameter {index} has an invalid number of steps: {steps!r:.40}"
        )


def _form(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value)}{list(value.shape)}"
    return "a number" if _is_number(value) else type(value).__name__


def _is_scalar(value: object) -> bool:
    # Torch keeps scalars in its default dtype, and casts most of them when it loads a state.
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()


class _Expected(NamedTuple):
    """An optimizer's state for a parameter after a step, and whether it exists before any step."""

    after_a_step: Kept
    is_there_at_once: bool


class _Keeper:
    """Determines which state an optimizer with given settings keeps for a parameter."""

    def __init__(self, optimizer: type[torch.optim.Optimizer], settings: Mapping[str, Any]) -> None:
        self._class = optimizer
        off = dict.fromkeys((key for key in OF_THE_DEVICE if key in settings), False)
        self._settings = {k: v for k, v in settings.items() if k != "params"} | off
        self._known: dict[tuple[torch.Size, torch.dtype], _Expected] = {}

    def kept_for(self, parameter: torch.Tensor) -> _Expected:
        """Return the expected state, or raise `UnfitStateError` if the settings allow no step."""
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
            except Exception as error:  # noqa: BLE001 - settings can cause any error
                problem = problem or f"no step is possible with its settings: {error!r:.200}"
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
# Attributes of an optimizer that are sent in other ways, or not at all
_ELSEWHERE = (
    "state",
    "param_groups",
    "defaults",
    "_zero_grad_profile_name",
    "_warned_capturable_if_run_uncaptured",
    *(
        f"_optimizer_{of}_hooks"
        for of in (
            "step_pre",
            "step_post",
            "state_dict_pre",
            "state_dict_post",
            "load_state_dict_pre",
            "load_state_dict_post",
        )
    ),
)
_LEARNING_RATES = ("lr", "initial_lr")
_END = 2**63
_RATES_OF_SCHEDULERS = ("base_lrs", "_last_lr")
_KIND = "kind"


def kind_of(optimizers: Optimizers) -> Layout:
    """Return a layout that describes optimizers by their classes and their groups' parameters."""
    specs, holders = list[TensorSpec](), with_inner(optimizers.given)
    for optimizer, (first, _) in zip(holders, _places(holders), strict=True):
        kind = type(optimizer)
        specs.append(TensorSpec(f"{kind.__module__}.{kind.__qualname__}", "optimizer", (), 0))
        for number, group in enumerate(optimizer.param_groups, first):
            for index, parameter in enumerate(group["params"]):
                name = f"parameter {index} of group {number}"
                specs.append(TensorSpec(name, dtype_name(parameter), tuple(parameter.shape), 0))
    return Layout(tuple(specs))


def left_out_of(optimizers: Optimizers) -> dict[str, str]:
    """Return why dpwa cannot send some values of the optimizers' state, by the values' paths."""
    if all(map(_is_of_torch, with_inner(optimizers.given))):
        return {}
    return _captured(optimizers)[1].left_out


def optimizer_part(optimizers: Optimizers) -> StatePart | None:
    """Copy the state of optimizers. `None` if some values are neither tensors nor plain data."""
    values, trees = _captured(optimizers)
    try:
        numbers = msgpack.packb(values)
    except (TypeError, ValueError, OverflowError):
        return None
    if not trees.is_whole or len(numbers) > limits.MAX_DETAIL_BYTES:
        return None
    named = [(name, local(tensor).detach()) for name, tensor in trees.tensors.items()]
    layout = layout_of(named)
    return StatePart(kind_of(optimizers), layout, copied(layout, named), bytes(numbers))


def _captured(optimizers: Optimizers) -> tuple[dict[str, Any], Trees]:
    """Return the state of optimizers, and of wrapped optimizers, as plain data and tensors."""
    holders = with_inner(optimizers.given)
    trees = Trees(_parameters_of(holders), modules_of(holders))
    for each in holders:
        for known in (each, state_of(each), each.param_groups):
            trees.enter(known)
    values: dict[str, Any] = {"groups": [], "state": {}, "other": [], "attributes": []}
    for number, (optimizer, (_, first)) in enumerate(zip(holders, _places(holders), strict=True)):
        name = type(optimizer).__name__
        for group in optimizer.param_groups:
            own = {key: value for key, value in group.items() if key != "params"}
            prefix = f"{_GROUP}.{len(values['groups'])}"
            values["groups"].append(_flat(trees, prefix, own, f"{name}.param_groups"))
        if _has_state(holders, number):
            with trees.strict():
                _capture_state(trees, values, optimizer, number, first)
        settings = {**dict.fromkeys(_ELSEWHERE, ...), **optimizers.settings.get(id(optimizer), {})}
        values["attributes"].append(
            [] if _is_of_torch(optimizer) else trees.attributes(optimizer, name, settings)
        )
    values["schedulers"] = [progress_of(each) for each in optimizers.schedulers or ()]
    values["scalers"] = [progress_of(each) for each in optimizers.scalers]
    return values, trees


def _capture_state(
    trees: Trees, values: dict[str, Any], optimizer: Any, number: int, first: int
) -> None:
    """Capture an optimizer's state for its parameters, and the optimizer's other state."""
    indices = {id(parameter): at for at, (_, parameter) in _numbered(optimizer)}
    for key, kept in state_of(optimizer).items():
        index = indices.get(id(key))
        what = f"{key!r:.40}" if index is None else f"parameter {index}"
        place = f"{type(optimizer).__name__}.state[{what}]"
        if index is not None and type(kept) is dict and all(isinstance(each, str) for each in kept):
            found = str(first + index)
            values["state"][found] = _flat(trees, found, kept, place)
        else:
            values["other"].append([number, trees.key(key, place), trees.tree(kept, place)])


def _flat(trees: Trees, prefix: str, own: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the values of a mapping as plain data, and add its tensors to `trees`."""
    values = {}
    for key, value in own.items():
        name = "" if "." in key else f"{prefix}.{key}"
        tree = trees.tree(value, f"{place}[{key!r}]", name)
        if isinstance(value, (list, tuple)) and prefix.startswith(_GROUP):
            tree = [*value] if all(map(is_scalar, value)) else tree
        if not isinstance(tree, dict) or tree.get("t", [""])[0] != name:
            values[key] = tree
    return values


def load_optimizers(
    optimizers: Optimizers,
    image: ByteArray,  # the tensors, in the layout of `optimizer_part`
    numbers: bytes,  # the plain values, in the form of `optimizer_part`
    *,
    keeps_lr: bool,  # keep this node's learning rates
    is_guarded: bool,  # refuse a state that is not finite
    tries: bool = False,  # only check whether the state fits, and change nothing
) -> None:
    """Load the optimizer state of a peer or of a checkpoint, completely or not at all.

    If the state has schedules, this node's schedulers continue from them. Raises `UnfitStateError`,
    and changes nothing, if these optimizers could not have a state of this form.
    """
    holders = with_inner(optimizers.given)
    training = [each for each in optimizers.to_prepare if is_training(each)]
    before = [_Held.by(each) for each in holders]
    try:
        tensors = safetensors.torch.load(image.tobytes())
        if is_guarded:
            _check_finite(tensors)
        values = unpack(numbers)
        filler = Filler(_parameters_of(holders), tensors, modules_of(holders))
        held = _held_by(holders, filler, tensors, values)
        for each in held:
            if keeps_lr:
                _keep_learning_rates(each.optimizer, each.groups)
            each.put_in_place()
        if tries:
            _put_back(before)
    except Exception as error:  # noqa: BLE001 - any optimizer or content can cause any error
        _put_back(before)
        reason = str(error) if isinstance(error, UnfitStateError) else f"{error!r:.300}"
        raise UnfitStateError(reason) from None
    if not tries:
        filler.apply()
        for each in training:  # the sent state is not in training mode
            each.train()
        try:
            resume(optimizers.schedulers or (), values["schedulers"], keeps_lr=keeps_lr)
        except Exception:  # noqa: BLE001 - any scheduler or content can cause any error
            optimizers.have_schedules = False
        else:
            optimizers.have_schedules = True
        with suppress(Exception):  # without its state, a scaler finds a good scale again
            resume(optimizers.scalers, values.get("scalers", []))


class _Held(NamedTuple):
    """The state of an optimizer, as it is now or as it will be after loading."""

    optimizer: Any
    state: Mapping[Any, Any] | None  # `None`: the state belongs to an inner optimizer
    groups: list[dict[str, Any]]

    @classmethod
    def by(cls, optimizer: Any) -> _Held:
        groups = [dict(group) for group in optimizer.param_groups]
        return cls(optimizer, dict(state_of(optimizer)), groups)

    def put_in_place(self, *, is_new: bool = True) -> None:
        """Write the state into the optimizer's own mappings, which other objects may share."""
        state = state_of(self.optimizer)
        if self.state is not None:
            state.clear()
            state.update(self.state)
        for own, group in zip(self.optimizer.param_groups, self.groups, strict=True):
            own.clear()
            own.update(group)
        if is_new and {"state", "param_groups", "defaults"} <= {*vars(self.optimizer)}:
            groups = self.optimizer.param_groups
            self.optimizer.__setstate__({"state": state, "param_groups": groups})
            shard_like_parameters(self.optimizer)


def _put_back(before: list[_Held]) -> None:
    for each in before:
        each.put_in_place(is_new=False)


def _has_state(holders: list[Any], number: int) -> bool:
    """Return whether an optimizer has a state of its own, not the state of a wrapped optimizer."""
    state = state_of(holders[number])
    return all(state is not state_of(each) for each in holders[:number])


def state_of(optimizer: Any) -> Any:
    """Return the mapping that holds an optimizer's state, or an empty mapping if it has none."""
    return getattr(optimizer, "state", {})


def _parameters_of(optimizers: Iterable[Any]) -> list[torch.Tensor]:
    groups = [group for each in optimizers for group in each.param_groups]
    return [parameter for group in groups for parameter in group["params"]]


def _places(optimizers: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Yield, for each optimizer, the overall numbers of its first group and first parameter."""
    group, parameter = 0, 0
    for optimizer in optimizers:
        yield group, parameter
        group += len(optimizer.param_groups)
        parameter += sum(len(each["params"]) for each in optimizer.param_groups)


def _held_by(
    holders: list[Any],
    filler: Filler,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
) -> list[_Held]:
    """Return the state to load into each optimizer. `filler` changes other objects afterwards.

    Raises `UnfitStateError`, LookupError, TypeError or ValueError if the state does not fit these
    optimizers.
    """
    groups = [dict(group) for group in values["groups"]]
    state: dict[int, dict[str, Any]] = {int(i): dict(own) for i, own in values["state"].items()}
    for name in tensors:
        place, key = name.rsplit(".", 1)
        if place.startswith(_GROUP):
            groups[int(place.removeprefix(f"{_GROUP}."))][key] = tensors[name]
        elif place != KEPT:
            state[int(place)][key] = tensors[name]
    held, starts = [], [*_places(holders), (_END, _END)]
    for number, optimizer in enumerate(holders):
        (group, first), (last_group, last) = starts[number : number + 2]
        of_groups = _groups_for(optimizer, filler, groups[group:last_group])
        own = {i - first: kept for i, kept in state.items() if (first or -_END) <= i < last}
        check_own(optimizer, of_groups, own)
        made = _state_for(optimizer, filler, {i: (f"{i + first}", own[i]) for i in own})
        for owner, key, tree in values.get("other", ()):
            if owner == number:
                _require_own_form(optimizer)
                found = filler.key(key)
                made[found] = filler.value(tree, state_of(optimizer).get(found, MISSING))
        held.append(_Held(optimizer, made if _has_state(holders, number) else None, of_groups))
    for optimizer, own in zip(holders, values.get("attributes", [[]] * len(holders)), strict=True):
        if own:
            _require_own_form(optimizer)
            if any(name in _ELSEWHERE for name, _ in own):
                raise UnfitStateError("the state sets an attribute that a peer must not set")
            filler.attributes(optimizer, own, type(optimizer).__name__)
    return held


def _require_own_form(optimizer: Any) -> None:
    if _is_of_torch(optimizer):
        raise UnfitStateError("the state has attributes that torch optimizers do not have")


def _groups_for(
    optimizer: Any, filler: Filler, groups: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Convert a peer's parameter groups, with nested values, to groups of this optimizer."""
    nested: list[dict[str, Any]] = [{} for _ in groups]
    if len(groups) == len(optimizer.param_groups):
        known = optimizer.defaults if _is_of_torch(optimizer) else ()
        for own, theirs, found in zip(optimizer.param_groups, groups, nested, strict=True):
            added = {*theirs} - {*known}
            for key in [key for key in added if isinstance(theirs[key], Mapping)]:
                found[key] = filler.value(theirs.pop(key), own.get(key, MISSING), key)
    made = adapted(optimizer, groups)
    return [{**group, **found} for group, found in zip(made, nested, strict=True)]


def _state_for(
    optimizer: Any, filler: Filler, kept: Mapping[int, tuple[str, Mapping[str, Any]]]
) -> dict[torch.Tensor, dict[str, Any]]:
    """Convert a received state to an optimizer's state for its parameters."""
    parameters, made = dict(_numbered(optimizer)), {}
    for index, (place, theirs) in kept.items():
        number, parameter = parameters[index]
        own, group = state_of(optimizer).get(parameter, {}), optimizer.param_groups[number]
        own = own if isinstance(own, Mapping) else {}
        is_on_device = bool(group.get("capturable") or group.get("fused"))
        made[parameter] = found = dict[str, Any]()
        for key, value in theirs.items():
            if isinstance(value, torch.Tensor):
                device = CPU if key == _STEP and not is_on_device else parameter.device
                found[key] = filler.placed(f"{place}.{key}", device, own.get(key))
            else:
                found[key] = filler.value(value, own.get(key, MISSING), f"{key} of {place}")
    return made


def _check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise UnfitStateError(f"tensor {name!r:.80} has values that are not finite")


def _keep_learning_rates(optimizer: Any, groups: list[dict[str, Any]]) -> None:
    for own, group in zip(optimizer.param_groups, groups, strict=True):
        lr, initial = (group.get(key) for key in _LEARNING_RATES)
        for key in _LEARNING_RATES:
            if key in own:
                group[key] = own[key]
            else:
                group.pop(key, None)
        if lr is not None and initial and "initial_lr" in own:  # keep the progress of the schedule
            group["lr"] = own["initial_lr"] * float(lr / initial)


# Schedulers


def progress_of(scheduler: Any) -> dict[str, Any]:
    """Return the name of a scheduler's class, and the numbers in the scheduler's state."""
    settings = {*inspect.signature(type(scheduler)).parameters} - {"last_epoch"}
    state = {k: v for k, v in scheduler.state_dict().items() if k not in settings}
    return {_KIND: type(scheduler).__qualname__, **_numbers_of(state)}


def resume(
    schedulers: Sequence[Any], progress: Sequence[Mapping[str, Any]], *, keeps_lr: bool = False
) -> None:
    """Continue schedulers from the progress of other schedulers. Keep the own settings.

    Raises `UnfitStateError`, and changes nothing, if a number does not fit these schedulers.
    """
    if len(schedulers) != len(progress):
        raise UnfitStateError(
            f"the state has {len(progress)} schedulers, but this node has {len(schedulers)}"
        )
    states = []
    for scheduler, told in zip(schedulers, progress, strict=True):
        if told[_KIND] != type(scheduler).__qualname__:
            raise UnfitStateError(
                f"the state has a scheduler of the class {told[_KIND]!r:.40}, but the scheduler on "
                "this node has a different class"
            )
        kept = _RATES_OF_SCHEDULERS if keeps_lr else ()
        own = scheduler.state_dict()
        if "scale" in own:  # of a `GradScaler`. The user may have passed an int
            own["scale"] = float(own["scale"])
        states.append(_with_numbers(own, told, kept))
    for scheduler, state in zip(schedulers, states, strict=True):
        scheduler.load_state_dict(state)


def _numbers_of(own: Any) -> Any:
    """Return the numbers in a scheduler's state, as plain data, or `None` if it has none."""
    if isinstance(own, Mapping):
        named = ((key, _numbers_of(value)) for key, value in own.items() if isinstance(key, str))
        return {key: value for key, value in named if value is not None}
    if isinstance(own, (list, tuple)):
        return [_numbers_of(value) for value in own]
    if isinstance(own, torch.Tensor) and own.numel() == 1:
        return own.item()
    return own if isinstance(own, (bool, int, float)) else None


def _with_numbers(own: Any, theirs: Any, kept: Collection[str]) -> Any:
    """Return a scheduler's state `own` with the numbers of `theirs`, except for the `kept` keys."""
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
    raise UnfitStateError(
        f"a value of a scheduler in the state does not fit this node: expected a value like "
        f"{own!r:.40} (got {theirs!r:.40})"
    )
