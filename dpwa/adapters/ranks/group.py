"""RankGroup: the ranks of a process group that hold one model, and what they tell each other."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist

from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.optimizer import Given, Optimizers, Schedulers
from dpwa.adapters.training_state import TrainingState
from dpwa.config import ConfigSource, load_config
from dpwa.connection import DpwaConnection
from dpwa.errors import ClosedError, DpwaError, ParametersError, UserError
from dpwa.lifecycle import require_own_process
from dpwa.node.gossip_rounds import GossipRounds
from dpwa.node.node import Node
from dpwa.state.states import States
from dpwa.types import Loss, loss_value

log = logging.getLogger("dpwa.adapters")


class Adapter(Protocol):
    """What ranks need of a `DpwaPyTorchAdapter`."""

    connection: DpwaConnection
    _node: Node
    _rounds: GossipRounds
    _state: ModuleState
    _training: TrainingState
    _states: States
    _optimizers: Optimizers
    _leader_loss: Callable[[], Loss] | None

    def _take_over_optimizers(self) -> bool: ...


BUCKET_BYTES = 32 * 1024**2  # of tensors that are broadcast at once


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
        """Errors that are not dpwa's own are described by their text."""
        if isinstance(error, DpwaError):
            code = getattr(error, "code", None)
            return cls(rank, type(error), str(error), vars(error), code)
        return cls(rank, RuntimeError, f"{type(error).__name__}: {error}", {})

    def throw(self) -> NoReturn:
        error = self.kind.__new__(self.kind)
        error.args = (f"rank {self.rank} of the model's process group: {self.text}",)
        vars(error).update(self.attributes)
        if isinstance(error, SystemExit):  # which ends a process without a word
            error.code = self.code
            log.error("%s", error.args[0])
        raise error


@dataclass(frozen=True)
class RankOutcome:
    """The outcome of a call on rank 0."""

    result: Any = None  # what it returns
    failure: Failure | None = None  # what it raises
    has_changed: bool = False  # parameters or averaged buffers are to be broadcast
    fingerprint: bytes = b""  # of their layout
    clock: float = 0.0
    updates: int = 0
    peers: tuple[str, ...] = ()


class NodeElsewhere:
    """Stands for the node, and all that belongs to it, on a rank that does not have it.

    Its attributes are as on rank 0, after the last call.
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
        require_own_process(self._owner, self.name)

    def _check_open(self) -> None:
        self.check_process()
        if self._is_closed:
            raise ClosedError(f"node {self.name!r} is closed [DPWA-E058]")

    def described(self) -> str:
        state = "closed" if self._is_closed else f"clock {self.clock:.4g}"
        return f"{self.name!r}, {state}, rank {self._rank}: the node is on rank 0"

    def follow(self, told: Form | RankOutcome) -> None:
        self.clock, self.updates, self.peers = told.clock, told.updates, told.peers

    def close(self) -> None:
        """Refuse to be used from now on; rank 0 closes the node."""
        self._is_closed = True

    def __getattr__(self, name: str) -> NoReturn:
        raise UserError(
            f"{name!r} is known on rank 0 of the model's process group only, which has the node "
            f"{self.__dict__.get('name')!r}; this is rank {self.__dict__.get('_rank')} [DPWA-E138]"
        )


@dataclass(frozen=True)
class Form:
    """What a rank says of the adapter that it makes; rank 0 also what its node begins with."""

    name: str
    has_leader_loss: bool
    has_optimizer: bool
    has_scheduler: bool
    failure: Failure | None
    has_origin: bool = False
    clock: float = 0.0
    updates: int = 0
    peers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Making:
    """An adapter that is to be made: how, and its arguments."""

    init: Callable[..., None]
    name: str
    config: ConfigSource
    leader_loss: Callable[[], Loss] | None = None
    optimizer: Given = None
    scheduler: Schedulers = None

    def make(self, config: ConfigSource) -> None:
        self.init(self.name, config, self.leader_loss, self.optimizer, self.scheduler)

    def form(self, failure: Exception | None, rank: int) -> Form:
        told = None if failure is None else Failure.of(failure, rank)
        return Form(
            self.name,
            self.leader_loss is not None,
            self.optimizer is not None,
            self.scheduler is not None,
            told,
        )


def require_alike(forms: Sequence[Form]) -> None:
    """Raise what a rank has failed with, or a `UserError` if ranks were given different things."""
    for form in forms:
        if form.failure is not None:
            form.failure.throw()
    first = forms[0]
    for rank, form in enumerate(forms):
        if form.name != first.name:
            raise UserError(
                "the ranks that hold a module together are one node: rank 0 of its process "
                f"group calls it {first.name!r}, rank {rank} {form.name!r} [DPWA-E140]"
            )
        for what in ("leader_loss", "optimizer", "scheduler"):
            if getattr(form, f"has_{what}") != getattr(first, f"has_{what}"):
                raise UserError(
                    f"rank 0 and rank {rank} of the model's process group must both have "
                    f"`{what}`, or neither [DPWA-E142]"
                )


def versions(state: ModuleState) -> list[tuple[int, int]]:
    """Return what changes whenever one of the gossiped tensors is written to."""
    return [(id(entry.tensor), entry.tensor._version) for entry in state.entries]


def buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
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


PATIENCE_S = 30.0  # before a rank says that it waits for the others


@dataclass
class RankGroup:
    """The ranks of the process group of a module, seen from one of them."""

    group: dist.ProcessGroup
    device: torch.device  # of small messages: one that the group can send from
    rank: int = field(init=False)
    size: int = field(init=False)
    is_inside: bool = field(default=False, init=False)  # a call is under way on this rank
    # returns the loss by which leaders are chosen, on each rank
    leader_loss: Callable[[], Loss] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._source = dist.get_global_rank(self.group, 0)
        self._leader_loss: float | None = None  # mean of the ranks, for the call under way

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let calls that this one makes run on this rank alone."""
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False

    def mean(
        self, loss: Loss, *, with_leader_loss: bool, problem: Exception | None = None
    ) -> float | None:
        """Return the mean of the losses of all ranks that have measured one.

        Raises `ParametersError` if on some rank the loss is not one number, or there is a
        `problem`: a reason why it cannot do what it is called for.

        `with_leader_loss`: also ask for the loss that leaders are chosen by.
        """
        values: list[float | None] = []
        try:
            values.append(loss_value(loss))
            if with_leader_loss and self.leader_loss is not None:
                values.append(loss_value(self.leader_loss()))
        except Exception as error:  # noqa: BLE001 - the other ranks must not wait
            problem, values = error, [None]
        values += [None] * (2 - len(values))
        told = [number for v in values for number in (v or 0.0, float(v is not None))]
        rows = self.numbers([*told, float(problem is not None)])
        if problem is not None:
            raise problem
        total, count, leader_total, leader_count, problems = map(sum, zip(*rows, strict=True))
        if problems:
            raise ParametersError(
                "the same call has failed on another rank of the model's process group: what was "
                "raised there says why [DPWA-E139]"
            )
        self._leader_loss = leader_total / leader_count if leader_count else None
        mean = total / count if count else None
        return math.inf if mean is not None and math.isnan(mean) else mean

    def numbers(self, own: Sequence[float]) -> list[list[float]]:
        """Return the numbers of each rank, as many on all of them, in order of rank."""
        rows = torch.zeros(self.size, len(own), dtype=torch.float64)
        rows[self.rank] = torch.tensor(own, dtype=torch.float64)
        rows = rows.to(self.device)
        dist.all_reduce(rows, group=self.group)  # with Gloo, a fifth of the time of an all-gather
        told: list[list[float]] = rows.tolist()
        return told

    def gather(self, form: Form) -> list[Form]:
        with self.patience(form.name):
            return self.each(form)

    @contextmanager
    def patience(self, name: str) -> Iterator[None]:
        """Log after a while whom the block waits for, in which all ranks make their adapters."""
        text = (
            f"still waiting for all {self.size} ranks of the model's process group to make their "
            "adapters: each of them has to"
        )
        timer = threading.Timer(PATIENCE_S, log.warning, (f"{name}: {text}",))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def each(self, own: Any) -> list[Any]:
        said: list[Any] = [None] * self.size
        dist.all_gather_object(said, own, group=self.group)
        return said

    def say(self, said: Any) -> Any:
        """Give what rank 0 says to all ranks."""
        box = [said]
        dist.broadcast_object_list(box, self._source, self.group, self.device)
        return box[0]

    def share(self, optimizers: Optimizers) -> None:
        """Give what rank 0 has taken over for the optimizers to all ranks, if only it has."""

    def still_at_work(self) -> None:
        """Say, now and then, that rank 0 is at work, if others wait for it meanwhile."""
