"""Registries of dpwa's and plugins' algorithms, codecs and so on, which settings select by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Generic, TypeVar

from dpwa.errors import UnknownNameError, UserError

Item = TypeVar("Item")


class Registry(Generic[Item]):
    """Named items of one kind, in the order of registration. Messages use `kind` as a noun.

    `homes` maps names to the modules that register them. A module is imported at its first use.
    """

    def __init__(self, kind: str, homes: Mapping[str, str] | None = None) -> None:
        self._kind = kind
        self._homes = dict(homes or {})
        self._items: dict[str, tuple[object, Item]] = {}

    def add_item(self, name: str, source: object, item: Item) -> None:
        """Add an item. `UserError` if the name is taken by a different `source` (no reload)."""
        is_elsewhere = self._homes.get(name, source.__module__) != source.__module__
        if is_elsewhere or (name in self._items and self._items[name][0] is not source):
            article = "an" if self._kind[0] in "aeiou" else "a"
            raise UserError(
                f"{article} {self._kind} named {name!r} is already registered [DPWA-E019]"
            )
        self._items[name] = source, item

    def get(self, name: str) -> Item:
        """Return the item, or raise an `UnknownNameError` that lists the known names."""
        if name in self._homes and name not in self._items:
            importlib.import_module(self._homes[name])
        try:
            return self._items[name][1]
        except KeyError:
            known = ", ".join(self.names())
            raise UnknownNameError(
                f"no {self._kind} is named {name!r} (known: {known}) [DPWA-E015]"
            ) from None

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._homes, *self._items]))
