"""What a single value means, decided by the JSON Schema of the setting that it is for.

YAML 1.1 would read `22:22` as 1342, `off` as False and `1e-3` as text. Here a number is what a
person would call a number, `off` is 0 where a number is meant, and text keeps its spelling.
"""

from __future__ import annotations

import re
from numbers import Integral, Real
from typing import Any

from dpwa.config.problems import words_of
from dpwa.config.tree import Node, ScalarNode

_OFF = ("off", "no", "false")
_ON = ("on", "yes", "true")
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)(e[-+]?[0-9]+)?")
_LONGEST_NUMBER = 400  # Python refuses to convert integers of more than 4300 digits
_NOT_FINITE = re.compile(r"([-+]?)\.?(inf|infinity|nan)")


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


def meaning(node: ScalarNode, options: list[dict[str, Any]]) -> object:
    """Return a scalar as the plain value that it means where one of these schemas is to be met.

    A value that means nothing there is returned as it is, for validation to refuse.
    """
    kinds = {option.get("type") for option in options}
    words = [word for option in options for word in words_of(option)]
    value = node.value
    if isinstance(value, str):
        untyped = kinds == {None} and not words and not node.quoted
        return _untyped(value) if untyped else _text_meaning(value, kinds, words)
    numeric = bool(kinds & {"integer", "number"})
    if isinstance(value, bool):
        if not value and "off" in words:  # what other readers of YAML make of the word
            return "off"
        if not numeric or "boolean" in kinds:
            return value
        # As text, so that validation does not take it for 1.
        return "true" if value else _nothing(kinds)
    if isinstance(value, Integral):
        return str(int(value)) if "string" in kinds and not numeric else int(value)
    return float(value) if isinstance(value, Real) else value


def _text_meaning(text: str, kinds: set[Any], words: list[Any]) -> object:
    lowered = text.strip().lower()
    if "boolean" in kinds and lowered in (*_ON, *_OFF):
        return lowered in _ON
    if kinds & {"integer", "number"}:
        if lowered in _OFF:
            return _nothing(kinds)
        found = number(lowered)
        return text if found is None else found
    same = [word for word in words if str(word).lower() == lowered]
    return same[0] if same else text


def _untyped(text: str) -> object:
    found = number(text)
    if found is not None:
        return found
    return {"true": True, "false": False}.get(text.lower(), text)


def _nothing(kinds: set[Any]) -> int | None:
    """`off` is 0, or no value at all where the setting may be left without one."""
    return None if "null" in kinds else 0
