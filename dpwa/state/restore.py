"""StateRestore: gets a node its first state, from its peers or from its checkpoints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from dpwa import fault_points
from dpwa.clock import Clock, Deadline
from dpwa.message_codes import get_log
from dpwa.policy.beginners import LEAD
from dpwa.state.checkpoints import CheckpointFolder, Saved
from dpwa.state.joining import Joiner
from dpwa.state.target import Origin, Target, UnfitStateError
from dpwa.state.targets import BRIEF, Fetched, JoinResult, Patience, StateTarget

log = get_log("dpwa.state")


@dataclass
class Suspects:
    """Donors whose state is of no use.

    If several have brought it together, nobody can tell whose fault it is: from then on a part is
    taken of one donor at a time.

    Attributes:
        names: of those that are asked no more.
        is_alone: whether a part is taken of one donor.
    """

    names: set[str] = field(default_factory=set)
    is_alone: bool = False

    def blame(self, donors: Collection[str]) -> None:
        """Take note of who has brought a part of no use."""
        if len(donors) == 1:
            self.names.update(donors)
        self.is_alone |= len(donors) > 1


class StateRestore:
    """Replaces the parts of a node's state before its first step. On the training thread.

    Args:
        node: the name of the node.
        joiner: fetches from peers.
        folder: the checkpoints of the node, if there are any.
        clock: time source.
        timeout_s: how long a part may take to come from peers.
    """

    def __init__(
        self,
        node: str,
        joiner: Joiner,
        folder: CheckpointFolder | None,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._node = node
        self._joiner = joiner
        self._folder = folder
        self._clock = clock
        self._timeout_s = timeout_s
        self._suspects = Suspects()
        self._patience = Patience()
        self._saved: Saved | None = None  # what it began with, for the parts that are to follow
        self._donors: Mapping[str, bytes] = {}
        self._only: Collection[str] | None = None
        self._latest = math.inf

    @property
    def refused(self) -> tuple[str, ...]:
        """Names of the peers whose state was of no use."""
        return tuple(sorted(self._suspects.names))

    def narrow(self, donors: Collection[str] | None, clock: float) -> None:
        """Ask no peers but these, and take no checkpoint that is further than a clock.

        Args:
            donors: names; `None`: any.
            clock: infinite for any.
        """
        self._only, self._latest = donors, clock

    def start(self, target: Target, source: str) -> Origin | None:
        """Replace the first part.

        Args:
            target: the part.
            source: "own", "peers", "newest", or "ahead": as newest, but only of peers that are well
                ahead, and without waiting for those that are not there yet.

        Returns:
            Where it came from; `None` if the node begins with its own.
        """
        self._saved, self._donors = None, {}
        on_disk = self._all_saved(target)
        newest = None if source == "peers" else next(on_disk, None)
        if source != "own":
            clock = 0.0 if newest is None else newest.clock
            self._patience = BRIEF if source == "ahead" else Patience()
            origin = self._from_peers(target, max(clock, LEAD) if source == "ahead" else clock)
            if origin is not None:
                return origin
        left = itertools.chain(() if newest is None else (newest,), on_disk)
        for saved in left:
            if self._load(target, saved):
                self._saved, nbytes = saved, saved.parts[target.part].image.nbytes
                return Origin(saved.clock, saved.updates, checkpoint=saved.name, nbytes=nbytes)
        return None

    def add(self, target: Target) -> None:
        """Replace one more part, by what belongs to the first one."""
        if self._saved is not None:
            self._load(target, self._saved)
        else:
            self._fetch(target, 0.0)

    def end(self) -> None:
        """Give back the memory of what is needed no more."""
        self._saved = self._joiner.cut_off = None

    # From peers

    def _from_peers(self, target: Target, newer_than: float) -> Origin | None:
        fetched = self._fetch(target, newer_than)
        if fetched is None:
            return None
        self._donors = fetched.tokens
        nbytes = fetched.image.nbytes
        return Origin(fetched.clock, fetched.updates, fetched.tokens, nbytes=nbytes)

    def _fetch(self, target: Target, newer_than: float) -> Fetched | None:
        """Fetch a part until one comes that can be loaded; who brings others is asked no more."""
        deadline = Deadline(self._clock, self._timeout_s)
        while True:
            wanted = StateTarget(
                target.part,
                target.kind,
                target.most_bytes,
                target.layout,
                newer_than,
                self._donors,
                self._barred(),
                self._suspects.is_alone,
                self._patience,
            )
            result = self._joiner.fetch(wanted, deadline.remaining_s())
            fetched = result.fetched
            if fetched is None:
                self._warn(target, result)
                return None
            try:
                target.load(fetched.image, fetched.numbers)
            except UnfitStateError as error:
                who = _together(fetched.pieces)
                text = "%s: the %s of %s is of no use: %s"
                log.warning(text, self._node, target.part, who, error)
                self._suspects.blame(fetched.pieces)
                continue
            fault_points.reached("state.loaded")
            return fetched

    def _barred(self) -> frozenset[str]:
        others = [] if self._only is None else set(self._joiner.links()) - set(self._only)
        return frozenset(self._suspects.names.union(others))

    def _warn(self, target: Target, result: JoinResult) -> None:
        own = self._node, target.part
        text = "%s: starts with its own %s, as %s has another one: first difference: %s"
        for peer, difference in result.differences.items():
            log.warning(text, *own, peer, difference)
        came = f"{result.came / 1e6:.1f} of {result.nbytes / 1e6:.1f} MB had come"
        came = came if result.nbytes else "nothing had come"
        if result.is_late:
            text = "%s: starts with its own %s, as no peer has handed over its in %g s (%s)"
            log.warning(text, *own, min(self._timeout_s, self._patience.offered_s), came)
        elif result.nbytes:
            text = "%s: starts with its own %s, as no peer has handed over all of its (%s)"
            log.warning(text, *own, came)

    # From disk

    def _all_saved(self, target: Target) -> Iterator[Saved]:
        """Read the checkpoints of which a part is of the right kind, the newest first."""
        for saved in () if self._folder is None else self._folder.newest_first():
            if saved.clock > self._latest:
                continue
            difference = saved.difference(target.part, target.kind)
            if not difference:
                yield saved
                continue
            text = "%s: checkpoint %s is of another %s, and is kept: first difference: %s"
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
            text = "%s: the %s of checkpoint %s is of no use: %s"
            path = saved.path(target.part)
            log.warning(text, self._node, target.part, path, difference)
        return not difference


def _together(names: Collection[str]) -> str:
    return " and ".join(sorted(names))
