"""A tree becomes a typed object; every mistake is noted at the value that it is about.

What a scalar means is decided by the JSON Schema of its setting: YAML 1.1 would read `22:22` as
1342, `off` as False and `1e-3` as text. Here `off` is 0 where a number is meant, and text keeps its
spelling. Pydantic alone would take true for 1, and knows neither `off` nor `1e3` as a whole number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache, cached_property, reduce
from numbers import Integral, Real
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dpwa.config.problems import (
    REMOVED,
    Place,
    Problems,
    joined,
    listing,
    suggestion,
)
from dpwa.config.tree import (
    SOURCE,
    BrokenNode,
    ListNode,
    MapNode,
    Node,
    PythonSource,
    ScalarNode,
)
from dpwa.errors import without_codes
from dpwa.types import StrictModel

_OFF = ("off", "no", "false")
_ON = ("on", "yes", "true")
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)(e[-+]?[0-9]+)?")
_LONGEST_NUMBER = 400  # Python refuses to convert integers of more than 4300 digits
_NOT_FINITE = re.compile(r"([-+]?)\.?(inf|infinity|nan)")
_SINGLE = {"string": "text", "boolean": "on or off", "null": "nothing"}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
}

# Options of the program of LSGD, as people write them into a configuration.
_FORMER = {
    "dist_optimizer": "algorithm: lsgd",
    "l_comm": "lsgd.local_period, which is that times the number of nodes",
    "g_comm": "lsgd.global_period, which is that times the number of nodes",
    "avg_size": "loss_window",
    "no_prox": "lsgd: {p1: 0, p2: 0}",
    "num_groups": "group, at each of the nodes",
    "cur_group": "group, at each of the nodes",
    "lr_lin": "lr * (gossip.rank + 1) in your program; lr_spread: linear has lr as its middle",
    "lr_pow": "lr * 2**gossip.rank in your program; lr_spread: power has lr as its middle",
}

_Schema = dict[str, Any]
_Steps = tuple[str | int, ...]  # of a key path; the first is a path already
_Model = TypeVar("_Model", bound=StrictModel)


def read_model(model: type[_Model], node: Node, path: str, problems: Problems) -> _Model | None:
    """Read a tree as a model and note every mistake; `None` if it cannot be read.

    `path` is the key path of the tree.
    """
    return validated(model, node, plain_values(model, node, path, problems), path, problems)


def plain_values(model: type[StrictModel], node: Node, path: str, problems: Problems) -> Any:
    """Return a tree as plain values for the model to validate.

    Notes duplicate keys and values that cannot be used at all.
    """
    return _shape_of(model).plain(node, (path,), problems)


def validated(
    model: type[_Model],
    node: Node,
    plain: object,
    path: str,
    problems: Problems,
    *,
    ignore: Collection[str] = (),
) -> _Model | None:
    """Make a model of a tree's plain values; errors of the types in `ignore` are not noted."""
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        details = error.errors(include_url=False)
    deeper = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    for detail in details:
        # Where something below a value is wrong, pydantic may count it as too short as well.
        if detail["type"] not in ignore and detail["loc"] not in deeper:
            _note(detail, node, _shape_of(model), path, problems)
    return None


def mistakes(model: type[StrictModel], values: object, path: str) -> str:
    """Say in one line, with a code, what is wrong with plain values that a model has refused."""
    problems = Problems()
    read_model(model, PythonSource().node(values), path, problems)
    found = [line.removeprefix(f"{SOURCE}: ") for line in problems.lines()]
    if not found:
        return f"{path}: expected other values (got {values!r:.60}) [DPWA-E241]"
    told = list(map(without_codes, found))
    return "; ".join(told) + found[0].removeprefix(told[0])


def note_duplicates(node: MapNode, path: str, problems: Problems) -> None:
    """Note every key of a mapping that an earlier entry has already."""
    first: dict[str, Place] = {}
    for entry in node.entries:
        if entry.key in first:
            line = first[entry.key].line
            where = f" (first on line {line})" if line else ""
            message = f"duplicate key, expected it once{where} [DPWA-E209]"
            problems.add(entry.place, joined(path, entry.key), message)
        first.setdefault(entry.key, entry.place)


def unknown_key(key: str, known: list[str]) -> str:
    """Return the message about a key that nothing is known by."""
    if key in REMOVED:
        return f"unknown key, expected {REMOVED[key]} [DPWA-E206]"
    if key in _FORMER:
        return f"unknown key, expected {_FORMER[key]} (see docs/migration.md) [DPWA-E206]"
    if not known:
        return "unknown key, expected none [DPWA-E206]"
    return (
        f"unknown key{suggestion(key, known) or ', expected one of ' + listing(known)} [DPWA-E206]"
    )


def number(text: str) -> float | int | None:
    """Read a number as people write it: `1e-3`, `.5`, `1_000`, `.inf`; `None` if it is none."""
    text = text.strip().lower()
    if len(text) > _LONGEST_NUMBER:
        return None
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    special = _NOT_FINITE.fullmatch(text)
    return float(special[1] + special[2]) if special else None


def means_off(node: Node) -> bool:
    """Tell whether a value switches something off: nothing, 0, off, no or false."""
    if not isinstance(node, ScalarNode):
        return False
    value = node.value
    if isinstance(value, str):
        return value.strip().lower() in ("", *_OFF) or number(value) == 0
    return value is None or (isinstance(value, Real) and value == 0)


def _note(detail: ErrorDetails, node: Node, shape: _Shape, path: str, problems: Problems) -> None:
    """Note an error of pydantic at its value, in the words of its schema."""
    is_of_key = detail["type"] == "extra_forbidden"
    found: Node | None = node
    place, known = node.place, list(shape.keys)
    for step in detail["loc"]:
        if isinstance(found, ListNode) and isinstance(step, int):
            found = found.items[step]
            place = found.place
        elif isinstance(found, MapNode) and isinstance(step, str):
            entry = found.find(step)
            if entry:
                place = entry.place if is_of_key else entry.value.place
            elif step not in shape.keys:
                break
            known, found = list(shape.keys), entry.value if entry else None
        else:
            break
        shape, path = shape.below(step), joined(path, step)
    if is_of_key and not isinstance(found, BrokenNode):
        problems.add(place, path, unknown_key(str(detail["loc"][-1]), known))
    elif not isinstance(found, BrokenNode):
        problems.add(place, path, _message(detail, found, shape))


def _message(detail: ErrorDetails, node: Node | None, shape: _Shape) -> str:
    expected, known = shape.expected, list(map(str, shape.words))
    context = detail.get("ctx", {})
    if node is None:  # a key that is missing
        return f"missing, expected {context.get('expected') or expected or 'a value'} [DPWA-E208]"
    if context.keys() >= {"expected", "known"}:  # a refusal, see `dpwa.types`
        expected, known = context["expected"], context["known"]
    elif detail["type"] in ("value_error", "assertion_error"):
        # A validator of the user's own: its sentence stands as it is.
        return f"{context['error']} (got {node.shown})"
    elif detail["type"] == "finite_number":
        expected = expected.replace("a number", "a finite number")
    meant = node.value if isinstance(node, ScalarNode) else None
    hint = suggestion(meant, known) if isinstance(meant, str) else ""
    return f"expected {expected or detail['msg']} (got {node.shown}){hint}"


@cache
def _shape_of(model: type[StrictModel]) -> _Shape:
    schema = model.model_json_schema()  # which takes milliseconds
    return _Shape(schema, schema.get("$defs", {}))


class _Shape:
    """What a JSON Schema allows one value to be."""

    def __init__(self, schema: _Schema, definitions: dict[str, _Schema]) -> None:
        self._definitions = definitions
        self._options = list(_alternatives(schema, definitions))
        self._kinds = {option.get("type") for option in self._options}
        self.words = [word for option in self._options for word in _words(option)]
        self.keys = self._keyword("properties")
        self._below: dict[str, _Shape] = {}

    def below(self, step: str | int) -> _Shape:
        """Return the shape of an item, or of the value of a key."""
        if isinstance(step, int):
            return self._items
        if step in self.keys and step not in self._below:
            self._below[step] = _Shape(self.keys[step], self._definitions)
        return self._below.get(step) or self._others

    @cached_property
    def _items(self) -> _Shape:
        return _Shape(self._keyword("items"), self._definitions)

    @cached_property
    def _others(self) -> _Shape:
        return _Shape(self._keyword("additionalProperties"), self._definitions)

    def _keyword(self, keyword: str) -> _Schema:
        """Return this keyword of the first alternative that has it."""
        return next((o[keyword] for o in self._options if isinstance(o.get(keyword), dict)), {})

    def plain(self, node: Node, steps: _Steps, problems: Problems) -> Any:
        if isinstance(node, ScalarNode):
            return self._meaning(node)
        if isinstance(node, ListNode):
            item = self.below(0)
            return [item.plain(n, (*steps, i), problems) for i, n in enumerate(node.items)]
        if isinstance(node, BrokenNode):
            problems.add(node.place, _path(steps), node.message)
            return None
        plain: dict[str, object] = {}
        for entry in node.entries:
            key = entry.key
            if key not in plain:
                plain[key] = self.below(key).plain(entry.value, (*steps, key), problems)
        if len(plain) < len(node.entries):
            note_duplicates(node, _path(steps), problems)
        return plain

    def _meaning(self, node: ScalarNode) -> object:
        """Return what a scalar means; one that means nothing here stays as it is."""
        value, is_number = node.value, not self._kinds.isdisjoint(("integer", "number"))
        if isinstance(value, str):
            is_any = self._kinds == {None} and not self.words
            return _untyped(value) if is_any and not node.quoted else self._of_text(value)
        if isinstance(value, bool):
            if not value and "off" in self.words:  # what other readers of YAML make of the word
                return "off"
            if not is_number or "boolean" in self._kinds:
                return value
            return "true" if value else self._off  # text: validation would take True for 1
        if isinstance(value, Integral):
            return str(int(value)) if "string" in self._kinds and not is_number else int(value)
        return float(value) if isinstance(value, Real) else value

    def _of_text(self, text: str) -> object:
        lowered = text.strip().lower()
        if "boolean" in self._kinds and lowered in (*_ON, *_OFF):
            return lowered in _ON
        if not self._kinds.isdisjoint(("integer", "number")):
            if lowered in _OFF:
                return self._off
            found = number(lowered)
            return text if found is None else found
        return next((word for word in self.words if str(word).lower() == lowered), text)

    @property
    def _off(self) -> int | None:
        """Return 0, or `None` where the setting may be left without a value."""
        return None if "null" in self._kinds else 0

    @cached_property
    def expected(self) -> str:
        """Say what is allowed; empty if there is nothing useful to say."""
        phrases = map(_phrase, self._options)
        return " or ".join(phrase for phrase in dict.fromkeys(phrases) if phrase)


def _alternatives(schema: _Schema, definitions: dict[str, _Schema]) -> Iterator[_Schema]:
    """Yield the schemas of which a value must meet one, with references followed."""
    parts = [part for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, ())]
    if "$ref" in schema:
        parts = [definitions[schema["$ref"].rpartition("/")[2]]]
    if not parts:
        yield schema
    for part in parts:
        yield from _alternatives(part, definitions)


def _untyped(text: str) -> object:
    found = number(text)
    return {"true": True, "false": False}.get(text.lower(), text) if found is None else found


def _path(steps: _Steps) -> str:
    return reduce(joined, steps[1:], str(steps[0]))


def _words(schema: _Schema) -> list[Any]:
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))


def _phrase(schema: _Schema) -> str:
    words, kind = list(map(str, _words(schema))), str(schema.get("type"))
    if words:
        return words[0] if len(words) == 1 else f"one of {listing(words)}"
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _range(schema)
    if kind == "array":
        least = schema.get("minItems", 0)
        bound = "" if least == schema.get("maxItems") else "at least "
        return f"a list with {bound}{least} item{'s' * (least != 1)}" if least else "a list"
    if kind == "object":
        keys = ", ".join(schema.get("properties", ()))
        return f"a mapping with {keys}" if keys else "a mapping"
    return _SINGLE.get(kind, "")


def _range(schema: _Schema) -> str:
    shown = {key: _bound(schema[key]) for key in _BOUNDS if key in schema}
    if "minimum" in shown and "maximum" in shown:
        return f" from {shown['minimum']} to {shown['maximum']}"
    bounds = [f"{words} {shown[key]}" for key, words in _BOUNDS.items() if key in shown]
    return f" {' and '.join(bounds)}" if bounds else ""


def _bound(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
