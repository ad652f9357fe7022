"""Convert objects' state to plain data and numbered tensors. Load such data into other objects.

A number, a text or `None` is stored as it is. Any other value is a mapping with one key:

    t   [name of a tensor, whether the tensor is on the CPU]
    p   number of a parameter; i: the number of a parameter whose `id` is a key
    l   items of a list; u: of a tuple; q: [maximum length, items] of a deque
    d   [[key, value], ...] of a mapping
    o   [class, [[attribute, value], ...]] of an object that the optimizer's own modules define
    m   [[name, tensor], ...] of a module; s: state dict of another object, such as a scheduler
    g   name of a tensor with the state of a `torch.Generator`
    k   a value that the receiver keeps, such as a function, or an object that came before

A tree from another node creates no objects except containers. Attributes are set in place.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from dpwa.adapters.plain_tensors import dtype_name, local, why_not_mergeable, why_not_plain
from dpwa.state.replaced_parts import UnfitStateError
from dpwa.state.safetensors_image import can_be_stored

KEPT = "kept"  # the first part of the names of tensors that have no better name
_KEPT = {"k": None}
MISSING = object()
_SCALARS = (type(None), bool, int, float, str)
_SEQUENCES: dict[type, str] = {list: "l", tuple: "u"}
_MAPPINGS = (dict, OrderedDict, defaultdict)
_METHODS = (FunctionType, BuiltinFunctionType, MethodType)
_MAX_INT = 2**63
CPU = torch.device("cpu")


def is_scalar(value: object) -> bool:
    """Return whether a value is a scalar, which is stored unchanged."""
    is_small = not isinstance(value, int) or abs(value) < _MAX_INT
    return type(value) in _SCALARS and is_small


class Trees:
    """Converts the state of objects to trees of plain data, and collects the objects' tensors.

    Args:
        parameters: the parameters of the optimizers. Trees refer to them by number.
        modules: the names of the Python modules whose objects are converted.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], modules: Iterable[str]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.left_out: dict[str, str] = {}  # the reasons for values left out, by their place
        self.is_whole = True  # whether no value was left out in a `strict` block
        self._is_strict = False
        self._numbers: dict[int, int] = {}
        for number, parameter in enumerate(parameters):
            self._numbers.setdefault(id(parameter), number)
        self._packages = {name.partition(".")[0] for name in modules}
        self._names: dict[int, str] = {}
        self._entered: set[int] = set()

    def enter(self, value: object) -> bool:
        """Mark an object, so that no later tree contains it. Return whether the mark is new."""
        is_new = id(value) not in self._entered
        self._entered.add(id(value))
        return is_new

    def tree(self, value: Any, place: str, name: str = "") -> Any:
        """Return the tree of plain data for a value, which has the path `place` in the state.

        If a name is given, a new tensor gets this name.
        """
        if is_scalar(value):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, place, name)
        if isinstance(value, torch.Generator):
            return {"g": self._named(value.get_state())}
        if isinstance(value, np.generic):
            return self.tree(value.item(), place)
        if not self.enter(value):
            return _KEPT
        before, tree = len(self.tensors), self._container(value, place)
        if tree == _KEPT and (self._is_strict or len(self.tensors) > before or _has_state(value)):
            return self._leave_out(place, "it is a", type(value))
        return tree

    def _leave_out(self, place: str, what: str, kind: type) -> Any:
        self.left_out[place] = f"{what} {kind.__module__}.{kind.__qualname__}"
        self.is_whole = self.is_whole and not self._is_strict
        return _KEPT

    def _container(self, value: Any, place: str) -> Any:
        if type(value) in _SEQUENCES:
            items = [self.tree(each, f"{place}[{at}]") for at, each in enumerate(value)]
            return _KEPT if _KEPT in items else {_SEQUENCES[type(value)]: items}
        if type(value) is deque:
            tree = self._container([*value], place)
            return tree if tree == _KEPT else {"q": [value.maxlen, tree["l"]]}
        if type(value) in _MAPPINGS:
            pairs = [
                [self.key(key, place), self.tree(each, f"{place}[{key!r:.40}]")]
                for key, each in value.items()
            ]
            return _KEPT if any(_KEPT in pair for pair in pairs) else {"d": pairs}
        return self._object(value, place)

    @contextmanager
    def strict(self) -> Iterator[None]:
        """Within the block, record each value left out, even one that is unlikely to be state."""
        self._is_strict = True
        try:
            yield
        finally:
            self._is_strict = False

    def key(self, key: Any, place: str) -> Any:
        """Return the tree of a key of a mapping."""
        if isinstance(key, torch.Tensor) and id(key) in self._numbers:
            return {"p": self._numbers[id(key)]}
        if type(key) is int and key in self._numbers:
            return {"i": self._numbers[key]}
        if type(key) is tuple:
            return {"u": [self.key(each, place) for each in key]}
        return key if is_scalar(key) else self._leave_out(place, "its key is a", type(key))

    def attributes(self, owner: Any, place: str, skipped: Mapping[str, Any]) -> list[list[Any]]:
        """Return an object's attributes, except attributes of `skipped` that are unchanged."""
        found = []
        for name, value in vars(owner).items():
            if name in skipped and (skipped[name] is ... or _is_same(skipped[name], value)):
                continue
            tree = self.tree(value, f"{place}.{name}")
            if tree != _KEPT:
                found.append([name, tree])
        return found

    def _tensor(self, tensor: torch.Tensor, place: str, name: str) -> Any:
        if id(tensor) in self._numbers:
            return {"p": self._numbers[id(tensor)]}
        dtype = dtype_name(tensor)
        if why_not_plain(tensor) or not can_be_stored(dtype):
            return self._leave_out(
                place, f"it is a {dtype} tensor in the memory of a", type(tensor)
            )
        return {"t": [self._named(tensor, name), local(tensor).is_cpu]}

    def _named(self, tensor: torch.Tensor, name: str = "") -> str:
        if id(tensor) not in self._names:
            self._names[id(tensor)] = name or f"{KEPT}.{len(self.tensors)}"
            self.tensors[self._names[id(tensor)]] = tensor
        return self._names[id(tensor)]

    def _object(self, value: Any, place: str) -> Any:
        if isinstance(value, torch.nn.Module):
            if any(id(each) in self._numbers for each in value.parameters()):
                return _KEPT  # the module in training
            return {"m": [[name, self.tree(each, place)] for name, each in _tensors_in(value)]}
        if type(value).__module__.partition(".")[0] in self._packages and _is_plain(value):
            return {"o": [type(value).__qualname__, self.attributes(value, place, {})]}
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            tree = self.tree(value.state_dict(), place)
            return tree if tree == _KEPT else {"s": tree}
        return _KEPT


def _is_plain(value: Any) -> bool:
    return hasattr(value, "__dict__") and not callable(value)


def _tensors_in(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _is_same(before: Any, now: Any) -> bool:
    return type(before) is type(now) and bool(before == now)


def _has_state(value: Any) -> bool:
    """Return whether an object that cannot be sent is likely to change with each step."""
    if isinstance(value, torch.nn.Module) or (callable(value) and not hasattr(value, "state_dict")):
        return False
    if type(value).__module__.partition(".")[0] in ("numpy", "random"):
        return True
    inside = getattr(value, "__dict__", {}).values()
    return hasattr(value, "__next__") or any(isinstance(each, torch.Tensor) for each in inside)


class Filler:
    """Converts received trees to values. `apply` then writes all values into this node's objects.

    Args:
        parameters: the parameters of the optimizers, in the order that `Trees` got.
        tensors: the received tensors, by name.
        modules: the names of the Python modules whose objects may be created, without a call of
            their constructors.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        tensors: Mapping[str, torch.Tensor],
        modules: Iterable[str],
    ) -> None:
        self._parameters = [*parameters]
        self._tensors = tensors
        self._modules = [*modules]
        self._made: dict[str, torch.Tensor] = {}
        self._changes: list[Callable[[], Any]] = []

    def apply(self) -> None:
        """Change this node's objects. Raises `UnfitStateError` if an object refuses its values."""
        with torch.no_grad():
            for change in self._changes:
                try:
                    change()
                except Exception as error:  # noqa: BLE001 - any object can raise any error
                    raise UnfitStateError(f"{error!r:.300}") from None

    def value(self, tree: Any, own: Any = MISSING, place: str = "a value") -> Any:
        """Return the value of a received tree, to replace this node's value `own`.

        Raises `UnfitStateError` if there can be no such value, LookupError or TypeError for a bad
        tree.
        """
        if not isinstance(tree, Mapping):
            return tree
        ((tag, given),) = tree.items()
        if tag == "k":
            if own is MISSING:
                raise UnfitStateError(f"the state contains {place}, which this node lacks")
            return own
        if tag == "p":
            return self._parameters[given]
        if tag == "t":
            name, is_on_cpu = given
            device = self._parameters[0].device if self._parameters and not is_on_cpu else CPU
            return self.placed(name, device, own)
        if tag in "lu":
            return self._sequence(list if tag == "l" else tuple, given, own, place)
        if tag == "q":
            length, items = given
            own = own if isinstance(own, deque) else deque(maxlen=length)
            return self._sequence(deque, items, own, place)
        if tag == "d":
            return self._mapping(given, own, place)
        if tag in "ms" and own is MISSING:
            raise UnfitStateError(f"the state contains {place}, which this node lacks")
        if tag == "m":
            return self._module(given, own, place)
        if tag == "s":
            made = self.value(given, place=place)
            self._changes.append(lambda: own.load_state_dict(made))
            return own
        return self._generator(given, own) if tag == "g" else self._object(given, own, place)

    def placed(self, name: str, device: torch.device, own: Any = MISSING) -> torch.Tensor:
        """Return a received tensor. If this node's tensor `own` has its shape and dtype, copy the
        received values into `own`, and return `own`.
        """
        value = self._tensors[name]
        if isinstance(own, torch.Tensor) and _are_alike(local(own), value):
            self._changes.append(lambda: local(own).copy_(value))
            return own
        if name not in self._made:
            self._made[name] = value.to(device, copy=True)
        return self._made[name]

    def attributes(self, owner: Any, given: Iterable[Any], place: str) -> None:
        """Set the attributes of an object to received values, in place."""
        own = vars(owner)
        for name, tree in given:
            is_new = name not in own
            is_method = hasattr(type(owner), name) if is_new else isinstance(own[name], _METHODS)
            if is_method or (is_new and not name.isidentifier()):
                raise UnfitStateError(f"{place} has no attribute {name!r:.40} on this node")
            value = self.value(tree, own.get(name, MISSING), f"{place}.{name}")
            self._changes.append(partial(own.__setitem__, name, value))

    def key(self, tree: Any) -> Any:
        match tree:
            case {"i": number}:
                return id(self._parameters[number])
            case {"u": items}:
                return tuple(map(self.key, items))
            case _:
                return self.value(tree)

    def _sequence(self, kind: Any, given: list[Any], own: Any, place: str) -> Any:
        before: list[Any] = [*own] if type(own) is kind else []
        before += [MISSING] * (len(given) - len(before))
        items = [self.value(tree, before[at], f"{place}[{at}]") for at, tree in enumerate(given)]
        if kind is not tuple and type(own) is kind:
            self._changes += [own.clear, partial(own.extend, items)]
            return own
        return kind(items)

    def _mapping(self, given: list[Any], own: Any, place: str) -> Any:
        found = own if isinstance(own, dict) else {}
        keys = [self.key(key) for key, _ in given]
        made = {
            key: self.value(tree, found.get(key, MISSING), f"{place}[{key!r:.40}]")
            for key, (_, tree) in zip(keys, given, strict=True)
        }
        self._changes += [found.clear, partial(found.update, made)]
        return found

    def _module(self, given: list[Any], own: Any, place: str) -> Any:
        tensors = dict(_tensors_in(own))
        for name, tree in given:
            if self.value(tree, tensors[name], place) is not tensors[name]:
                raise UnfitStateError(
                    f"the tensor {name!r:.40} of {place} in the state does not match the tensor on "
                    "this node (shape, dtype or parameter)"
                )
        return own

    def _generator(self, given: str, own: Any) -> Any:
        if not isinstance(own, torch.Generator):
            raise UnfitStateError("the state has a random number generator that this node lacks")
        state = self._tensors[given]
        torch.Generator(own.device).set_state(state)  # raises before anything has changed
        self._changes.append(lambda: own.set_state(state))
        return own

    def _object(self, given: Any, own: Any, place: str) -> Any:
        name, attributes = given
        if own is MISSING or own is None:
            own = self._new(name, place)
        if type(own).__qualname__ != name:
            raise UnfitStateError(
                f"the object {place} has the class {name!r:.40} in the state, but the class "
                f"{type(own).__qualname__} on this node"
            )
        self.attributes(own, attributes, place)
        return own

    def _new(self, name: str, place: str) -> Any:
        """Return an empty object of a class that the optimizer's Python modules define."""
        packages = {module.partition(".")[0] for module in self._modules}
        for module in self._modules:
            kind: Any = getattr(sys.modules.get(module), name, None)
            is_plain = type(kind) is type and not hasattr(kind, "__del__")
            if is_plain and kind.__module__.partition(".")[0] in packages:
                return object.__new__(kind)
        raise UnfitStateError(f"{place} has the class {name!r:.40}, which this node does not have")


def _are_alike(own: torch.Tensor, value: torch.Tensor) -> bool:
    if own.shape != value.shape or own.dtype != value.dtype:
        return False
    return not why_not_mergeable(own)


def modules_of(owners: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the Python modules, except torch's, that define the objects' classes."""
    for owner in owners:
        for kind in type(owner).__mro__:
            if kind.__module__.partition(".")[0] not in ("torch", "builtins", "typing", "abc"):
                yield kind.__module__
