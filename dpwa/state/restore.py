"""StateRestore gets the initial state of a node from its peers or from its checkpoints."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dpwa import fault_points
from dpwa.clock import Clock, Deadline
from dpwa.data.segments import ByteArray
from dpwa.policy.beginners import LEAD
from dpwa.state.joining import BRIEF, Joiner, JoinResult, Patience, StateRequest
from dpwa.state.replaced_parts import Origin, Target, UnfitStateError

if TYPE_CHECKING:
    from dpwa.state.checkpoints import CheckpointFolder, Saved

log = logging.getLogger("dpwa.state")


class StateRestore:
    """Replaces the parts of a node's state before its first step, on the training thread."""

    def __init__(
        self,
        node: str,
        joiner: Joiner,
        folder: CheckpointFolder | None,  # the checkpoints of the node, if it has any
        clock: Clock,
        timeout_s: float,  # maximum time to fetch a part from peers
    ) -> None:
        self._node = node
        self._joiner = joiner
        self._folder = folder
        self._clock = clock
        self._timeout_s = timeout_s
        self._refused: set[str] = set()  # donors that are asked no more
        self._is_alone = False  # whether to fetch a part from one donor at a time
        self._patience = Patience()
        self._saved: Saved | None = None  # the checkpoint of the first part, for further parts
        self._donors: Mapping[str, bytes] = {}  # the donors of the first part, with their copies
        # the first part, and the clock that its donors had to exceed
        self._first: tuple[Target, float] | None = None
        self._only: Collection[str] | None = None
        self._latest = math.inf

    @property
    def refused(self) -> tuple[str, ...]:
        return tuple(sorted(self._refused))

    def narrow(self, donors: Collection[str] | None, clock: float) -> None:
        """From now on, use only `donors` (`None`: any), and checkpoints up to the clock `clock`."""
        self._only, self._latest = donors, clock

    def start(self, target: Target, source: str) -> Origin | None:
        """Replace `target`, the first part of this node's state. Return `None` if the part stays.

        `source` is "own", "peers", "newest", or "ahead". "ahead" is like "newest", but accepts only
        peers that are well ahead, and does not wait for peers that are not connected yet.
        """
        self._saved, self._donors, self._first = None, {}, None
        on_disk = self._all_saved(target)
        newest = None if source == "peers" else next(on_disk, None)
        if source != "own":
            clock = 0.0 if newest is None else newest.clock
            self._patience = BRIEF if source == "ahead" else Patience()
            self._first = target, max(clock, LEAD) if source == "ahead" else clock
            result, origin = self._from_peers(*self._first, self._timeout_s)
            if origin is not None:
                return origin
            self._warn(target, result)
        left = itertools.chain(() if newest is None else (newest,), on_disk)
        for saved in left:
            if self._load(target, saved):
                self._saved, nbytes = saved, saved.parts[target.part].image.nbytes
                return Origin(saved.clock, saved.updates, checkpoint=saved.name, nbytes=nbytes)
        return None

    def restore_part(self, target: Target, *, may_restart: bool = True) -> Origin | None:
        """Replace a further part of this node's state, from the copy that replaced the first part.

        If the donor is gone, or has a different copy by now, both parts are replaced by those of a
        peer. Then the result is their origin. If there is no such peer, the first part stays.
        """
        if self._saved is not None:
            self._load(target, self._saved)
        if self._first is None or not self._donors:
            return None
        deadline, origin = Deadline(self._clock, self._timeout_s), None
        while True:
            result = self._fetch(target, 0.0, deadline.remaining_s() / 2, self._donors)
            if result.fetched is not None or result.differences or not may_restart:
                break
            _, again = self._from_peers(*self._first, deadline.remaining_s())
            if again is None:
                break
            origin = again
        if result.fetched is None:
            self._warn(target, result, had_donors=True)
        return origin

    def discard_saved(self) -> None:
        self._saved = self._joiner.cut_off = None

    # State from peers

    def _from_peers(
        self, target: Target, newer_than: float, timeout_s: float
    ) -> tuple[JoinResult, Origin | None]:
        """Replace the first part of this node's state by the same part of a peer's state."""
        result = self._fetch(target, newer_than, timeout_s, {})
        fetched = result.fetched
        if fetched is None:
            return result, None
        self._donors, nbytes = fetched.tokens, fetched.image.nbytes
        return result, Origin(fetched.clock, fetched.updates, fetched.tokens, nbytes=nbytes)

    def _fetch(
        self, target: Target, newer_than: float, timeout_s: float, tokens: Mapping[str, bytes]
    ) -> JoinResult:
        """Fetch and load a part. If the part is unfit, blame its donors, and fetch it again."""
        deadline = Deadline(self._clock, timeout_s)
        while True:
            request = StateRequest(
                target.part,
                target.kind,
                target.most_bytes,
                target.layout,
                newer_than,
                tokens,
                self._barred(),
                self._is_alone,
                self._patience,
                self._node,
            )
            result = self._joiner.fetch(request, deadline.remaining_s())
            fetched = result.fetched
            if fetched is None:
                return result
            try:
                target.load(fetched.image, fetched.numbers)
            except UnfitStateError as error:
                who = _together(fetched.pieces)
                text = "%s: the %s of %s cannot be used: %s [DPWA-W061]"
                log.warning(text, self._node, target.part, who, error)
                self._blame(fetched.pieces)
                continue
            fault_points.reached("state.loaded")
            return result

    def _blame(self, donors: Collection[str]) -> None:
        """Exclude the donor of an unusable part. After several donors, use one donor at a time."""
        if len(donors) == 1:
            self._refused.update(donors)
        self._is_alone |= len(donors) > 1

    def _barred(self) -> frozenset[str]:
        others = [] if self._only is None else set(self._joiner.links()) - set(self._only)
        return frozenset(self._refused.union(others))

    def _warn(self, target: Target, result: JoinResult, *, had_donors: bool = False) -> None:
        own = self._node, target.part
        text = (
            "%s: this node starts with its own %s, because the state of %s differs (first "
            "difference: %s) [DPWA-W062]"
        )
        for peer, difference in result.differences.items():
            log.warning(text, *own, peer, difference)
        if result.is_late or result.nbytes or (had_donors and not result.differences):
            most_s = math.inf if result.nbytes else self._patience.offered_s
            within = f" in {min(self._timeout_s, most_s):g} s" * result.is_late
            came = f"{result.came / 1e6:.1f} of {result.nbytes / 1e6:.1f} MB" * bool(result.nbytes)
            text = "%s: this node starts with its own %s, because no peer has sent all of its state"
            log.warning(text + "%s (%s arrived) [DPWA-W063]", *own, within, came or "nothing")

    # State from disk

    def _all_saved(self, target: Target) -> Iterator[Saved]:
        """Yield the checkpoints with a part that fits `target`, the newest first."""
        for saved in () if self._folder is None else self._folder.newest_first():
            if saved.clock > self._latest:
                continue
            difference = saved.difference(target.part, target.kind)
            if not difference:
                yield saved
                continue
            text = (
                "%s: checkpoint %s has a different %s, so the checkpoint is kept, but not loaded "
                "(first difference: %s) [DPWA-W032]"
            )
            log.warning(text, self._node, saved.path(target.part), target.part, difference)
            if self._folder is not None:
                self._folder.spare(saved.name)

    def _load(self, target: Target, saved: Saved) -> bool:
        difference = saved.difference(target.part, target.kind)
        if difference:
            difference = f"first difference: {difference}"
        else:
            try:
                part = saved.parts[target.part]
                target.load(part.image, part.numbers)
            except UnfitStateError as error:
                difference = str(error)
        if difference:
            text = "%s: the %s of checkpoint %s cannot be used: %s [DPWA-W060]"
            path = saved.path(target.part)
            log.warning(text, self._node, target.part, path, difference)
        return not difference


def _together(names: Collection[str]) -> str:
    return " and ".join(sorted(names))


CHECKPOINT_TRIES = 3

R = TypeVar("R")


class StateShardGroup(Protocol):
    """The ranks of a sharded model, which exchange reports about their states. All ranks make the
    same calls.
    """

    wants_state: bool
    """Whether a peer asked a rank for a copy before the current update."""

    may_save: bool
    """Whether all ranks could write a checkpoint at that time."""

    def all_same(self, own: object) -> bool:
        """Return whether all ranks have the same value."""
        ...

    def each(self, own: Any) -> list[Any]:
        """Return the values of all ranks."""
        ...


class TogetherRestore:
    """Does the work of `StateRestore` on each rank of a sharded model, for the rank's own shards.

    Each rank fetches from a peer's node of the same rank, or reads its own checkpoints. A state is
    loaded only if all ranks have it from the same moment, and from the same peer.
    """

    def __init__(self, node: str, restore: StateRestore, shard_group: StateShardGroup) -> None:
        self._node = node
        self._restore = restore
        self._shard_group = shard_group
        self._origin: Origin | None = None

    @property
    def refused(self) -> tuple[str, ...]:
        return self._restore.refused

    def start(self, target: Target, source: str) -> Origin | None:
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
                "%s: this node starts with its own %s, because its ranks found no state from the "
                "same time [DPWA-W026]",
                self._node,
                target.part,
            )
        return self._origin

    def _try(self, target: Target, source: str) -> tuple[list[Any], bool]:
        """Replace the first part of the state on all ranks, or on none.

        Returns the donors and the clock of each rank's part (`None` if a rank has found none), and
        whether these are equal on all ranks, so that the part was loaded.
        """
        held, origin = self._held(target, lambda held: self._restore.start(held, source))
        own = None if origin is None else (tuple(sorted(origin.donors)), origin.clock)
        found = self._shard_group.each(own)
        is_agreed = all(each == own for each in found)
        self._origin = origin if is_agreed else None
        if is_agreed and held:
            target.load(*held[-1])  # the part was checked, so loading cannot fail
        return found, is_agreed

    def restore_part(self, target: Target) -> None:
        add = partial(self._restore.restore_part, may_restart=False)
        held, _ = self._held(target, add)
        if not self._shard_group.all_same(len(held)):
            text = (
                "%s: this node starts with its own %s, because some ranks did not get this part "
                "[DPWA-W050]"
            )
            log.warning(text, self._node, target.part)
        elif held:
            target.load(*held[-1])

    def discard_saved(self) -> None:
        self._restore.discard_saved()

    def _held(
        self, target: Target, fetch: Callable[[Target], R]
    ) -> tuple[list[tuple[ByteArray, bytes]], R]:
        """Call `fetch`, but do not load the fetched part. Return the part and the call's result."""
        held: list[tuple[ByteArray, bytes]] = []

        def hold(image: ByteArray, numbers: bytes) -> None:
            if target.check is not None:
                target.check(image, numbers)
            held.append((image, numbers))

        return held, fetch(replace(target, load=hold))
