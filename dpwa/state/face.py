"""States: how a node gets the state of the training, hands it on, and keeps it on disk."""

from __future__ import annotations

import itertools
import logging
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpwa import fault_points
from dpwa.clock import Clock, SystemClock
from dpwa.config import Config
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.errors import PeerError
from dpwa.lifecycle import Closeable
from dpwa.node.node import Node
from dpwa.state.checkpoints import Saved
from dpwa.state.image import ImageLayout, Part, State
from dpwa.state.inbox import Inbox
from dpwa.state.joining import Fetched, Joiner, Result, Wanted
from dpwa.state.service import StateService
from dpwa.state.shelf import Shelf
from dpwa.state.writer import CheckpointWriter
from dpwa.types import JsonObject
from dpwa.wire.state import PartName

log = logging.getLogger("dpwa.state")

Capture = Callable[[], Mapping[str, Part]]


class UnfitStateError(PeerError):
    """A state that came, from peers or from disk, is none that can be loaded."""


@dataclass(frozen=True)
class Target:
    """A part of this node's state that is to be replaced by one that comes.

    Attributes:
        part: which.
        kind: what comes must be of this kind; `None`: any kind will do.
        layout: of the image, if that is known beforehand.
        most_bytes: the largest image that is taken.
        load: takes over an image and its numbers.  Raises `UnfitStateError`, and changes nothing.
    """

    part: PartName
    kind: Layout | None
    layout: ImageLayout | None
    most_bytes: int
    load: Callable[[ByteArray, bytes], None]


@dataclass(frozen=True)
class Origin:
    """Where the state came from: peers, or a checkpoint of this node.

    Attributes:
        clock: the training clock that came with it.
        donors: names of the peers, and which copy of each it was.
        checkpoint: name of the checkpoint.
    """

    clock: float
    donors: Mapping[str, bytes] = field(default_factory=dict)
    checkpoint: str = ""


class States(Closeable):
    """The state of the training of one node.

    Args:
        node: on whose threads and connections it comes and goes.
        is_settled: tells whether all peers that can be expected are in view, where they are found
            one after the other; until then, `start` waits for the first.
        clock: what time is taken from.

    Attributes:
        origin: where the state came from; `None`: it is the node's own.
    """

    def __init__(
        self,
        node: Node,
        is_settled: Callable[[], bool] | None = None,
        clock: Clock | None = None,
    ) -> None:
        config, clock = node.config, clock or SystemClock()
        self._node = node
        self._config = config
        self._shelf = Shelf(clock)
        self._service = StateService(self._shelf, clock, config.state_serving, node.upload)
        inbox = Inbox()
        self._joiner = Joiner(
            lambda: node.links, node.courier.tell, inbox, clock, config.state_donors
        )
        if is_settled is not None:
            self._joiner.is_settled = is_settled
        self._writer = _writer_of(config, node.name)
        self._clock = clock
        self._saved_at = 0  # which update was looked at last
        self._problem = ""  # of the last copy
        self._owner = os.getpid()
        self._saved: Saved | None = None  # what this node began with, until it trains
        self._has_begun = False
        self.origin: Origin | None = None
        node.attach(self._service, inbox)
        node.describe("state", self.report)
        weakref.finalize(node, _close, self._shelf, self._writer, self._owner)

    def start(self, target: Target, initial_state: str | None = None) -> Origin | None:
        """Get the state to begin with, before the first step; at most `initial_state_timeout_s`.

        Args:
            target: the part that is to be replaced; `add` has more, if it was.
            initial_state: where from; by default as the configuration has it.

        Returns:
            Where it came from; `None` when the node begins with its own.
        """
        if target.kind is not None:
            self._shelf.kinds = {target.part: target.kind}
        source = initial_state or initial_state_of(self._config)
        on_disk = self._all_saved(target)
        newest = None if source == "peers" else next(on_disk, None)
        if source != "own":
            self._start_from_peers(target, 0.0 if newest is None else newest.clock)
        if self.origin is None:
            left = itertools.chain(() if newest is None else (newest,), on_disk)
            any(self._start_from_disk(target, saved) for saved in left)  # up to the first that fits
        return self.origin

    def add(self, target: Target) -> None:
        """Get one more part from where the others came from, if they did; before the first step."""
        if target.kind is not None:
            self._shelf.kinds = {**self._shelf.kinds, target.part: target.kind}
        if self.origin is None or self._has_begun:
            return
        if self._saved is not None:
            self._load_saved(target, self._saved)
            return
        result = self._fetch(target, 0.0, self.origin.donors)
        if result.fetched is None or not self._load(target, result.fetched):
            self._warn(target, result)

    def turn(self, capture: Capture, *, saves: bool = True) -> None:
        """Do what has become due, on the training thread: copy the state if somebody wants it.

        Args:
            capture: copies all parts.
            saves: whether the update is complete, so that it may be kept on disk.
        """
        self._has_begun, self._saved = True, None
        self._shelf.standing = self._node.rounds.standing
        is_due = saves and self._is_checkpoint_due()
        if not self._shelf.is_wanted and not is_due:
            return
        state = self._captured(capture)
        if state is None:
            return
        self._shelf.kinds = {name: part.kind for name, part in state.parts.items()}
        if self._shelf.is_wanted:
            self._shelf.put(state)
            fault_points.reached("state.captured")
        if is_due and self._writer is not None:
            self._writer.write(state)

    def report(self) -> JsonObject:
        """Describe it in plain data, for `dpwa status`."""
        origin = self.origin
        return {
            "donors": [] if origin is None else sorted(origin.donors),
            "restored": "" if origin is None else origin.checkpoint,
            "copies": self._shelf.copies,
            "held_bytes": self._shelf.held_bytes,
            "served_bytes": self._service.served_bytes,
            "checkpoints": None if self._writer is None else self._writer.report(),
        }

    def close(self) -> None:
        """Finish the checkpoint that is being written; hold nothing any more."""
        _close(self._shelf, self._writer, self._owner)

    # Beginning

    def _start_from_peers(self, target: Target, newer_than: float) -> None:
        started = self._clock.now()
        result = self._fetch(target, newer_than)
        fetched = result.fetched
        if fetched is None or not self._load(target, fetched):
            self._warn(target, result)
            return
        self._resume(Origin(fetched.clock, fetched.tokens), fetched.updates)
        log.info(
            "%s: starts from %s (%.1f MB in %.1f s, clock %.0f)",
            self._node.name,
            " and ".join(sorted(fetched.pieces)),
            fetched.image.nbytes / 1e6,
            self._clock.now() - started,
            fetched.clock,
        )

    def _fetch(
        self, target: Target, newer_than: float, tokens: Mapping[str, bytes] | None = None
    ) -> Result:
        wanted = Wanted(
            target.part, target.kind, target.most_bytes, target.layout, newer_than, tokens or {}
        )
        return self._joiner.fetch(wanted, self._config.initial_state_timeout_s)

    def _load(self, target: Target, fetched: Fetched) -> bool:
        try:
            target.load(fetched.image, fetched.numbers)
        except UnfitStateError as error:
            who = " and ".join(sorted(fetched.pieces))
            log.warning("%s: the %s of %s is of no use: %s", *self._of(target), who, error)
            return False
        fault_points.reached("state.loaded")
        return True

    def _warn(self, target: Target, result: Result) -> None:
        for peer, difference in result.differences.items():
            log.warning(
                "%s: starts with its own %s, as %s has another one: first difference: %s",
                *self._of(target),
                peer,
                difference,
            )
        if result.is_late:
            timeout_s = self._config.initial_state_timeout_s
            text = "%s: starts with its own %s, as no peer has handed over its in %g s"
            log.warning(text, *self._of(target), timeout_s)

    def _of(self, target: Target) -> tuple[str, str]:
        return self._node.name, target.part

    def _all_saved(self, target: Target) -> Iterator[Saved]:
        """Read the checkpoints of which a part is of the right kind, the newest first."""
        for saved in () if self._writer is None else self._writer.folder.newest_first():
            found = saved.parts.get(target.part)
            difference = "it has none"
            if found is not None:
                difference = "" if target.kind is None else found.difference(target.kind)
            if not difference:
                yield saved
                continue
            text = "%s: checkpoint %s has another %s, and is kept: first difference: %s"
            log.warning(text, self._node.name, saved.name, target.part, difference)
            if self._writer is not None:
                self._writer.folder.spare(saved.name)

    def _start_from_disk(self, target: Target, saved: Saved) -> bool:
        if not self._load_saved(target, saved):
            return False
        self._saved = saved
        self._resume(Origin(saved.clock, checkpoint=saved.name), saved.updates)
        text = "%s: starts from its checkpoint %s (clock %.0f)"
        log.info(text, self._node.name, saved.name, saved.clock)
        return True

    def _load_saved(self, target: Target, saved: Saved) -> bool:
        found = saved.parts.get(target.part)
        difference = "it has none"
        if found is not None:
            difference = "" if target.kind is None else found.difference(target.kind)
        if found is not None and not difference:
            try:
                target.load(found.image, found.numbers)
            except UnfitStateError as error:
                difference = str(error)
        if difference:
            text = "%s: the %s of checkpoint %s is of no use: %s"
            log.warning(text, *self._of(target), saved.name, difference)
        return not difference

    def _resume(self, origin: Origin, updates: int) -> None:
        self.origin = origin
        self._node.rounds.resume(origin.clock, updates)
        self._shelf.standing = self._node.rounds.standing
        self._saved_at = updates

    # In training

    def _is_checkpoint_due(self) -> bool:
        updates = self._node.rounds.view.updates
        if self._writer is None or updates == self._saved_at:
            return False
        self._saved_at = updates
        loss = self._node.rounds.standing.loss
        if loss is not None and math.isinf(loss):  # it would drive out the good ones
            return False
        return updates % self._config.checkpoint.every_steps == 0 and self._writer.is_free()

    def _captured(self, capture: Capture) -> State | None:
        try:
            parts = capture()
        except Exception as error:  # noqa: BLE001 - of whatever optimizer: the training goes on
            self._shelf.clear()
            problem = f"{type(error).__name__}: {error}"
            if problem != self._problem:
                self._problem = problem
                log.warning("%s: no copy of its state can be made: %s", self._node.name, problem)
            return None
        rounds = self._node.rounds
        return State(rounds.standing.clock, rounds.view.updates, parts)


def initial_state_of(config: Config) -> str:
    """Return where nodes of a configuration take their first state from."""
    if config.initial_state is not None:
        return config.initial_state
    return "peers" if config.is_open else "own"


def _writer_of(config: Config, node: str) -> CheckpointWriter | None:
    checkpoint = config.checkpoint
    if not checkpoint.dir:
        return None
    return CheckpointWriter(Path(checkpoint.dir), node, checkpoint.keep)


def _close(shelf: Shelf, writer: CheckpointWriter | None, owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child has no thread that writes
    shelf.clear()
    if writer is not None:
        writer.close()
