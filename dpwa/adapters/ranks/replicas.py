"""Replicas: the ranks of one DistributedDataParallel module, which form one node.

Rank 0 of the module's own process group has the node. The other ranks open no sockets. All ranks
make the same calls of the adapter. After each call, rank 0 sends the result to the other ranks.
If parameters or averaged buffers have changed, rank 0 broadcasts them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dpwa.adapters.optimizer import Optimizers
from dpwa.adapters.optimizer_state import load_optimizers, optimizer_part
from dpwa.adapters.ranks.alone import Build, Making
from dpwa.adapters.ranks.group import (
    Failure,
    NodeElsewhere,
    Progress,
    RankGroup,
    RankOutcome,
    buckets,
    form_of,
    require_alike,
    result_of,
    versions,
)
from dpwa.connection import DpwaConnection
from dpwa.errors import ParametersError
from dpwa.state.replaced_parts import UnfitStateError

log = logging.getLogger("dpwa.adapters")

R = TypeVar("R")

STILL_AT_WORK_S = 2.0  # between signs of rank 0 that it still works


@dataclass
class Replicas(RankGroup):
    """The ranks of a `DistributedDataParallel` module, as an object on each rank."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.has_node = self.is_first
        self._told_at = time.monotonic()

    def make(self, given: Making, build: Build, begin: Callable[[], None]) -> None:
        failure: Exception | None = None
        given = self.with_mean_of_leader_losses(given)
        connection: Any
        try:
            if self.has_node:
                connection = DpwaConnection(given.name, given.config)
            else:
                connection = NodeElsewhere(given.name, given.config, self.rank)
            self._connection = connection
            self._state, optimizers = build(given, connection)
            if self.has_node:
                with self.entered():
                    begin()
        except Exception as error:  # noqa: BLE001 - every error must be sent to the other ranks
            failure = error
        form = form_of(given, failure, self.rank)
        if failure is None and self.has_node:
            has_origin = connection.states.origin is not None
            form = form._replace(has_origin=has_origin, progress=self._progress())
        forms = self.gather(form)
        if failure is not None:
            raise failure
        require_alike(forms)
        if not self.has_node:
            connection.follow(forms[0].progress)
        if forms[0].has_origin:
            self._send_all(tensor for _, tensor in self._state.handed_on())
            self.share_optimizers(optimizers)

    def share_optimizers(self, optimizers: Optimizers) -> None:
        if not optimizers.given:
            return
        part = optimizer_part(optimizers) if self.has_node else None
        numbers, problem = self.say(part and part.numbers), "it has values that are not plain data"
        if numbers is not None:
            image, problem = self.hand_out(part.image if part else bytearray()), ""
            load = partial(load_optimizers, optimizers, image, numbers)
            try:
                if not self.has_node:
                    load(keeps_lr=False, is_guarded=False, tries=True)
            except UnfitStateError as error:
                problem = str(error)
            problem = next(filter(None, self.each(problem)), "")  # the same on all ranks
            if not problem and not self.has_node:
                load(keeps_lr=False, is_guarded=False)
        if problem and self.has_node:
            log.warning(
                "the other ranks cannot load the optimizer state of rank 0: %s. Each rank keeps "
                "its own optimizer state [DPWA-W077]",
                problem,
            )

    # A call

    def problem(self) -> Exception | None:
        """Check that the node is open. Return `None`, because rank 0 checks the rest."""
        (self._connection.node if self.has_node else self._connection).check_open()
        return None

    def run(self, call: Callable[[], R]) -> R:
        """Call a function on rank 0. If gossiped tensors changed, copy all to the other ranks.

        All ranks return the same result, or raise the same error.
        """
        if not self.has_node:
            return cast("R", self._follow())
        before = versions(self._state)
        try:
            with self.entered():
                result = call()
                has_changed = result is not None or versions(self._state) != before
                fingerprint, progress = self._state.layout.fingerprint, self._progress()
        except Exception as error:
            self.say(RankOutcome(failure=Failure.from_error(error, self.rank)))
            raise
        self.say(RankOutcome(result, None, has_changed, fingerprint, progress))
        if has_changed:
            self._send_all(entry.tensor for entry in self._state.entries)
        return result

    def _follow(self) -> Any:
        while (told := self.say(None)) is None:
            pass  # rank 0 is still at work
        outcome = RankOutcome(*told)
        if outcome.failure is not None:
            Failure(*outcome.failure).throw()
        self._connection.follow(outcome.progress)
        if outcome.has_changed:
            self._state.refresh()
            if self._state.layout.fingerprint != outcome.fingerprint:
                raise ParametersError(
                    f"rank {self.rank} of the model's process group has different trainable "
                    "parameters than rank 0. Freeze and replace parameters in the same way on all "
                    "ranks [DPWA-E141]"
                )
            self._send_all(entry.tensor for entry in self._state.entries)
        return result_of(outcome.result)

    def _progress(self) -> Progress:
        connection = self._connection
        members = connection.collectives.members()
        return connection.clock, connection.updates, connection.peers, members

    def still_at_work(self) -> None:
        """Tell waiting ranks that rank 0 still works, before their process group times out."""
        now = time.monotonic()
        if now - self._told_at >= STILL_AT_WORK_S:
            self._told_at = now
            self.say(None)

    # The process group

    @torch.no_grad()
    def _send_all(self, tensors: Iterable[torch.Tensor]) -> None:
        for bucket in buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in bucket])
            dist.broadcast(flat, self._source, self.group)
            if self.has_node:
                continue
            parts = flat.split_with_sizes([tensor.nbytes for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.detach().copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def replicas_of(net: torch.nn.Module) -> Replicas | None:
    """Return the ranks of a DDP module, or `None` if only this rank has the module."""
    for module in net.modules():
        if isinstance(module, DistributedDataParallel):
            group: dist.ProcessGroup = module.process_group
            if dist.get_world_size(group) > 1:
                return Replicas(group, next(module.parameters()).device)
    return None
