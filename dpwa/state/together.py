"""TogetherRestore: the ranks of a sharded model take over one state of a peer, or none of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from dpwa.data.segments import ByteArray
from dpwa.message_codes import get_log
from dpwa.state.restore import StateRestore
from dpwa.state.target import Origin, Target

log = get_log("dpwa.state")

CHECKPOINT_TRIES = 3

R = TypeVar("R")


class StateCompanions(Protocol):
    """What the ranks of a sharded model tell each other of their states; all call it alike."""

    wants_state: bool
    """Whether somebody asked one of them for a copy, before the update under way."""

    may_save: bool
    """Whether all of them had time for a checkpoint then."""

    def all_same(self, own: object) -> bool:
        """Tell whether all ranks have the same."""
        ...

    def each(self, own: Any) -> list[Any]:
        """Return what each rank says."""
        ...


class TogetherRestore:
    """Does what `StateRestore` does, on each rank of a sharded model for its own shards.

    Each fetches from the node of the same rank of a peer, or has checkpoints of its own. What has
    come is loaded only if all ranks have it of the same moment, and of the same peer.

    Args:
        node: the name of the node.
        restore: of this rank.
        companions: the ranks.
    """

    def __init__(self, node: str, restore: StateRestore, companions: StateCompanions) -> None:
        self._node = node
        self._restore = restore
        self._companions = companions
        self._origin: Origin | None = None

    @property
    def refused(self) -> tuple[str, ...]:
        """Names of the peers whose state was of no use."""
        return self._restore.refused

    def start(self, target: Target, source: str) -> Origin | None:
        """Replace the first part; `None` if the node begins with its own."""
        found, is_agreed = self._try(target, source)
        donors = next((each[0] for each in found if each is not None and each[0]), None)
        if not is_agreed and donors is not None:
            self._restore.narrow(donors, math.inf)
            found, is_agreed = self._try(target, source)
        for _ in range(0 if is_agreed else CHECKPOINT_TRIES):
            latest = [-math.inf if each is None else each[1] for each in found]
            is_saved = all(each is None or not each[0] for each in found)
            self._restore.narrow((), min(latest) if is_saved else math.inf)
            found, is_agreed = self._try(target, "own")
            if is_agreed:
                break
        if not is_agreed:
            log.warning(
                "%s: starts with its own %s, as its ranks have not come by a state of one moment",
                self._node,
                target.part,
            )
        return self._origin

    def _try(self, target: Target, source: str) -> tuple[list[Any], bool]:
        """Try to replace the first part.

        Returns:
            Where each rank has it from, donors and clock; `None` for nowhere. And whether all have
            it from there, so that it was loaded.
        """
        held, origin = self._held(target, lambda held: self._restore.start(held, source))
        own = None if origin is None else (sorted(origin.donors), origin.clock)
        found = self._companions.each(own)
        is_agreed = all(each == own for each in found)
        self._origin = origin if is_agreed else None
        if is_agreed and held:
            target.load(*held[-1])  # which was checked: it does not fail any more
        return found, is_agreed

    def add(self, target: Target) -> None:
        """Replace one more part, by what belongs to the first one."""
        held, _ = self._held(target, self._restore.add)
        if not self._companions.all_same(len(held)):
            text = "%s: starts with its own %s, as not all of its ranks have that of the peer"
            log.warning(text, self._node, target.part)
        elif held:
            target.load(*held[-1])

    def end(self) -> None:
        """Give back the memory of what is needed no more."""
        self._restore.end()

    def _held(
        self, target: Target, fetch: Callable[[Target], R]
    ) -> tuple[list[tuple[ByteArray, bytes]], R]:
        """Have a part fetched, but not loaded."""
        held: list[tuple[ByteArray, bytes]] = []

        def hold(image: ByteArray, numbers: bytes) -> None:
            if target.check is not None:
                target.check(image, numbers)
            held.append((image, numbers))

        return held, fetch(replace(target, load=hold))
