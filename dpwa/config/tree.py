"""A configuration before its meaning is known: values with the place where each was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpwa.config.problems import Place


@dataclass(frozen=True)
class ScalarNode:
    """A single value: text as written in a file, or any Python object of a mapping.

    Attributes:
        value: `None` when nothing was given.
        shown: the value as messages show it.
        quoted: the file had it in quotes, so it is text whatever it looks like.
    """

    place: Place
    value: object
    shown: str
    quoted: bool = False


@dataclass(frozen=True)
class ListNode:
    """A list of values."""

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
        """Return the first entry of this key."""
        return next((entry for entry in self.entries if entry.key == key), None)


@dataclass(frozen=True)
class BrokenNode:
    """A value that cannot be used, and the message that says why."""

    place: Place
    message: str
    shown: str = "an unusable value"


Node = ScalarNode | ListNode | MapNode | BrokenNode


def value_at(node: Node, path: Sequence[str | int]) -> Node | None:
    """Follow the steps of a key path; `None` where the tree has no such thing."""
    found: Node | None = node
    for step in path:
        if isinstance(found, ListNode) and isinstance(step, int):
            found = found.items[step]
        else:
            entry = (
                found.find(step) if isinstance(found, MapNode) and isinstance(step, str) else None
            )
            found = entry.value if entry else None
    return found
