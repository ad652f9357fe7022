"""States: loads a node's state from peers or from disk, and copies it to peers and to disk."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpwa import fault_points
from dpwa.config import Config
from dpwa.lifecycle import Closeable, finalize
from dpwa.node.node import Node
from dpwa.policy.beginners import BEGINNING
from dpwa.state.joining import Inbox, Joiner
from dpwa.state.replaced_parts import Origin, Target
from dpwa.state.restore import StateRestore, StateShardGroup, TogetherRestore
from dpwa.state.safetensors_image import State, StatePart
from dpwa.state.service import StateService
from dpwa.types import JsonObject
from dpwa.wire import limits

if TYPE_CHECKING:
    from dpwa.state.checkpoints import CheckpointWriter

log = logging.getLogger("dpwa.state")

Capture = Callable[[], Mapping[str, StatePart]]


@dataclass(frozen=True)
class _Unfinished:
    """A copy of the state that may still lack some parts."""

    state: State
    rest: Capture | None  # copies the missing parts; `None`: the copy is complete
    is_wanted: bool  # whether nodes that start late want it
    is_due: bool  # whether it must be saved as a checkpoint


class States(Closeable):
    """The state of one node's training."""

    def __init__(self, node: Node) -> None:
        config, runtime = node.config, node.runtime
        self._node = node
        self._config = config
        piece_bytes = math.ceil(limits.CHUNK_BYTES / runtime.bytes_scale)
        merger = node.rounds.merger  # not the node, which would make a reference cycle
        self._service = StateService(
            runtime, lambda: merger.progress, config.state_serving, node.upload, piece_bytes
        )
        inbox = Inbox(runtime)
        self._joiner = Joiner(
            lambda: node.links,
            node.tx.send_message,
            node.tx.connect,
            inbox,
            runtime,
            # several donors only if nodes have equal parameters, and therefore equal copies
            config.state_donors if node.rounds.algorithm.averages_gradients else 1,
            piece_bytes,
        )
        self._joiner.is_settled = node.have_come  # until then, `start` waits for the first peers
        self._writer = _writer_of(config, node.name)
        self._saved_at = 0  # the last update that was checked for a checkpoint
        self._problem = ""  # the problem of the last copy
        self._owner = os.getpid()
        self._shard_group: StateShardGroup | None = None
        self._restore: StateRestore | TogetherRestore = StateRestore(
            node.name,
            self._joiner,
            self._writer.folder if self._writer is not None and self._writer.holds() else None,
            runtime,
            config.initial_state_timeout_s,
        )
        self._has_begun = False
        self._unfinished: _Unfinished | None = None  # a copy that lacks some parts
        self.origin: Origin | None = None  # the origin of the state; `None`: the node's own state
        node.attach(self._service, inbox)
        node.describe("state", self.report)
        finalize(node, _close, self._service, self._writer, self._owner)

    def keep_together(self, shard_group: StateShardGroup) -> None:
        """From now on, load a state only if all ranks of the model have found the same state."""
        self._shard_group = shard_group
        if isinstance(self._restore, StateRestore):
            self._restore = TogetherRestore(self._node.name, self._restore, shard_group)

    @property
    def may_save(self) -> bool:
        return self._writer is None or (self._writer.holds() and not self._writer.is_busy)

    @property
    def is_wanted(self) -> bool:
        return self._service.is_wanted

    def start(self, target: Target, initial_state: str | None = None) -> Origin | None:
        """Get the initial state, before the first step, within `initial_state_timeout_s`.

        The default of `initial_state` is the setting. Returns `None` if the node starts with its
        own state.
        """
        self._node.check_process()
        if target.kind is not None:
            self._service.kinds = {target.part: target.kind}
        self._has_begun = False
        began = self._node.runtime.now()
        origin = self._restore.start(target, initial_state or initial_state_of(self._config))
        self.origin = origin
        if origin is not None:
            self._go_on_from(origin, began)
        return origin

    def _go_on_from(self, origin: Origin, began: float) -> None:
        self.origin = origin
        self._node.rounds.resume(origin.clock, origin.updates)
        self._saved_at = origin.updates
        # This is no problem, but without the message the losses cannot be explained. Processes that
        # start together differ by some updates at first, which does not matter to users.
        is_first_start = not origin.checkpoint and origin.clock < BEGINNING
        log.log(
            logging.INFO if is_first_start else logging.WARNING,
            "%s: starts from %s (%.1f MB in %.1f s, clock %.0f) [DPWA-W072]",
            self._node.name,
            " and ".join(sorted(origin.donors)) or f"its checkpoint {origin.checkpoint}",
            origin.nbytes / 1e6,
            self._node.runtime.now() - began,
            origin.clock,
        )

    def add_part(self, target: Target) -> None:
        """Replace a further part of this node's state, from the copy that replaced the first part.

        Call this before the first step. If the first part was not replaced, this part stays. If the
        donor is gone, or has a different copy by now, both parts are replaced.
        """
        self._node.check_process()
        if target.kind is not None:
            self._service.kinds = {**self._service.kinds, target.part: target.kind}
        if self.origin is None or self._has_begun:
            return
        began = self._node.runtime.now()
        origin = self._restore.restore_part(target)
        if origin is not None:
            self._go_on_from(origin, began)

    def copy_if_due(
        self, capture: Capture, rest: Capture | None = None, *, saves: bool = True
    ) -> bool:
        """Copy the node's state if a joining peer asks for a copy, or if a checkpoint is due. Runs
        on the training thread.

        Call this when the numbers of steps and updates are equal. `capture` copies the parts that
        no longer change in this update. `rest` copies the parts that the loop may still change,
        such as learning rates, at the next call of `complete`. `saves` says whether the copy may be
        saved to disk. Returns whether the rest must be copied.
        """
        self._end_start()
        self._unfinished = None  # `complete` was not called before the next step, so drop the copy
        is_due = saves and self._writer is not None and self._is_checkpoint_due(self._writer)
        is_wanted = self._service.is_wanted
        if self._shard_group is not None:
            is_wanted = saves and self._shard_group.wants_state
        if not is_wanted and not is_due:
            return False
        rounds = self._node.rounds
        parts = self._captured(capture)
        if parts is not None:
            state = State(rounds.progress.clock, rounds.view.updates, parts)
            self._unfinished = _Unfinished(state, rest, is_wanted=is_wanted, is_due=is_due)
        if rest is None:
            self.complete()
        return self._unfinished is not None

    def complete(self) -> None:
        """Copy the missing parts of the state, before the training loop starts the next step."""
        self._end_start()
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is None:
            return
        state, rest = unfinished.state, unfinished.rest
        if rest is not None:
            more = self._captured(rest)
            if more is None:
                return
            state = replace(state, parts={**state.parts, **more})
        self._service.kinds = {name: part.kind for name, part in state.parts.items()}
        if unfinished.is_wanted:
            self._service.replace_copy(state)
            fault_points.reached("state.captured")
        if unfinished.is_due and self._writer is not None:
            self._writer.write(state)

    def report(self) -> JsonObject:
        origin = self.origin
        return {
            "donors": [] if origin is None else sorted(origin.donors),
            "refused": list(self._restore.refused),
            "restored": "" if origin is None else origin.checkpoint,
            "copies": self._service.copies,
            "held_bytes": self._service.held_bytes,
            "served_bytes": self._service.served_bytes,
            "checkpoints": None if self._writer is None else self._writer.report(),
        }

    def close(self) -> None:
        """Wait for an unfinished checkpoint, and free the copy for joining nodes."""
        _close(self._service, self._writer, self._owner)

    # During training

    def _end_start(self) -> None:
        if not self._has_begun:
            self._restore.discard_saved()
            self._has_begun = True

    def _is_checkpoint_due(self, writer: CheckpointWriter) -> bool:
        updates = self._node.rounds.view.updates
        if updates == self._saved_at:
            return False
        self._saved_at = updates
        loss = self._node.rounds.progress.loss
        if loss is not None and math.isinf(loss):  # a bad checkpoint would replace good ones
            return False
        if updates % self._config.checkpoint.every_steps:
            return False
        return writer.is_free() if self._shard_group is None else self._shard_group.may_save

    def _captured(self, capture: Capture) -> Mapping[str, StatePart] | None:
        try:
            return capture()
        except Exception as error:  # noqa: BLE001 - any optimizer may fail, and training continues
            self._service.clear()
            problem = f"{type(error).__name__}: {error}"
            if problem != self._problem:
                self._problem = problem
                log.warning(
                    "%s: the state of this node cannot be copied: %s [DPWA-W033]",
                    self._node.name,
                    problem,
                )
            return None


def initial_state_of(config: Config) -> str:
    """Return the source of the initial state. See `StateRestore.start`."""
    if config.initial_state is not None:
        return config.initial_state
    if config.is_open:
        return "peers"
    # A node that clips does not trust the reports of peers, such as their clocks.
    return "ahead" if config.robust == "none" else "own"


def _writer_of(config: Config, node: str) -> CheckpointWriter | None:
    checkpoint = config.checkpoint
    if not checkpoint.dir:
        return None
    from dpwa.state.checkpoints import CheckpointWriter

    return CheckpointWriter(Path(checkpoint.dir), node, checkpoint.keep)


def _close(service: StateService, writer: CheckpointWriter | None, owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child does not have the writing thread
    service.clear()
    if writer is not None:
        writer.close()
