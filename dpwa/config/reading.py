"""A tree to a typed object, with every mistake noted at the value that it is about."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dpwa.config.problems import (
    UNKNOWN_CODEC,
    Place,
    Problems,
    alternatives,
    expectation,
    joined,
    listing,
    suggestion,
)
from dpwa.config.python_source import SOURCE, PythonSource
from dpwa.config.scalars import meaning
from dpwa.config.tree import BrokenNode, ListNode, MapNode, Node, ScalarNode
from dpwa.types import REFUSAL, StrictModel

# Options of the program of LSGD, as people write them into a configuration.
_FORMER = {
    "dist_optimizer": "algorithm: lsgd",
    "l_comm": "lsgd.local_period, which is that times the number of nodes",
    "g_comm": "lsgd.global_period, which is that times the number of nodes",
    "avg_size": "loss_window",
    "no_prox": "lsgd: {p1: 0, p2: 0}",
    "num_groups": "group, at each of the nodes",
    "cur_group": "group, at each of the nodes",
    "lr_lin": "lr_spread: linear",
    "lr_pow": "lr_spread: power",
}

_Schema = dict[str, Any]
_Model = TypeVar("_Model", bound=StrictModel)


@cache
def schema_of(model: type[StrictModel]) -> _Schema:
    """Return the JSON Schema of a model, which takes milliseconds to work out."""
    return model.model_json_schema()


def plain_values(schema: _Schema, node: Node, path: str, problems: Problems) -> object:
    """Return a tree as plain values for a model of this JSON Schema to validate.

    Notes duplicate keys and values that cannot be used at all.
    """
    return _Reader(schema.get("$defs", {}), problems).value(node, schema, path)


def read_model(
    model: type[_Model], node: Node, path: str, problems: Problems, *, ignore: Collection[str] = ()
) -> _Model | None:
    """Read a tree as a model and note every mistake; `None` if it cannot be read.

    Args:
        model: what to read.
        node: the tree.
        path: key path of the tree, the beginning of every path in messages.
        problems: where mistakes are noted.
        ignore: types of validation errors that are not to be noted.
    """
    schema = schema_of(model)
    plain = plain_values(schema, node, path, problems)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        start = _Spot(node, schema, path, node.place, schema.get("$defs", {}))
        details = error.errors(include_url=False)
        for detail in details:
            if detail["type"] not in ignore and not _is_consequence(detail, details):
                _report(start, detail, problems)
        return None


def mistakes(model: type[StrictModel], values: object, path: str) -> str:
    """Say in one line what is wrong with plain values that a model has refused.

    Args:
        model: that has refused them.
        values: a mapping.
        path: what they are, the beginning of every key path.
    """
    problems = Problems()
    read_model(model, PythonSource().node(values), path, problems)
    found = [line.removeprefix(f"{SOURCE}: ") for line in problems.lines()]
    return "; ".join(found) or f"{path}: expected other values (got {values!r:.60})"


def note_duplicates(node: MapNode, path: str, problems: Problems) -> None:
    """Note every key of a mapping that an earlier entry has already."""
    first: dict[str, Place] = {}
    for entry in node.entries:
        if entry.key in first:
            line = first[entry.key].line
            where = f" (first on line {line})" if line else ""
            message = f"duplicate key, expected it once{where}"
            problems.add(entry.place, joined(path, entry.key), message)
        first.setdefault(entry.key, entry.place)


def unknown_key(key: str, known: list[str]) -> str:
    """Return the message about a key that nothing is known by."""
    if key in _FORMER:
        return f"unknown key, expected {_FORMER[key]} (see docs/migration.md)"
    if not known:
        return "unknown key, expected none"
    return f"unknown key{suggestion(key, known) or ', expected one of ' + listing(known)}"


class _Reader:
    def __init__(self, definitions: dict[str, _Schema], problems: Problems) -> None:
        self._definitions = definitions
        self._problems = problems

    def value(self, node: Node, schema: _Schema, path: str) -> object:
        options = alternatives(schema, self._definitions)
        if isinstance(node, ScalarNode):
            return meaning(node, options)
        if isinstance(node, ListNode):
            items = _keyword(options, "items")
            return [self.value(item, items, joined(path, i)) for i, item in enumerate(node.items)]
        if isinstance(node, MapNode):
            return self._mapping(node, options, path)
        self._problems.add(node.place, path, node.message)
        return None

    def _mapping(self, node: MapNode, options: list[_Schema], path: str) -> dict[str, object]:
        note_duplicates(node, path, self._problems)
        properties = _keyword(options, "properties")
        others = _keyword(options, "additionalProperties")
        plain: dict[str, object] = {}
        for entry in node.entries:
            if entry.key not in plain:
                below = joined(path, entry.key)
                schema = properties.get(entry.key, others)
                plain[entry.key] = self.value(entry.value, schema, below)
        return plain


@dataclass(frozen=True)
class _Spot:
    """A value in the tree, the schema it should meet and the place to point at."""

    node: Node | None
    schema: _Schema
    path: str
    place: Place
    definitions: dict[str, _Schema]

    def below(self, step: str | int) -> _Spot | None:
        """Descend to an item or key; `None` where the tree and the schema have no such thing."""
        options = alternatives(self.schema, self.definitions)
        path = joined(self.path, step)
        if isinstance(self.node, ListNode) and isinstance(step, int):
            item = self.node.items[step]
            return _Spot(item, _keyword(options, "items"), path, item.place, self.definitions)
        if not isinstance(self.node, MapNode) or not isinstance(step, str):
            return None
        properties = _keyword(options, "properties")
        schema = properties.get(step, _keyword(options, "additionalProperties"))
        entry = self.node.find(step)
        if entry is not None:
            return _Spot(entry.value, schema, path, entry.value.place, self.definitions)
        # A key that is missing: point at the mapping that should have it.
        return (
            _Spot(None, schema, path, self.place, self.definitions) if step in properties else None
        )


def _is_consequence(detail: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Tell whether something below the value is wrong: pydantic then may count it as too short."""
    depth = len(detail["loc"])
    return any(
        len(other["loc"]) > depth and other["loc"][:depth] == detail["loc"] for other in details
    )


def _report(start: _Spot, detail: ErrorDetails, problems: Problems) -> None:
    spot = parent = start
    for step in detail["loc"]:
        below = spot.below(step)
        if below is None:
            break
        spot, parent = below, spot
    if isinstance(spot.node, BrokenNode):
        return
    if detail["type"] == "extra_forbidden" and isinstance(parent.node, MapNode):
        key = str(detail["loc"][-1])
        entry = parent.node.find(key)
        known = list(_keyword(alternatives(parent.schema, parent.definitions), "properties"))
        place = entry.place if entry else spot.place
        problems.add(place, spot.path, unknown_key(key, known))
    else:
        problems.add(spot.place, spot.path, _message(spot, detail))


def _message(spot: _Spot, detail: ErrorDetails) -> str:
    expected = expectation(spot.schema, spot.definitions)
    context = detail.get("ctx", {})
    if spot.node is None:
        return f"missing, expected {context.get('expected') or expected or 'a value'}"
    options = alternatives(spot.schema, spot.definitions)
    known = [word for option in options for word in option.get("enum", ())]
    if detail["type"] in (REFUSAL, UNKNOWN_CODEC):
        expected, known = context["expected"], context["known"]
    elif detail["type"] in ("value_error", "assertion_error"):
        # A validator of the user's own: its sentence stands as it is.
        return f"{context['error']} (got {spot.node.shown})"
    elif detail["type"] == "finite_number":
        expected = expected.replace("a number", "a finite number")
    meant = spot.node.value if isinstance(spot.node, ScalarNode) else None
    hint = suggestion(meant, map(str, known)) if isinstance(meant, str) else ""
    return f"expected {expected or detail['msg']} (got {spot.node.shown}){hint}"


def _keyword(options: list[_Schema], keyword: str) -> _Schema:
    """Return what the first of the alternatives that has this keyword says."""
    return next((o[keyword] for o in options if isinstance(o.get(keyword), dict)), {})
