"""Forms: whether the state of a foreign optimizer is one that the optimizer here could have.

What comes from other nodes, or from disk, is compared with what is here before it is applied: a
momentum of another shape, or without its number of steps, would raise in the next step of the
trainer. What an optimizer of torch keeps is found out by letting a new one with the same settings
take a step, on a parameter without values where that is possible. Its constructor also refuses
settings that make no sense. Optimizers from elsewhere are not tried out, and what they keep for a
parameter may have any shape.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from dpwa.adapters.sharded_tensors import local
from dpwa.adapters.tensor_images import dtype_name
from dpwa.state.target import UnfitStateError

_OF_THE_DEVICE = ("capturable", "foreach", "fused")  # which may be another one here
_STEP = "step"  # which torch does not cast either, when it loads a state

Kept = Mapping[str, Any]  # what an optimizer keeps for one parameter, by key


def adapted(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return foreign groups as groups of this optimizer.

    Raises:
        UnfitStateError: they do not have the form of those that are here.
    """
    present, is_of_torch = optimizer.state_dict()["param_groups"], _is_of_torch(optimizer)
    if len(groups) != len(present):
        raise UnfitStateError(f"it has {len(groups)} groups, expected {len(present)}")
    pairs = zip(present, groups, strict=True)
    return [_adapted(own, theirs, is_of_torch=is_of_torch) for own, theirs in pairs]


def check_own(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], state: Mapping[int, Kept]
) -> None:
    """Check what is kept for each parameter, with groups that are adapted.

    Raises:
        UnfitStateError: this optimizer would keep something else.
    """
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
    """Knows what an optimizer keeps for parameters of a group.

    Args:
        optimizer: of torch.
        settings: of the group.
    """

    def __init__(self, optimizer: type[torch.optim.Optimizer], settings: Mapping[str, Any]) -> None:
        self._class = optimizer
        off = dict.fromkeys((key for key in _OF_THE_DEVICE if key in settings), False)
        self._settings = {k: v for k, v in settings.items() if k != "params"} | off
        self._known: dict[tuple[torch.Size, torch.dtype], _Expected] = {}

    def kept_for(self, parameter: torch.Tensor) -> _Expected:
        """Return what would be kept for such a parameter.

        Raises:
            UnfitStateError: no step can be taken with these settings.
        """
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
