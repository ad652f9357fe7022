"""Replicas: the ranks of one DistributedDataParallel module, which together are one node.

Rank 0 of the module's own process group has the node: it listens and gossips. The other ranks open
nothing. All ranks call the adapter alike; after each call rank 0 says what came of it, and if that
has changed parameters or averaged buffers, they go to the other ranks by the process group.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.ranks import (
    Failure,
    Form,
    Making,
    NodeElsewhere,
    RankOutcome,
    buckets,
    require_alike,
    versions,
)
from dpwa.adapters.training_state import TrainingState
from dpwa.connection import DpwaConnection
from dpwa.errors import ParametersError
from dpwa.node.gossip_rounds import GossipRounds
from dpwa.node.node import Node
from dpwa.state.states import States
from dpwa.types import Loss, loss_value

log = logging.getLogger("dpwa.adapters")

P = ParamSpec("P")
R = TypeVar("R")

STILL_AT_WORK_S = 2.0
PATIENCE_S = 30.0  # before a rank says that it waits for the others


class Adapter(Protocol):
    """What replicas need of a `DpwaPyTorchAdapter`."""

    connection: DpwaConnection
    _node: Node
    _rounds: GossipRounds
    _state: ModuleState
    _training: TrainingState
    _states: States
    _leader_loss: Callable[[], Loss] | None
    _replicas: Replicas | None


@dataclass
class Replicas:
    """The ranks of the process group of a module, seen from one of them.

    Attributes:
        group: the process group.
        rank, size: of this process in it, and of the group.
        device: of small messages: one that the group can send from.
        is_inside: whether a call is under way on this rank.
        leader_loss: returns the loss by which leaders are chosen, on each rank.
    """

    group: dist.ProcessGroup
    device: torch.device
    rank: int = field(init=False)
    size: int = field(init=False)
    is_inside: bool = field(default=False, init=False)
    leader_loss: Callable[[], Loss] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._source = dist.get_global_rank(self.group, 0)
        self._told_at = time.monotonic()
        self._leader_loss: float | None = None  # mean of the ranks, for the call under way

    @property
    def has_node(self) -> bool:
        """Tell whether this is the rank that has the node."""
        return self.rank == 0

    # Making an adapter

    def make(self, adapter: Adapter, net: torch.nn.Module, given: Making) -> None:
        """Make the adapters of all ranks, or fail on all of them.

        Raises:
            UserError: one of the ranks cannot have its own, or they are not alike.
        """
        failure: Exception | None = None
        try:
            if self.has_node:
                with self._entered():
                    given.make()
                self.leader_loss = adapter._leader_loss
                if self.leader_loss is not None:
                    adapter._leader_loss = lambda: self._leader_loss
            else:
                self._make_elsewhere(adapter, net, given)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are to know
            failure = error
        form = Form(
            given.name,
            given.optimizer is not None,
            given.leader_loss is not None,
            None if failure is None else Failure.of(failure, self.rank),
        )
        if failure is None and self.has_node:
            has_origin = adapter._states.origin is not None
            form = replace(form, has_origin=has_origin, **_standing(adapter.connection))
        forms = self._gather(form)
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
            self._share_optimizer(given.optimizer)

    def _make_elsewhere(self, adapter: Adapter, net: torch.nn.Module, given: Making) -> None:
        elsewhere: Any = NodeElsewhere(given.name, given.config, self.rank)
        adapter.connection = adapter._node = adapter._rounds = adapter._states = elsewhere
        adapter._state = ModuleState.of(net, elsewhere.config)
        self.leader_loss = given.leader_loss

    def _share_optimizer(self, optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer is None:
            return
        state = self._say(optimizer.state_dict() if self.has_node else None)
        if not self.has_node:
            optimizer.load_state_dict(state)

    # A call

    def call(self, adapter: Adapter, run: Callable[[], R], optimizer: Any = None) -> R:
        """Run something on rank 0, and bring the other ranks to the same state.

        Args:
            adapter: of this rank.
            run: what rank 0 does.
            optimizer: whose state may be taken over in it.

        Returns:
            What rank 0 returned.

        Raises:
            DpwaError: what rank 0 raised, on all ranks.
        """
        if not self.has_node:
            return cast("R", self._follow(adapter, optimizer))
        before = versions(adapter._state)
        try:
            with self._entered():
                result = run()
                outcome = self._outcome(adapter, result, before, optimizer)
        except Exception as error:
            self._say(RankOutcome(failure=Failure.of(error, self.rank)))
            raise
        self._say(outcome)
        if outcome.has_changed:
            self._send_all(entry.tensor for entry in adapter._state.entries)
        return result

    def _outcome(
        self, adapter: Adapter, result: object, before: object, optimizer: Any
    ) -> RankOutcome:
        is_taken_over = optimizer is not None and adapter._states.origin is not None
        return RankOutcome(
            result,
            has_changed=result is not None or versions(adapter._state) != before,
            fingerprint=adapter._state.layout.fingerprint,
            **_standing(adapter.connection),
            optimizer=optimizer.state_dict() if is_taken_over else None,
        )

    def _follow(self, adapter: Adapter, optimizer: Any) -> Any:
        outcome: RankOutcome | None = None
        while outcome is None:  # rank 0 is still at work
            outcome = self._say(None)
        if outcome.failure is not None:
            outcome.failure.throw()
        elsewhere = cast("NodeElsewhere", adapter.connection)
        elsewhere.follow(outcome)
        if outcome.optimizer is not None:
            optimizer.load_state_dict(outcome.optimizer)
        if outcome.has_changed:
            adapter._state.refresh()
            if adapter._state.layout.fingerprint != outcome.fingerprint:
                raise ParametersError(
                    f"rank {self.rank} of the model's process group has other trainable parameters "
                    "than rank 0: freeze and replace them on all ranks alike"
                )
            self._send_all(entry.tensor for entry in adapter._state.entries)
        return outcome.result

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False

    def still_at_work(self) -> None:
        """Tell the ranks that wait for rank 0 to go on: else their process group would time out."""
        now = time.monotonic()
        if now - self._told_at >= STILL_AT_WORK_S:
            self._told_at = now
            self._say(None)

    def mean(self, loss: Loss, *, with_leader_loss: bool) -> float | None:
        """Return the mean of the losses of all ranks that have measured one.

        Raises:
            ParametersError: on some rank it is not one number.
        """
        values: list[float | None] = []
        problem: Exception | None = None
        try:
            values.append(loss_value(loss))
            if with_leader_loss and self.leader_loss is not None:
                values.append(loss_value(self.leader_loss()))
        except Exception as error:  # noqa: BLE001 - the other ranks must not wait
            problem, values = error, [None]
        values += [None] * (2 - len(values))
        sums = [[value or 0.0, float(value is not None)] for value in values]
        told = torch.tensor([*sums, [float(problem is not None), 0.0]], dtype=torch.float64)
        told = told.to(self.device)
        dist.all_reduce(told, group=self.group)
        if problem is not None:
            raise problem
        (total, count), (leader_total, leader_count), (problems, _) = told.tolist()
        if problems:
            raise ParametersError("the loss of another rank of the model's process group is wrong")
        self._leader_loss = leader_total / leader_count if leader_count else None
        mean = total / count if count else None
        return math.inf if mean is not None and math.isnan(mean) else mean

    # The process group

    def _gather(self, form: Form) -> list[Form]:
        text = (
            f"still waiting for all {self.size} ranks of the model's process group to make their "
            "adapters: each of them has to"
        )
        timer = threading.Timer(PATIENCE_S, log.warning, (f"{form.name}: {text}",))
        timer.daemon = True
        timer.start()
        try:
            forms: list[Any] = [None] * self.size
            dist.all_gather_object(forms, form, group=self.group)
            return forms
        finally:
            timer.cancel()

    def _say(self, said: Any) -> Any:
        """Give what rank 0 says to all ranks."""
        box = [said]
        dist.broadcast_object_list(box, self._source, self.group, self.device)
        return box[0]

    @torch.no_grad()
    def _send_all(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give the values of rank 0 to all ranks, bit for bit."""
        for bucket in buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in bucket])
            dist.broadcast(flat, self._source, self.group)
            if self.has_node:
                continue
            parts = flat.split_with_sizes([tensor.nbytes for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.detach().copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def _standing(connection: DpwaConnection) -> dict[str, Any]:
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


def made_by_all_ranks(init: Callable[P, None]) -> Callable[P, None]:
    """Let an adapter of replicas be made on rank 0 only, and stood for on the others."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def make(*args: P.args, **kwargs: P.kwargs) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        adapter, net, *rest = bound.args
        replicas = adapter._replicas = (
            replicas_of(net) if isinstance(net, torch.nn.Module) and dist.is_available() else None
        )
        run = functools.partial(init, *args, **kwargs)
        if replicas is None:
            run()
        else:
            replicas.make(adapter, net, Making(run, *rest))

    return make


def by_all_ranks(call: Callable[P, R]) -> Callable[P, R]:
    """Let a method of an adapter be called by all ranks: rank 0 runs it, the others follow.

    Whatever it changes in the module on rank 0 is on all ranks when it returns. A `loss` that it
    takes is the mean of those of all ranks, an `optimizer` has the state of that of rank 0.
    """
    signature = inspect.signature(call)
    begins = call.__name__ == "update_send"  # when leaders are chosen

    @functools.wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        adapter: Any = args[0]
        replicas: Replicas | None = adapter._replicas
        if replicas is None or replicas.is_inside:
            return call(*args, **kwargs)
        adapter._node._check_open()
        bound = signature.bind(*args, **kwargs)
        if "loss" in signature.parameters:
            mean = replicas.mean(bound.arguments.get("loss"), with_leader_loss=begins)
            bound.arguments["loss"] = mean
        run = functools.partial(call, *bound.args, **bound.kwargs)
        return replicas.call(adapter, run, bound.arguments.get("optimizer"))

    return called
