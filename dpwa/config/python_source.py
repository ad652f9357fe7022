"""Python mappings and lists to the same tree that files become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from pydantic import BaseModel

from dpwa.config.problems import Place, shown
from dpwa.config.tree import BrokenNode, ConfigValue, ListNode, MapNode, Node, ScalarNode

SOURCE, ARGUMENTS = "<config>", "<arguments>"


class PythonSource:
    """Builds a tree; the order of reading stands in for lines and columns.

    Args:
        source: what messages call it.
    """

    def __init__(self, source: str = SOURCE) -> None:
        self._source = source
        self._count = 0
        self._parents: set[int] = set()

    def node(self, value: object) -> Node:
        """Return the tree of a value: mappings, sequences and models become branches."""
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
                return MapNode(place, tuple(self._entry(key, item) for key, item in value.items()))
            return ListNode(place, tuple(self.node(item) for item in value))
        finally:
            self._parents.discard(id(value))

    def _entry(self, key: object, value: object) -> ConfigValue:
        return ConfigValue(str(key), self._next_place(), self.node(value))

    def _next_place(self) -> Place:
        self._count += 1
        return Place(self._source, column=self._count)


def scalar(place: Place, value: object) -> ScalarNode:
    """Return a single Python value as a node."""
    return ScalarNode(place, value, _shown_value(value), quoted=isinstance(value, str))


def _is_branch(value: object) -> TypeGuard[Mapping[object, object] | Sequence[object]]:
    return isinstance(value, (Mapping, Sequence)) and not isinstance(value, (str, bytes))


def _shown_value(value: object) -> str:
    if value is None:
        return "nothing"
    return shown(value) if isinstance(value, str) else shown(str(value))
