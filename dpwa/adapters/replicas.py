"""Replicas: the ranks of one DistributedDataParallel module, which together are one node.

Rank 0 of the module's own process group has the node: it listens and gossips. The other ranks open
nothing. All ranks call the adapter alike; after each call rank 0 says what came of it, and if that
has changed parameters or averaged buffers, they go to the other ranks by the process group.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dpwa.adapters.module_state import ModuleState, state_tensors
from dpwa.adapters.training_state import TrainingState
from dpwa.config import load_config
from dpwa.connection import ConfigSource, DpwaConnection
from dpwa.errors import ClosedError, DpwaError, ParametersError, UserError
from dpwa.lifecycle import require_own_process
from dpwa.node.gossip_rounds import GossipRounds
from dpwa.node.node import Node
from dpwa.state.states import States
from dpwa.types import Loss, loss_value

log = logging.getLogger("dpwa.adapters")

P = ParamSpec("P")
R = TypeVar("R")

BUCKET_BYTES = 32 * 1024**2  # of tensors that are broadcast at once
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


@dataclass(frozen=True)
class Failure:
    """An error on one rank, as the others hear of it."""

    rank: int
    kind: type[Exception]
    text: str
    attributes: dict[str, Any]
    code: int | None = None  # with which it ends a process that does not handle it

    @classmethod
    def of(cls, error: Exception, rank: int) -> Failure:
        """Describe an error; those that are not dpwa's own are described by their text."""
        if isinstance(error, DpwaError):
            code = getattr(error, "code", None)
            return cls(rank, type(error), str(error), vars(error), code)
        return cls(rank, RuntimeError, f"{type(error).__name__}: {error}", {})

    def throw(self) -> NoReturn:
        """Raise it on another rank."""
        error = self.kind.__new__(self.kind)
        error.args = (f"rank {self.rank} of the model's process group: {self.text}",)
        vars(error).update(self.attributes)
        if isinstance(error, SystemExit):  # which ends a process without a word
            error.code = self.code
            log.error("%s", error.args[0])
        raise error


@dataclass(frozen=True)
class RankOutcome:
    """What has come of a call on rank 0.

    Attributes:
        result: what it returns.
        failure: what it raises.
        has_changed: whether parameters or averaged buffers are to be broadcast.
        fingerprint: of the layout of those.
        clock, updates, peers: of the node.
        optimizer: a state to be loaded into the optimizer that was included.
    """

    result: Any = None
    failure: Failure | None = None
    has_changed: bool = False
    fingerprint: bytes = b""
    clock: float = 0.0
    updates: int = 0
    peers: tuple[str, ...] = ()
    optimizer: dict[str, Any] | None = None


class NodeElsewhere:
    """Stands for the node, and all that belongs to it, on a rank that does not have it.

    Attributes:
        name, config: as on rank 0.
        clock, updates, peers: as on rank 0 after the last call.
    """

    def __init__(self, name: str, source: ConfigSource, rank: int) -> None:
        self.name = name
        self.config = load_config(source)
        self.config.require(name)
        self.clock = 0.0
        self.updates = 0
        self.peers: tuple[str, ...] = ()
        self._rank = rank
        self._owner = os.getpid()
        self._is_closed = False

    def check_process(self) -> None:
        """Raise a `ForkedError` in a forked child."""
        require_own_process(self._owner, self.name)

    def _check_open(self) -> None:
        self.check_process()
        if self._is_closed:
            raise ClosedError(f"node {self.name!r} is closed")

    def described(self) -> str:
        """Say in a few words which node this is."""
        state = "closed" if self._is_closed else f"clock {self.clock:.4g}"
        return f"{self.name!r}, {state}, rank {self._rank}: the node is on rank 0"

    def follow(self, told: Form | RankOutcome) -> None:
        """Take over what rank 0 says of the node."""
        self.clock, self.updates, self.peers = told.clock, told.updates, told.peers

    def close(self) -> None:
        """Refuse to be used from now on; rank 0 closes the node."""
        self._is_closed = True

    def __getattr__(self, name: str) -> NoReturn:
        raise UserError(
            f"{name!r} is known on rank 0 of the model's process group only, which has the node "
            f"{self.__dict__.get('name')!r}; this is rank {self.__dict__.get('_rank')}"
        )


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
            _require_alike(forms)
        except Exception:
            adapter.connection.close()
            raise
        if not self.has_node:
            elsewhere: Any = adapter.connection
            elsewhere.follow(forms[0])
        if forms[0].has_origin:
            self._send_all(tensor for _, tensor in state_tensors(net))
            self._share_optimizer(given.optimizer)

    def _make_elsewhere(self, adapter: Adapter, net: torch.nn.Module, given: Making) -> None:
        elsewhere: Any = NodeElsewhere(given.name, given.config, self.rank)
        adapter.connection = adapter._node = adapter._rounds = adapter._states = elsewhere
        with_buffers = elsewhere.config.buffers == "average"
        adapter._state = ModuleState(net, with_buffers=with_buffers)
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
        before = _versions(adapter._state)
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
            has_changed=result is not None or _versions(adapter._state) != before,
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
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in bucket])
            dist.broadcast(flat, self._source, self.group)
            if self.has_node:
                continue
            parts = flat.split_with_sizes([tensor.nbytes for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.detach().copy_(part.clone().view(tensor.dtype).view(tensor.shape))


@dataclass(frozen=True)
class Form:
    """What a rank says of the adapter that it makes; rank 0 also what its node begins with."""

    name: str
    has_optimizer: bool
    has_leader_loss: bool
    failure: Failure | None
    has_origin: bool = False
    clock: float = 0.0
    updates: int = 0
    peers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Making:
    """An adapter that is to be made: its arguments, and how."""

    make: Callable[[], None]
    name: str
    config: ConfigSource
    leader_loss: Callable[[], Loss] | None = None
    optimizer: torch.optim.Optimizer | None = None


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


def _require_alike(forms: Sequence[Form]) -> None:
    for form in forms:
        if form.failure is not None:
            form.failure.throw()
    first = forms[0]
    for rank, form in enumerate(forms):
        if form.name != first.name:
            raise UserError(
                "all ranks of a DistributedDataParallel module are one node: rank 0 of its process "
                f"group calls it {first.name!r}, rank {rank} {form.name!r}"
            )
        for what in ("optimizer", "leader_loss"):
            if getattr(form, f"has_{what}") != getattr(first, f"has_{what}"):
                raise UserError(
                    f"rank 0 and rank {rank} of the model's process group must both have "
                    f"`{what}`, or neither"
                )


def _versions(state: ModuleState) -> list[tuple[int, int]]:
    """Return what changes whenever one of the gossiped tensors is written to."""
    return [(id(entry.tensor), entry.tensor._version) for entry in state.entries]


def _buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield tensors of one device that go together."""
    with_values = (tensor for tensor in tensors if tensor.numel())
    for _, same in itertools.groupby(with_values, key=lambda tensor: tensor.device):
        bucket: list[torch.Tensor] = []
        nbytes = 0
        for tensor in same:
            if bucket and nbytes + tensor.nbytes > BUCKET_BYTES:
                yield bucket
                bucket, nbytes = [], 0
            bucket.append(tensor)
            nbytes += tensor.nbytes
        yield bucket
