"""Changing settings in a file that people have written: only their values change.

Comments, order and layout stay; a new setting is added at the end.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import yaml

from dpwa.config import load_config
from dpwa.config.tree import parse_yaml, read_text
from dpwa.errors import ConfigError, UserError
from dpwa.plan.choices import Change


def changed_text(text: str, changes: Change, source: str) -> str:
    """Return the YAML of a configuration, in either form, with some settings changed."""
    parse_yaml(text, source)
    root = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(root, yaml.CollectionNode):
        raise ConfigError([f"{source}: expected settings [DPWA-E211]"])
    values = {key.value: (key, value) for key, value in _entries(root)}
    edits: list[tuple[int, int, str]] = []
    added: list[str] = []
    for name, new in changes.items():
        written = _written(new)
        if name in values:
            key, value = values[name]
            if not isinstance(value, yaml.ScalarNode) or _is_shared(text, key, value):
                line = key.start_mark.line + 1
                raise UserError(
                    f"{source}:{line}: {name} cannot be changed where it stands; "
                    f"set it to {written} [DPWA-E272]"
                )
            edits.append((value.start_mark.index, value.end_mark.index, written))
        else:
            added.append(f"{name}: {written}")
    for start, stop, written in sorted(edits, reverse=True):
        # `key:` alone has its empty value right behind the colon.
        gap = " " if start == stop and text[start - 1] == ":" else ""
        text = text[:start] + gap + written + text[stop:]
    return _with_added(text, root, added, source) if added else text


def write_settings(path: Path, changes: Change) -> None:
    """Change settings in a file, all at once or not at all."""
    before = read_text(os.fspath(path))
    after = changed_text(before, changes, os.fspath(path))
    place = path.resolve()  # behind a link, which stays one
    try:
        mode = stat.S_IMODE(place.stat().st_mode)
        with tempfile.NamedTemporaryFile(
            "w",
            encoding="utf-8",
            newline="",
            dir=place.parent,
            prefix=f".{place.name}.",
            delete=False,
        ) as file:
            made = Path(file.name)
            file.write(after)
        try:
            made.chmod(mode)
            _require_meant(made, path, changes)
            made.replace(place)
        finally:
            made.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}) [DPWA-E024]") from None


def _require_meant(made: Path, path: Path, changes: Change) -> None:
    """Check that the new file loads, with what was to be changed and nothing else."""
    before, after = load_config(path, environ={}), load_config(made, environ={})
    if before.model_copy(update=dict(changes)) != after:
        names = ", ".join(changes)
        raise ConfigError(
            [f"{path}: to change {names} would change more; do it by hand [DPWA-E274]"]
        )


def _entries(root: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
    maps = root.value if isinstance(root, yaml.SequenceNode) else [root]
    return [entry for found in maps if isinstance(found, yaml.MappingNode) for entry in found.value]


def _is_shared(text: str, key: yaml.Node, value: yaml.Node) -> bool:
    """Tell whether a value stands elsewhere, or behind an anchor or a tag."""
    start = value.start_mark.index
    return bool(start < key.end_mark.index or text[start : start + 1] in ("&", "!"))


def _with_added(text: str, root: yaml.CollectionNode, lines: list[str], source: str) -> str:
    if root.flow_style or root.start_mark.column:
        settings = ", ".join(lines)
        raise UserError(
            f"{source}: expected one setting a line, to add some; add {settings} [DPWA-E273]"
        )
    item = "- " if isinstance(root, yaml.SequenceNode) else ""
    newline = "\r\n" if "\r\n" in text else "\n"
    stop = root.end_mark.index
    head, tail = (text, "") if not text[stop:].strip() else (text[:stop], text[stop:])
    head = head if head.endswith("\n") else head + newline
    return head + "".join(f"{item}{line}{newline}" for line in lines) + tail


def _written(value: str | int | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
