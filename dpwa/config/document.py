"""Settings as plain values, before validation, with the file and line of each value.

Files, mappings, variables and arguments are written into one document. A path, such as pydantic's
`loc`, finds a value and its place. PyYAML only composes nodes. The setting of a scalar decides
later whether the scalar is text or a number. So `22:22` stays text, `1e-3` can be a number, and no
YAML tag constructs an object.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml
from pydantic import BaseModel

from dpwa.config.problems import Loc, Place, Problems, got, shown
from dpwa.errors import ConfigError

SOURCE, ARGUMENTS = "<config>", "<arguments>"
MISSING: Any = object()  # stands for a value that does not exist

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_VALUES = 100_000
LONG_TEXT = 100_000  # characters, as 1,500 nodes need
MAX_DEPTH = 100  # of nested nodes; libyaml overflows the stack of a thread at far more

TOO_MANY = f"expected at most {MAX_VALUES} values, including those of aliases [DPWA-E214]"
TOO_DEEP = "expected settings (lists and mappings are nested too deeply) [DPWA-E211]"

_YAML = "tag:yaml.org,2002:"
_NULL = _YAML + "null"
_MERGE = _YAML + "merge"
_SCALAR_TAGS = {_YAML + kind for kind in ("str", "int", "float", "bool", "null", "merge")}
_COLLECTION_TAGS = {_YAML + "seq", _YAML + "map"}

_Entry = tuple[str, object, Place]  # key, value, place of the key


class Scalar(str):
    """An unquoted scalar in a file, which may be a number. Text in quotes is always text."""

    __slots__ = ()


class Document:
    """The settings from all sources, such as files. A later value replaces an earlier value."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.problems = Problems()
        self.folder: Path | None = None  # of relative paths
        self.is_list = False  # the list form of 2017
        self.places: dict[Loc, Place] = {(): Place(SOURCE)}
        self.key_places: dict[Loc, Place] = {}

    def read(self, source: object, name: str = SOURCE) -> None:
        """Read a source: the path of a file, a mapping, or a list of single-key mappings.

        Raises `ConfigError` if the source cannot be read at all.
        """
        if isinstance(source, (str, os.PathLike)):
            name = os.fspath(source)
            self.folder = Path(name).parent
            source = compose(read_text(name), name)
        reader = _Reader(self, name)
        self.values.update(reader.settings(source))
        self.is_list = _is_list(source)

    def write(self, loc: Loc, value: object, source: str = ARGUMENTS, variable: str = "") -> None:
        """Set the value at a path. A value on the way that has no items becomes a mapping."""
        reader = _Reader(self, source, variable)
        into: Any = self.values
        for depth, step in enumerate(loc[:-1], start=1):
            if not isinstance(self.at(loc[:depth]), (dict, list)):
                into[step] = reader.value({}, loc[:depth])
            into = into[step]
        into[loc[-1]] = reader.value(value, loc)
        self.key_places.setdefault(loc, self.places[loc])

    def imply(self, key: str, value: object, by: str = "") -> None:
        """Set a value that another setting implies. The value gets the place of setting `by`."""
        self.values[key] = value
        self.places[key,] = self.place((by,))

    def at(self, loc: Loc) -> Any:
        """Return the value at a path, or `MISSING`."""
        found: Any = self.values
        try:
            for step in loc:
                found = (found if isinstance(found, (dict, list)) else {})[step]  # type: ignore[index]
        except (LookupError, TypeError):
            return MISSING
        return found

    def place(self, loc: Loc) -> Place:
        """Return the source position of the value at a path, or of its nearest existing parent."""
        while loc not in self.places or self.at(loc) is MISSING:
            loc = loc[:-1]
        return self.places[loc]

    def note(self, loc: Loc, message: str) -> None:
        """Record a mistake in the value at a path."""
        self.problems.add(self.place(loc), loc, message)

    def note_key(self, loc: Loc, message: str) -> None:
        """Record a mistake in the key at the end of a path."""
        self.problems.add(self.key_places.get(loc) or self.place(loc), loc, message)


class _Reader:
    """Copies Python values or YAML nodes into a document, and records the place of each value.

    It follows aliases and merge keys, and records mistakes in values that cannot be used at all.
    """

    def __init__(self, document: Document, source: str, variable: str = "") -> None:
        self._document = document
        self._source = source
        self._variable = variable
        self._count = 0
        self._parents: set[int] = set()

    def settings(self, root: object) -> dict[str, Any]:
        """Return the settings of a whole source. Raises `ConfigError` if it has no settings."""
        self._document.places[()] = self._place(root)
        self._parents.add(id(root))
        if _is_list(root):
            return self._mapping(self._single_entries(root), ())
        if _is_mapping(root):
            return self._mapping(self._entries(root, ()), ())
        expected = "expected a mapping, or a list of single-key mappings"
        self._note(root, (), f"{expected} (got {self._got(root, ())})")
        raise ConfigError(self._document.problems.lines())

    def value(self, value: object, loc: Loc) -> Any:
        self._document.places[loc] = self._place(value)
        self._bound(value, loc)
        if isinstance(value, BaseModel):
            value = value.model_dump()
        if isinstance(value, yaml.Node) and not _is_untagged(value):
            tag = shown(value.tag.replace(_YAML, "!!"))
            return self._note(value, loc, f"expected a value without a tag (got {tag}) [DPWA-E213]")
        if isinstance(value, yaml.ScalarNode):
            text = value.value if value.style else Scalar(value.value)
            return None if value.tag == _NULL else text
        if not _is_mapping(value) and not _is_list(value):
            return value
        if id(value) in self._parents:
            return self._note(value, loc, "expected a value that does not contain itself")
        self._parents.add(id(value))
        try:
            if _is_mapping(value):
                return self._mapping(self._entries(value, loc), loc)
            return [self.value(item, (*loc, index)) for index, item in enumerate(_items(value))]
        finally:
            self._parents.discard(id(value))

    def _mapping(self, entries: Iterable[_Entry], loc: Loc) -> dict[str, Any]:
        places = self._document.key_places
        found: dict[str, Any] = {}
        for key, value, place in entries:
            path = (*loc, key)
            if key in found:
                line = places[path].line
                where = f" (first on line {line})" if line else ""
                message = f"duplicate key, expected the key only once{where} [DPWA-E209]"
                self._document.problems.add(place, path, message)
            else:
                places[path] = place
                found[key] = self.value(value, path)
        return found

    def _single_entries(self, root: object) -> Iterator[_Entry]:
        """Yield the entries of a list of single-key mappings."""
        for index, item in enumerate(_items(root)):
            entries = list(self._entries(item, (index,))) if _is_mapping(item) else []
            yield from entries
            if len(entries) != 1:
                found = f"{len(entries)} keys" if _is_mapping(item) else self._got(item, (index,))
                self._note(item, (index,), f"expected a single `key: value` (got {found})")

    def _entries(self, node: Any, loc: Loc) -> Iterator[_Entry]:
        """Yield all entries of a mapping, even for equal keys, then those that merge keys add."""
        if isinstance(node, Mapping):
            yield from ((str(key), value, self._place(key)) for key, value in node.items())
            return
        taken = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                kind = "a mapping" if isinstance(key, yaml.MappingNode) else "a list"
                self._note(key, (*loc, "?"), f"expected text as the key (got {kind})")
            elif key.tag != _MERGE:
                taken.add(key.value)
                yield key.value, value, self._place(key)
        merged = [value for key, value in node.value if key.tag == _MERGE]
        for entry in (entry for value in merged for entry in self._merged(value, (*loc, "<<"))):
            if entry[0] not in taken:
                taken.add(entry[0])
                yield entry

    def _merged(self, node: yaml.Node, loc: Loc) -> Iterator[_Entry]:
        """Yield the entries that the YAML merge key `<<` adds. The first entry for a key counts."""
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not _is_mapping(part) or id(part) in self._parents:
                self._note(node, loc, "expected an alias of a mapping, or a list of such aliases")
                return
            self._bound(part, loc, 1 + len(part.value))
            self._parents.add(id(part))
            yield from self._entries(part, loc)
            self._parents.discard(id(part))

    def _got(self, value: object, loc: Loc) -> str:
        return got(self.value(value, loc))

    def _note(self, value: object, loc: Loc, message: str) -> None:
        """Record a mistake. The value is then read as `None`."""
        self._document.problems.add(self._place(value), loc, message)

    def _place(self, value: object) -> Place:
        line = column = 0
        if isinstance(value, yaml.Node) and self._source != ARGUMENTS:
            line, column = _position(value.start_mark)
        return Place(self._source, line, column, self._variable)

    def _bound(self, value: object, loc: Loc, count: int = 1) -> None:
        """Refuse values that are nested too deeply, and aliases that expand to too many values."""
        self._count += count
        if len(loc) > MAX_DEPTH:
            self._note(value, (), TOO_DEEP)
            raise ConfigError(self._document.problems.lines())
        if isinstance(value, yaml.Node) and self._count > MAX_VALUES:
            _fail(self._source, _position(value.start_mark), TOO_MANY)


def _is_untagged(value: object) -> bool:
    if not isinstance(value, yaml.Node):
        return True
    is_scalar = isinstance(value, yaml.ScalarNode)
    return value.tag in (_SCALAR_TAGS if is_scalar else _COLLECTION_TAGS)


def _is_mapping(value: object) -> bool:
    return isinstance(value, (Mapping, yaml.MappingNode)) and _is_untagged(value)


def _is_list(value: object) -> bool:
    is_text = isinstance(value, (str, bytes))
    is_list = isinstance(value, (Sequence, yaml.SequenceNode))
    return is_list and not is_text and _is_untagged(value)


def _items(value: Any) -> Iterable[object]:
    return value.value if isinstance(value, yaml.Node) else value  # type: ignore[no-any-return]


class _Bounded:
    """Makes a loader refuse too many values, and values that are nested too deeply."""

    # Only empty values and merge keys are resolved, even if a program adds resolvers to SafeLoader.
    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's way to configure a loader)
        first: [(tag, pattern) for tag, pattern in resolvers if tag in (_NULL, _MERGE)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_path_resolvers: ClassVar[dict[Any, Any]] = {}
    _count = _depth = 0

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)  # type: ignore[call-arg]
        self._source = source

    def descend_resolver(self, parent: yaml.Node | None, index: yaml.Node | int | None) -> None:
        """Count list items and values, not keys. Refuse too many values, or too deep nesting."""
        near = index if isinstance(index, yaml.Node) else parent
        is_key = index is None and isinstance(parent, yaml.MappingNode)
        self._count += not is_key
        self._depth += 1
        if near and self._count > MAX_VALUES:
            _fail(self._source, _position(near.start_mark), TOO_MANY)
        if near and self._depth > MAX_DEPTH:
            _fail(self._source, _position(near.start_mark), TOO_DEEP)

    def ascend_resolver(self) -> None:
        self._depth -= 1


class _Loader(_Bounded, yaml.SafeLoader):
    pass


class _FastLoader(_Bounded, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    pass


def compose(text: str, source: str) -> yaml.Node:
    """Parse YAML text into PyYAML nodes, and return the root. `source` names the file in messages.

    Raises `ConfigError` if the text is empty, not YAML, or nested too deeply.
    """
    try:
        root = _composed(text, source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        began, context = error.context_mark, error.context
        if context and began and began is not mark:
            context += f" that begins at {began.line + 1}:{began.column + 1}"
        reasons = ", ".join(str(reason) for reason in (context, error.problem) if reason)
        _fail(source, _position(mark), f"expected valid YAML ({reasons}) [DPWA-E210]")
    except yaml.reader.ReaderError as error:
        got_it = f"got the character U+{ord(text[error.position]):04X}"
        before = text[: error.position]
        _fail(source, _end(before), f"expected printable text ({got_it}) [DPWA-E212]")
    if root is None:
        _fail(source, (1, 1), "expected settings (the file is empty) [DPWA-E211]")
    return root


def _composed(text: str, source: str) -> yaml.Node | None:
    if len(text) >= LONG_TEXT:
        # libyaml is many times as fast. The Python loader has better messages about mistakes.
        with suppress(yaml.YAMLError, UnicodeError):
            return _FastLoader(text, source).get_single_node()  # type: ignore[no-any-return]
    return _Loader(text, source).get_single_node()


def read_text(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1).removeprefix(codecs.BOM_UTF8)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError([f"{name}: expected a readable file ({reason}) [DPWA-E002]"]) from None
    if len(data) > MAX_FILE_BYTES:
        expected = f"expected a file of at most {MAX_FILE_BYTES} bytes"
        raise ConfigError([f"{name}: {expected} [DPWA-E001]"])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        byte = data[error.start]
        before = data[: error.start].decode()
        _fail(name, _end(before), f"expected text in UTF-8 (got the byte 0x{byte:02x}) [DPWA-E062]")


def _position(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _end(text: str) -> tuple[int, int]:
    """Return the line and column, counted from 1, of the position directly after a text."""
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _fail(source: str, position: tuple[int, int], message: str) -> NoReturn:
    line, column = position
    raise ConfigError([f"{source}:{line}:{column}: {message}"]) from None
