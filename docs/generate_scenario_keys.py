"""The page docs/scenario-keys.md: every key of a scenario for `dpwa sim`, with type and default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from generate_settings import facts, text

from dpwa.sim.scenario import Scenario
from dpwa.sim.tasks import TASKS

HEAD = """\
# Every key of a scenario

This page lists the type, limits and default of each key of a scenario for
[`dpwa sim`](simulator.md). A scenario can also have the [settings](settings.md) of a configuration.
`python docs/generate.py` writes this page.
"""


def page() -> str:
    """Return the whole page."""
    schema = Scenario.model_json_schema()
    lines = [HEAD, *_table(schema)]
    lines += _below("", schema, schema["$defs"])
    for name, task in TASKS.items():
        options = task.options.model_json_schema()
        lines += ["", f"## {name}", "", f"Options of `task: {name}`.", "", *_table(options)]
    return "\n".join(lines).rstrip() + "\n"


def _below(path: str, schema: Mapping[str, Any], definitions: Any) -> Iterator[str]:
    """Yield a section for each key that is a mapping, or a list of mappings."""
    for key, found in schema["properties"].items():
        reference = found.get("$ref") or found.get("items", {}).get("$ref")
        if reference:
            below = definitions[reference.rpartition("/")[2]]
            each = "Each has these keys. " if "items" in found else ""
            yield from ("", f"## {path}{key}", "", f"{each}{below['description']}", "")
            yield from _table(below)
            yield from _below(f"{path}{key}.", below, definitions)


def _table(schema: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| key | type | meaning |", "|---|---|---|")
    for key, found in schema["properties"].items():
        yield f"| `{key}` | {facts(_plain(found))} | {text(found)} |"


def _plain(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out defaults of mappings, whose keys have their own."""
    default = schema.get("default")
    return {
        k: v for k, v in schema.items() if k != "default" or not isinstance(default, (dict, list))
    }
