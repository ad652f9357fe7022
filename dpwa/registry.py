"""Registries of what configurations choose by name, dpwa's own and that of plugins."""

from __future__ import annotations

from typing import Generic, TypeVar

from dpwa.errors import UnknownNameError, UserError

Item = TypeVar("Item")


class Registry(Generic[Item]):
    """Named things of one kind, in the order of registration; messages call them `kind`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._items: dict[str, tuple[object, Item]] = {}

    def add(self, name: str, source: object, item: Item) -> None:
        """Raises `UserError` for a taken name, unless the same `source` comes again (reload)."""
        if name in self._items and self._items[name][0] is not source:
            article = "an" if self._kind[0] in "aeiou" else "a"
            raise UserError(
                f"{article} {self._kind} named {name!r} is already registered [DPWA-E019]"
            )
        self._items[name] = source, item

    def get(self, name: str) -> Item:
        """Return the item, or raise an `UnknownNameError` that lists the names there are."""
        try:
            return self._items[name][1]
        except KeyError:
            known = ", ".join(self.names())
            raise UnknownNameError(
                f"no {self._kind} is named {name!r} (known: {known}) [DPWA-E015]"
            ) from None

    def names(self) -> tuple[str, ...]:
        return tuple(self._items)
