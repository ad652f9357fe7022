"""A configuration before its meaning is known: values, each with its place.

Python values and YAML become the same tree. PyYAML only composes nodes; what a scalar means is
decided later, by its setting. So `22:22` stays text, `1e-3` can be a number, and no tag ever
constructs an object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import yaml
from pydantic import BaseModel

from dpwa.config.problems import Place, shown
from dpwa.errors import ConfigError

SOURCE, ARGUMENTS = "<config>", "<arguments>"

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_VALUES = 100_000
LONG_TEXT = 100_000  # characters, such as 1,500 nodes
SAFE_DEPTH = 100
TOO_DEEP = "expected settings (lists and mappings are nested too deeply) [DPWA-E211]"

_YAML = "tag:yaml.org,2002:"
_NULL = _YAML + "null"
_MERGE = _YAML + "merge"
_SCALAR_TAGS = {_YAML + kind for kind in ("str", "int", "float", "bool", "null", "merge")}
_COLLECTION_TAGS = {_YAML + "seq", _YAML + "map"}


@dataclass(frozen=True)
class ScalarNode:
    """A single value: text as written in a file, or any Python object of a mapping."""

    place: Place
    value: object  # None when nothing was given
    shown: str  # the value as messages show it
    quoted: bool = False  # in the file, so it is text whatever it looks like


@dataclass(frozen=True)
class ListNode:
    place: Place
    items: tuple[Node, ...]
    shown: str = "a list"


@dataclass(frozen=True)
class ConfigValue:
    """A key, where it stands, and its value."""

    key: str
    place: Place
    value: Node


@dataclass(frozen=True)
class MapNode:
    """Keys and values in the order written, duplicates included."""

    place: Place
    entries: tuple[ConfigValue, ...]
    shown: str = "a mapping"

    def find(self, key: str) -> ConfigValue | None:
        return next((entry for entry in self.entries if entry.key == key), None)


@dataclass(frozen=True)
class BrokenNode:
    """A value that cannot be used, and the message that says why."""

    place: Place
    message: str
    shown: str = "an unusable value"


Node = ScalarNode | ListNode | MapNode | BrokenNode


def value_at(node: Node, path: Sequence[str | int]) -> Node | None:
    """Follow a key path; `None` where the tree has no such thing."""
    found: Node | None = node
    for step in path:
        if isinstance(found, ListNode) and isinstance(step, int):
            found = found.items[step]
        elif isinstance(found, MapNode) and isinstance(step, str) and (at := found.find(step)):
            found = at.value
        else:
            return None
    return found


class PythonSource:
    """Builds a tree of Python values; the order of reading stands in for lines and columns."""

    def __init__(self, source: str = SOURCE) -> None:
        self._source = source
        self._count = 0
        self._parents: set[int] = set()

    def node(self, value: object) -> Node:
        place = self._next_place()
        if isinstance(value, BaseModel):
            value = value.model_dump()
        if not _is_branch(value):
            return scalar(place, value)
        if id(value) in self._parents:
            return BrokenNode(place, "expected a value that does not contain itself")
        self._parents.add(id(value))
        try:
            if isinstance(value, Mapping):
                entries = (
                    ConfigValue(str(key), self._next_place(), self.node(item))
                    for key, item in value.items()
                )
                return MapNode(place, tuple(entries))
            return ListNode(place, tuple(self.node(item) for item in value))
        finally:
            self._parents.discard(id(value))

    def _next_place(self) -> Place:
        self._count += 1
        return Place(self._source, column=self._count)


def scalar(place: Place, value: object) -> ScalarNode:
    text = "nothing" if value is None else shown(str(value))
    return ScalarNode(place, value, text, quoted=isinstance(value, str))


def _is_branch(value: object) -> TypeGuard[Mapping[object, object] | Sequence[object]]:
    return isinstance(value, (Mapping, Sequence)) and not isinstance(value, (str, bytes))


class _Loader(yaml.SafeLoader):
    """Recognises nothing but empty values and merge keys; all else is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's way to configure a loader
        first: [(tag, pattern) for tag, pattern in resolvers if tag in (_NULL, _MERGE)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse_yaml(text: str, source: str) -> Node:
    """Turn YAML text into a tree; `source` names the file in messages.

    Raises `ConfigError` for what is empty, not YAML, or too large once its aliases are followed.
    """
    try:
        root = _composed(text, source)
        if root is None:
            _fail(source, 1, 1, "expected settings (the file is empty) [DPWA-E211]")
        return _Builder(source).node(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        began, context = error.context_mark, error.context
        if context and began and began is not mark:
            context += f" that begins at {began.line + 1}:{began.column + 1}"
        reasons = [str(reason) for reason in (context, error.problem) if reason]
        _fail(source, line, column, f"expected valid YAML ({', '.join(reasons)}) [DPWA-E210]")
    except yaml.reader.ReaderError as error:
        line, column = _line_and_column(text[: error.position])
        character = f"U+{ord(text[error.position]):04X}"
        _fail(
            source,
            line,
            column,
            f"expected printable text (got the character {character}) [DPWA-E212]",
        )
    except RecursionError:
        _fail(source, 1, 1, TOO_DEEP)


def _composed(text: str, source: str) -> yaml.Node | None:
    # libyaml is many times as fast; what it refuses is left to Python, whose messages are better.
    if len(text) >= LONG_TEXT and yaml.__with_libyaml__:
        with suppress(yaml.YAMLError):
            _require_bounded(text, source)
            return _fast_loader()(text).get_single_node()
    return _Loader(text).get_single_node()


def _fast_loader() -> type[yaml.CSafeLoader]:
    resolvers = {"yaml_implicit_resolvers": _Loader.yaml_implicit_resolvers}
    return type("_FastLoader", (yaml.CSafeLoader,), resolvers)


def _require_bounded(text: str, source: str) -> None:
    """Refuse too many values, and nesting so deep that libyaml would overflow the stack."""
    count = 0
    open_nodes: list[bool | None] = []  # of each mapping whether a key comes next; None: a list
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            open_nodes.pop()
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        is_key = bool(open_nodes) and open_nodes[-1] is True
        if open_nodes and open_nodes[-1] is not None:
            open_nodes[-1] = not is_key
        count += not is_key
        if count > MAX_VALUES:
            _fail_too_many(source, event.start_mark)
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append(True if isinstance(event, yaml.MappingStartEvent) else None)
            if len(open_nodes) > SAFE_DEPTH:
                _fail(source, 1, 1, TOO_DEEP)


class _Builder:
    """Copies PyYAML's graph into a tree, following aliases and merge keys."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._count = 0
        self._parents: set[int] = set()

    def node(self, node: yaml.Node) -> Node:
        place = self._place(node)
        self._count += 1
        if self._count > MAX_VALUES:  # aliases of aliases: a few lines can stand for billions
            _fail_too_many(self._source, node.start_mark)
        if id(node) in self._parents:
            return BrokenNode(place, "expected a value that does not contain itself")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if node.tag not in _COLLECTION_TAGS:
            return _unknown_tag(node, place)
        self._parents.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return MapNode(place, tuple(self._entries(node)))
            return ListNode(place, tuple(self.node(item) for item in node.value))
        finally:
            self._parents.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Node:
        if node.tag not in _SCALAR_TAGS:
            return _unknown_tag(node, place)
        if node.tag == _NULL:
            return ScalarNode(place, None, node.value or "nothing")
        quoted = bool(node.style)
        text = f'"{node.value}"' if quoted and node.value == "" else shown(node.value)
        return ScalarNode(place, node.value, text, quoted)

    def _entries(self, node: yaml.MappingNode) -> Iterator[ConfigValue]:
        own: list[ConfigValue] = []
        merged: list[ConfigValue] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += self._merged(key, value)
            else:
                own.append(self._entry(key, value))
        yield from own
        taken = {entry.key for entry in own}
        for entry in merged:
            if entry.key not in taken:
                taken.add(entry.key)
                yield entry

    def _entry(self, key: yaml.Node, value: yaml.Node) -> ConfigValue:
        place = self._place(key)
        if isinstance(key, yaml.ScalarNode):
            return ConfigValue(key.value, place, self.node(value))
        kind = "a mapping" if isinstance(key, yaml.MappingNode) else "a list"
        return ConfigValue("?", place, BrokenNode(place, f"expected text as the key (got {kind})"))

    def _merged(self, key: yaml.Node, value: yaml.Node) -> list[ConfigValue]:
        """Return the entries that `<<` brings in; of several mappings the first wins."""
        built = self.node(value)
        parts = built.items if isinstance(built, ListNode) else (built,)
        if all(isinstance(part, MapNode) for part in parts):
            return [entry for part in parts if isinstance(part, MapNode) for entry in part.entries]
        message = "expected an alias of a mapping, or a list of them"
        return [ConfigValue("<<", self._place(key), BrokenNode(built.place, message))]

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._source, node.start_mark.line + 1, node.start_mark.column + 1)


def _unknown_tag(node: yaml.Node, place: Place) -> BrokenNode:
    tag = node.tag.replace(_YAML, "!!")
    return BrokenNode(place, f"expected a value without a tag (got {shown(tag)}) [DPWA-E213]")


def read_text(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError([f"{name}: expected a readable file ({reason}) [DPWA-E002]"]) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            [f"{name}: expected a file of at most {MAX_FILE_BYTES} bytes [DPWA-E001]"]
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _line_and_column(data[: error.start].decode("utf-8-sig"))
        got = f"(got the byte 0x{data[error.start]:02x})"
        _fail(name, line, column, f"expected text in UTF-8 {got} [DPWA-E062]")


def _line_and_column(before: str) -> tuple[int, int]:
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _fail_too_many(source: str, mark: Any) -> NoReturn:
    message = f"expected at most {MAX_VALUES} values, aliases included [DPWA-E214]"
    _fail(source, mark.line + 1, mark.column + 1, message)


def _fail(source: str, line: int, column: int, message: str) -> NoReturn:
    raise ConfigError([f"{source}:{line}:{column}: {message}"]) from None
