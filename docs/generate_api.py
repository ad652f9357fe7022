"""The page docs/api.md: the public classes, fields, functions and errors, from their docstrings.

Whatever has no docstring is no part of it, and the parameters and errors of a function stand in the
docstring itself.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from dpwa.config import Config

MODULES = (
    "dpwa",
    "dpwa.connection",
    "dpwa.adapters.pytorch",
    "dpwa.adapters.optimizer",
    "dpwa.adapters.merge",
    "dpwa.algorithms",
    "dpwa.tables",
    "dpwa.dataset",
    "dpwa.distributed",
    "dpwa.multiverso",
    "dpwa.config",
    "dpwa.launch",
    "dpwa.observe",
    "dpwa.testing",
    "dpwa.errors",
)
INTERNAL = {  # other modules of dpwa use them, users do not
    *(f"Config.{name}" for name in ("begins", "options", "require", "seeds")),
    *(f"DpwaConnection.{name}" for name in ("collectives", "described", "states")),
    *(f"NodeConfig.{name}" for name in ("listen_endpoint", "to_mapping")),
    *(f"NodeProcess.{name}" for name in ("discard", "reap", "remember", "stray")),
    *("GossipSteps", "Merge.of", "OptimizerGossip", "center_of", "close_former", "from_extra"),
    *("peer_config", "require_free_addresses", "require_module", "without_codes"),
    "DpwaPyTorchAdapter.collectives",
}
INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+\n*")
HEAD = """\
# Public names

This page lists the public classes, functions and errors, with their docstrings. Any other name may change without
notice. `python docs/generate.py` writes this page.

| you want to | use |
|---|---|
| train a torch module | [`dpwa.connect`](#dpwa), or [`DpwaPyTorchAdapter`](#dpwa); [`GossipOptimizer`](#dpwaadaptersoptimizer) |
| exchange arrays or bytes | [`DpwaConnection`](#dpwa) |
| read a merge, or the end of a run | [`Merge`](#dpwaadaptersmerge), [`FinishReport`](#dpwa) |
| wait for all nodes, or average exactly | `barrier`, `broadcast`, `all_reduce` and `all_gather` of [`DpwaConnection`](#dpwa), [`AllReduceSGD`, `AllReduceEA`, `EASGD`](#dpwaalgorithms) |
| share data | [`SharedSampler`, `shard`](#dpwadataset) |
| replace `torch.distributed` or Multiverso | [`dpwa.distributed`](#dpwadistributed), [`dpwa.multiverso`](#dpwamultiverso) |
| write an algorithm or a rule | [`Algorithm`](#dpwaalgorithms), [`register_interpolation`](#dpwa) |
| load or make a configuration | [`load_config`](#dpwa), [`Config`](#dpwa), [`NodeConfig`](#dpwaconfig) |
| start nodes from Python | [`run_nodes`](#dpwalaunch) |
| read run logs | [`load`](#dpwaobserve) |
| test against faults | [`FaultPlan`, `TcpProxy`, `VirtualNetwork`](#dpwatesting) |
| catch an error | [`DpwaError` and the errors below it](#dpwaerrors) |
"""  # noqa: E501


def page() -> str:
    """Return the whole page."""
    shown: dict[int, str] = {}  # the full name of each object that the page has so far
    parts = [HEAD, "Modules: " + ", ".join(f"[{name}](#{_anchor(name)})" for name in MODULES)]
    for name in MODULES:
        parts += ["", *_module(importlib.import_module(name), shown)]
    return "\n".join(parts).rstrip() + "\n"


def _module(module: ModuleType, shown: dict[int, str]) -> Iterator[str]:
    yield f"## {module.__name__}"
    yield ""
    yield from _text(module)
    repeated = []
    for name in _public_names(module):
        found = getattr(module, name)
        where = shown.setdefault(id(found), f"{module.__name__}.{name}")
        if where != f"{module.__name__}.{name}":
            repeated.append(f"`{where}`")
        elif inspect.isclass(found):
            yield from _class(name, found, shown)
        elif callable(found):
            yield from ("", f"### `{name}{_signature(found)}`", "", *_text(found))
    if repeated:
        yield from ("", f"The module also has {', '.join(repeated)}.")


def _public_names(module: ModuleType) -> list[str]:
    """Return the names in `__all__`, or else the names that the module itself defines."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return sorted(name for name in getattr(module, "__all__", own) if name not in INTERNAL)


def _class(name: str, found: type, shown: dict[int, str]) -> Iterator[str]:
    is_error = issubclass(found, BaseException)
    of = f"({', '.join(base.__name__ for base in found.__bases__)})" if is_error else ""
    fields = list(_fields(found))
    arguments = "" if dataclasses.is_dataclass(found) or fields else of or _signature(found)
    yield from ("", f"### class `{name}{arguments}`", "", *_text(found))
    if fields:
        yield from ("", *fields)
    inherited: dict[str, list[str]] = {}
    for member, value in _members(found):
        where = shown.setdefault(id(value), name)
        if f"{name}.{member}" in INTERNAL:
            continue
        if where != name:
            inherited.setdefault(where, []).append(f"`{member}`")
        elif isinstance(value, property):
            yield from ("", f"#### `{name}.{member}`", "", *_text(value))
        else:
            function = getattr(found, member)
            yield from ("", f"#### `{name}.{member}{_signature(function)}`", "", *_text(function))
    for where, members in inherited.items():
        if not is_error:
            yield from ("", f"It has the same {', '.join(members)} as `{where}`.")


def _fields(found: type) -> Iterator[str]:
    """Yield one line for each field that the docstring does not describe."""
    if found is Config:
        yield "The fields are the [settings](settings.md)."
    elif issubclass(found, BaseModel):
        for name, field in found.model_fields.items():
            default = "" if field.is_required() else f", default `{field.get_default()!r}`"
            yield f"- `{name}`{default}: {field.description or 'see above'}"
    elif dataclasses.is_dataclass(found) and "Attributes:" not in (found.__doc__ or ""):
        for one in dataclasses.fields(found):
            if not one.name.startswith("_"):
                yield f"- `{one.name}`: `{one.type}`"


def _members(found: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties, also those of bases within dpwa."""
    seen: dict[str, Any] = {}
    for base in found.__mro__:
        if base.__module__.startswith("dpwa"):
            for name, value in vars(base).items():
                if not name.startswith("_"):
                    seen.setdefault(name, value)
    for name, value in sorted(seen.items()):
        plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if inspect.isfunction(plain) or isinstance(value, property):
            yield name, value


def _signature(found: Any) -> str:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return "(...)"
    kept = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    text = str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))
    return text if " at 0x" not in text else "(...)"


def _text(found: object) -> list[str]:
    """Return a docstring, its sections as the field of Python writes them."""
    return _escaped(inspect.getdoc(found) or "").splitlines()


def _escaped(text: str) -> str:
    lines: list[str] = []
    is_section = False
    for line in text.splitlines():
        is_title = line.rstrip() in ("Args:", "Raises:", "Returns:", "Yields:", "Attributes:")
        is_section = is_title or (is_section and (not line or line.startswith(" ")))
        if is_title:
            lines += [f"**{line.strip().rstrip(':')}**", ""]
        elif is_section and line.startswith("    ") and line[4:5].strip():
            name, colon, rest = line.strip().partition(":")
            lines.append(f"- `{name}`:{rest}" if colon and _is_name(name) else line.strip())
        else:
            lines.append(line)
    return INDENTED.sub(_fenced, "\n".join(lines) + "\n").rstrip()


def _fenced(block: re.Match[str]) -> str:
    """Mark an indented block as Python, if it is; others are formulas and lists."""
    code = textwrap.dedent(block[0]).rstrip()
    try:
        ast.parse(code)
    except SyntaxError:
        return block[0]
    return f"```python\n{code}\n```\n\n"


def _is_name(text: str) -> bool:
    return all(part.strip().replace(".", "").isidentifier() for part in text.split(","))


def _anchor(name: str) -> str:
    return name.replace(".", "")


if __name__ == "__main__":
    from generate import main

    main()
