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
INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+\n*")
HEAD = """\
# Public names

Every public class, field, function and exception, with its docstring. `python docs/generate.py`
writes this page; what is not on it may change without notice.
"""


def page() -> str:
    """Return the whole page."""
    shown: dict[int, str] = {}  # where each object was shown first
    parts = [HEAD, *(f"- [{name}](#{_anchor(name)})" for name in MODULES)]
    for name in MODULES:
        parts += ["", *_module(importlib.import_module(name), shown)]
    return "\n".join(parts).rstrip() + "\n"


def _module(module: ModuleType, shown: dict[int, str]) -> Iterator[str]:
    yield f"## {module.__name__}"
    yield ""
    yield from _text(module)
    for name in _public_names(module):
        found = getattr(module, name)
        where = shown.setdefault(id(found), module.__name__)
        if where != module.__name__:
            yield from ("", f"### `{name}`", "", f"The same as `{where}.{name}`.")
        elif inspect.isclass(found):
            yield from _class(name, found)
        elif callable(found):
            yield from ("", f"### `{name}{_signature(found)}`", "", *_text(found))


def _public_names(module: ModuleType) -> list[str]:
    """Return the names in `__all__`, else what the module itself defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return [
        name
        for name, value in sorted(vars(module).items())
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _class(name: str, found: type) -> Iterator[str]:
    is_error = issubclass(found, BaseException)
    of = f"({', '.join(base.__name__ for base in found.__bases__)})" if is_error else ""
    fields = list(_fields(found))
    arguments = "" if fields else of or _signature(found)
    yield from ("", f"### class `{name}{arguments}`", "", *_text(found))
    if fields:
        yield from ("", *fields)
    for member, value in _members(found):
        if isinstance(value, property):
            yield from ("", f"#### `{name}.{member}`", "", *_text(value))
        else:
            function = getattr(found, member)
            yield from ("", f"#### `{name}.{member}{_signature(function)}`", "", *_text(function))


def _fields(found: type) -> Iterator[str]:
    """Yield one line for each field of a pydantic model or a dataclass."""
    models = getattr(found, "model_fields", None)
    if isinstance(models, dict):
        for name, field in models.items():
            default = "" if field.is_required() else f", default `{field.get_default()!r}`"
            yield f"- `{name}`{default}: {field.description or 'see above'}"
    elif dataclasses.is_dataclass(found):
        for field in dataclasses.fields(found):
            if not field.name.startswith("_"):
                yield f"- `{field.name}`: `{field.type}`"


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
