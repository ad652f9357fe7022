"""Replicas: the ranks of one DistributedDataParallel module, which together are one node.

Rank 0 of the module's own process group has the node; the others open nothing. All ranks call the
adapter alike; after each call rank 0 says what came of it, and broadcasts parameters and averaged
buffers if these have changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.optimizer import Optimizers
from dpwa.adapters.optimizer_state import progress_of, resume
from dpwa.adapters.ranks.group import (
    Adapter,
    Failure,
    Making,
    NodeElsewhere,
    RankGroup,
    RankOutcome,
    buckets,
    require_alike,
    versions,
)
from dpwa.connection import DpwaConnection
from dpwa.errors import ParametersError

R = TypeVar("R")

STILL_AT_WORK_S = 2.0


@dataclass
class Replicas(RankGroup):
    """The ranks of a `DistributedDataParallel` module, seen from one of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._told_at = time.monotonic()

    @property
    def has_node(self) -> bool:
        return self.is_first

    # Making an adapter

    def make(self, adapter: Adapter, net: torch.nn.Module, given: Making) -> None:
        """Make the adapters of all ranks, or fail on all of them.

        Raises `UserError` if one of the ranks cannot have its own, or they are not alike.
        """
        failure: Exception | None = None
        try:
            if self.has_node:
                with self.entered():
                    given.make(given.config)
                self.leader_loss = adapter._leader_loss
                if self.leader_loss is not None:
                    adapter._leader_loss = lambda: self._leader_loss
            else:
                self._make_elsewhere(adapter, net, given)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are to know
            failure = error
        form = given.form(failure, self.rank)
        if failure is None and self.has_node:
            has_origin = adapter._states.origin is not None
            form = replace(form, has_origin=has_origin, **_progress(adapter.connection))
        forms = self.gather(form)
        if failure is not None:
            raise failure
        try:
            require_alike(forms)
        except Exception:
            adapter.connection.close()
            raise
        if not self.has_node:
            elsewhere: Any = adapter.connection
            elsewhere.follow(forms[0])
        if forms[0].has_origin:
            self._send_all(tensor for _, tensor in adapter._state.handed_on())
            self.share(adapter._optimizers)

    def _make_elsewhere(self, adapter: Adapter, net: torch.nn.Module, given: Making) -> None:
        elsewhere: Any = NodeElsewhere(given.name, given.config, self.rank)
        adapter.connection = adapter._node = adapter._rounds = adapter._states = elsewhere
        adapter._state = ModuleState.of(net, elsewhere.config)
        adapter._optimizers = Optimizers()
        adapter._optimizers.begin(adapter._state)
        adapter._optimizers.include(given.optimizer, given.scheduler)
        self.leader_loss = given.leader_loss

    def share(self, optimizers: Optimizers) -> None:
        if not optimizers.given:
            return
        schedulers, own = optimizers.schedulers or (), None
        if self.has_node:
            own = [o.state_dict() for o in optimizers.given], [*map(progress_of, schedulers)]
        states, progress = self.say(own)
        if not self.has_node:
            for optimizer, state in zip(optimizers.given, states, strict=True):
                optimizer.load_state_dict(state)
            resume(schedulers, progress)

    # A call

    def problem(self, adapter: Adapter) -> Exception | None:
        """Return `None`: rank 0 finds out for all why they cannot be called."""
        adapter._node._check_open()
        return None

    def call(self, adapter: Adapter, run: Callable[[], R]) -> R:
        """Run something on rank 0, and bring the other ranks to the same state.

        What rank 0 returns or raises, all ranks do.
        """
        if not self.has_node:
            return cast("R", self._follow(adapter))
        before = versions(adapter._state)
        try:
            with self.entered():
                result = run()
                outcome = self._outcome(adapter, result, before)
        except Exception as error:
            self.say(RankOutcome(failure=Failure.of(error, self.rank)))
            raise
        self.say(outcome)
        if outcome.has_changed:
            self._send_all(entry.tensor for entry in adapter._state.entries)
        return result

    def _outcome(self, adapter: Adapter, result: object, before: object) -> RankOutcome:
        return RankOutcome(
            result,
            has_changed=result is not None or versions(adapter._state) != before,
            fingerprint=adapter._state.layout.fingerprint,
            **_progress(adapter.connection),
        )

    def _follow(self, adapter: Adapter) -> Any:
        outcome: RankOutcome | None = None
        while outcome is None:  # rank 0 is still at work
            outcome = self.say(None)
        if outcome.failure is not None:
            outcome.failure.throw()
        elsewhere = cast("NodeElsewhere", adapter.connection)
        elsewhere.follow(outcome)
        if outcome.has_changed:
            adapter._state.refresh()
            if adapter._state.layout.fingerprint != outcome.fingerprint:
                raise ParametersError(
                    f"rank {self.rank} of the model's process group has other trainable parameters "
                    "than rank 0: freeze and replace them on all ranks alike [DPWA-E141]"
                )
            self._send_all(entry.tensor for entry in adapter._state.entries)
        return outcome.result

    def still_at_work(self) -> None:
        """Tell the ranks that wait for rank 0 to go on: else their process group would time out."""
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


def _progress(connection: DpwaConnection) -> dict[str, Any]:
    return {
        "clock": connection.clock,
        "updates": connection.updates,
        "peers": connection.peers,
    }


def replicas_of(net: torch.nn.Module) -> Replicas | None:
    """Return the ranks of a module; `None` if there is only this one."""
    for module in net.modules():
        if isinstance(module, DistributedDataParallel):
            group: dist.ProcessGroup = module.process_group
            if dist.get_world_size(group) > 1:
                return Replicas(group, next(module.parameters()).device)
    return None
