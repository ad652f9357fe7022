"""The page docs/settings.md: every setting with its type, limits, default and variable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpwa.config.comparison import unlike
from dpwa.config.methods import KINDS
from dpwa.config.schema import config_schema, variable_of, variables

HEAD = """\
# Every setting

This page lists the type, limits, default and environment variable of each setting. Values may differ between nodes,
unless a setting says otherwise. Nodes compare the settings that must be equal when they connect, and both nodes name
each difference. Then they warn ([DPWA-W087](troubleshooting.md)), or they do not merge each other
([DPWA-W007](troubleshooting.md)). `dpwa doctor` compares the settings of all nodes, too.
[Configuration](configuration.md) explains the settings. `python docs/generate.py` writes this page.

"""  # noqa: E501
KIND_TITLES = {
    "interpolation": "interpolation rules",
    "algorithm": "algorithms",
    "topology": "topologies",
    "robust": "robust merging",
}
TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`on` or `off`",
    "object": "mapping of names to text",
    "null": "nothing",
}
LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


def page() -> str:
    """Return the whole page."""
    definitions = config_schema()["$defs"]
    settings = definitions["Config"]["properties"]
    methods = {name: kind.setting for kind in KINDS for name in kind.names()}
    plain = {name: schema for name, schema in settings.items() if name not in methods}
    lines = [HEAD + ", ".join(f"[{name}](#{name})" for name in plain), "", "## Settings"]
    for name, schema in plain.items():
        lines += ["", f"### {name}", "", text(schema), "", facts(schema, (name,)) + _between(name)]
        lines += options(name, schema, definitions)
    for kind, title in KIND_TITLES.items():
        lines += ["", f"## Options of {title}"]
        for name in (name for name, of in methods.items() if of == kind):
            lines += ["", f"### `{kind}: {name}`", "", text(settings[name]).partition(": ")[2]]
            lines += list(options(name, settings[name], definitions)) or ["", "No options."]
    return "\n".join(lines).rstrip() + "\n"


def options(name: str, schema: Mapping[str, Any], definitions: Any) -> Iterator[str]:
    """Yield a table of what stands under a setting, if it is a mapping or a list of mappings."""
    for part in (schema, *schema.get("anyOf", ()), schema.get("items", {})):
        model = definitions[part["$ref"].rpartition("/")[2]] if "$ref" in part else {}
        properties = model.get("properties", {})
        if properties:
            yield from ("", "| key | type | meaning |", "|---|---|---|")
        for option, found in properties.items():
            kind = facts(found, (name, option)) + _between(name, option)
            yield f"| `{option}` | {kind} | {text(found)} |"


def _between(*path: str) -> str:
    """Return whether nodes must have equal values, or nothing if values may differ."""
    between = unlike(*path).value
    return "" if between == "may differ" else f"; {between}"


def facts(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return type, limits and default of a setting, and the variable of the one at a key path."""
    found = [_kind(schema)]
    if "default" in schema and not (schema["default"] is None and "anyOf" not in schema):
        found.append(f"default {_default(schema['default'])}")
    if path in variables().values():
        found.append(f"variable `{variable_of(path)}`")
    return "; ".join(found)


def _default(value: Any) -> str:
    if isinstance(value, dict) and value:
        return "as in the table"
    if value is None or value == "":
        return "nothing" if value is None else "empty"
    if value is False:
        return "`off`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _kind(schema: Mapping[str, Any]) -> str:
    """Say in words which values a schema allows."""
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"] if isinstance(word, str))
    if "anyOf" in schema:
        return ", or ".join(_kind(part) for part in schema["anyOf"])
    if "$ref" in schema:
        return "mapping"
    if schema["type"] == "array":
        items = schema["items"]
        return "list of mappings" if "$ref" in items else f"list of {_kind(items)}"
    return ", ".join([TYPES[schema["type"]], *_limits(schema)])


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    for key, word in LIMITS.items():
        if key in schema:
            yield f"{word} {json.dumps(schema[key])}".removesuffix(".0")


def text(schema: Mapping[str, Any]) -> str:
    """Return the description, whose signs mean nothing in Markdown."""
    return re.sub(r"([|<*])", r"\\\1", schema["description"])
