"""Turns plain values into a typed object, and records each mistake at its value.

The JSON Schema of a setting decides whether a scalar is text or a number. YAML 1.1 would read
`22:22` as 1342, `off` as False and `1e-3` as text. Here `off` is 0 if the setting is a number, and
text keeps its spelling. Pydantic alone would read true as 1, and refuse `off` and `1e3`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache, cached_property
from numbers import Integral, Real
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dpwa.config.document import MISSING, SOURCE, Document, Scalar
from dpwa.config.problems import Loc, got, listing, suggestion, unknown_key
from dpwa.errors import without_codes
from dpwa.types import StrictModel

_OFF = ("off", "no", "false")
_ON = ("on", "yes", "true")
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)(e[-+]?[0-9]+)?")
_LONGEST_NUMBER = 400  # characters; Python refuses to convert more than 4300 digits
_NOT_FINITE = re.compile(r"([-+]?)\.?(inf|infinity|nan)")
_SINGLE = {"string": "text", "boolean": "on or off", "null": "nothing"}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
}

_Schema = dict[str, Any]
_Model = TypeVar("_Model", bound=StrictModel)


def read_model(
    model: type[_Model],
    document: Document,
    loc: Loc = (),
    *,
    keys: Collection[str] | None = None,
    ignored: Collection[str] = (),
) -> _Model | None:
    """Return the value at a path of a document as a model, or `None` after recording mistakes.

    If the mapping there has other keys as well, `keys` are the keys of the model. Errors whose type
    is in `ignored` are not recorded.
    """
    try:
        return model.model_validate(plain_values(model, document, loc, keys))
    except ValidationError as error:
        details = error.errors(include_url=False)
    deeper = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    for detail in details:
        # If an item of a list is wrong, pydantic may also report that the list is too short.
        if detail["type"] not in ignored and detail["loc"] not in deeper:
            _note(detail, document, loc, _shape_of(model))
    return None


def plain_values(
    model: type[StrictModel], document: Document, loc: Loc, keys: Collection[str] | None = None
) -> Any:
    """Return the values at a path, with scalars converted to the types of a model."""
    plain = _shape_of(model).plain(document.at(loc))
    return plain if keys is None else {key: plain[key] for key in keys if key in plain}


def mistakes(model: type[StrictModel], values: object, name: str) -> str:
    """Return one line, with an error code, about the mistakes in values that a model refused."""
    document = Document()
    document.write((name,), values, SOURCE)
    read_model(model, document, (name,))
    found = [line.removeprefix(f"{SOURCE}: ") for line in document.problems.lines()]
    if not found:
        return f"{name}: expected other values (got {values!r:.60}) [DPWA-E241]"
    told = list(map(without_codes, found))
    return "; ".join(told) + found[0].removeprefix(told[0])


def number(text: str) -> float | int | None:
    """Return the number in text such as `1e-3`, `.5`, `1_000` or `.inf`, or `None`."""
    text = text.strip().lower()
    if len(text) > _LONGEST_NUMBER:
        return None
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    special = _NOT_FINITE.fullmatch(text)
    return float(special[1] + special[2]) if special else None


def means_off(value: object) -> bool:
    """Return whether a value means off. Such values are nothing, 0, off, no and false."""
    if isinstance(value, str):
        return value.strip().lower() in ("", *_OFF) or number(value) == 0
    return value is None or (isinstance(value, Real) and value == 0)


def _note(detail: ErrorDetails, document: Document, loc: Loc, shape: _Shape) -> None:
    """Record a pydantic error in a value. The message names the values that the schema allows."""
    known = list(shape.keys)
    found = document.at(loc)
    for step in detail["loc"]:
        below = document.at((*loc, step))
        if below is MISSING and not (isinstance(found, dict) and step in shape.keys):
            break  # this step is not a key or index, but for example the name of a type
        known, found, loc, shape = list(shape.keys), below, (*loc, step), shape.below(step)
    if detail["type"] == "extra_forbidden":
        document.note_key(loc, unknown_key(str(loc[-1]), known))
    elif detail["loc"][-1:] == ("[key]",):
        document.note_key(loc, _message(detail, loc[-1], shape))
    else:
        document.note(loc, _message(detail, found, shape))


def _message(detail: ErrorDetails, found: object, shape: _Shape) -> str:
    expected, known = shape.expected, list(map(str, shape.words))
    context = detail.get("ctx", {})
    if found is MISSING:
        return f"missing, expected {context.get('expected') or expected or 'a value'} [DPWA-E208]"
    if context.keys() >= {"expected", "known"}:  # a refusal, see `dpwa.types`
        expected, known = context["expected"], context["known"]
    elif detail["type"] in ("value_error", "assertion_error"):
        # The error of a validator in a plugin. Its message is used unchanged.
        return f"{context['error']} (got {got(found)})"
    elif detail["type"] == "finite_number":
        expected = expected.replace("a number", "a finite number")
    hint = suggestion(found, known) if isinstance(found, str) else ""
    return f"expected {expected or detail['msg']} (got {got(found)}){hint}"


@cache
def _shape_of(model: type[StrictModel]) -> _Shape:
    schema = model.model_json_schema()  # takes milliseconds, so it is cached
    return _Shape(schema, schema.get("$defs", {}))


class _Shape:
    """The values that a JSON Schema allows at one place."""

    def __init__(self, schema: _Schema, definitions: dict[str, _Schema]) -> None:
        self._definitions = definitions
        self._options = list(_alternatives(schema, definitions))
        self._kinds = {option.get("type") for option in self._options}
        self.words = [word for option in self._options for word in _words(option)]
        self.keys = self._keyword("properties")
        self._below: dict[str, _Shape] = {}

    def below(self, step: str | int) -> _Shape:
        """Return the `_Shape` for a list item (`step` is the index) or for the value of a key."""
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
        """Return the value of a keyword in the first alternative that has the keyword."""
        return next((o[keyword] for o in self._options if isinstance(o.get(keyword), dict)), {})

    def plain(self, value: object) -> Any:
        """Return a value with its scalars converted. Scalars that do not fit are unchanged."""
        if isinstance(value, dict):
            return {key: self.below(key).plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._items.plain(item) for item in value]
        is_number = not self._kinds.isdisjoint(("integer", "number"))
        if isinstance(value, str):
            text = str.__str__(value)  # not `str(value)`, which is the name of an enum
            is_untyped = self._kinds == {None} and not self.words and isinstance(value, Scalar)
            return _untyped(text) if is_untyped else self._of_text(text)
        if isinstance(value, bool):
            if not value and "off" in self.words:  # other YAML parsers read `off` as False
                return "off"
            if not is_number or "boolean" in self._kinds:
                return value
            return "true" if value else self._off  # text, because validation reads True as 1
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
        """Return the value that `off` means. It is `None` if the setting allows null, else 0."""
        return None if "null" in self._kinds else 0

    @cached_property
    def expected(self) -> str:
        """Return the allowed values in words, or empty text if there is nothing useful to say."""
        phrases = map(_phrase, self._options)
        return " or ".join(phrase for phrase in dict.fromkeys(phrases) if phrase)


def _alternatives(schema: _Schema, definitions: dict[str, _Schema]) -> Iterator[_Schema]:
    """Yield the alternatives of a schema. A value must match an alternative. Follow references."""
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
