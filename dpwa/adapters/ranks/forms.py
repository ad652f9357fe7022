"""What the ranks of a process group tell each other of their adapters."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.optimizer import Given, Schedulers
from dpwa.config import ConfigSource, load_config
from dpwa.errors import ClosedError, DpwaError, UserError
from dpwa.lifecycle import require_own_process
from dpwa.message_codes import get_log
from dpwa.types import Loss

log = get_log("dpwa.adapters")

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
    """

    result: Any = None
    failure: Failure | None = None
    has_changed: bool = False
    fingerprint: bytes = b""
    clock: float = 0.0
    updates: int = 0
    peers: tuple[str, ...] = ()


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
        """Make it, with this configuration."""
        self.init(self.name, config, self.leader_loss, self.optimizer, self.scheduler)

    def form(self, failure: Exception | None, rank: int) -> Form:
        """Say to the other ranks what has come of it."""
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
                f"group calls it {first.name!r}, rank {rank} {form.name!r}"
            )
        for what in ("leader_loss", "optimizer", "scheduler"):
            if getattr(form, f"has_{what}") != getattr(first, f"has_{what}"):
                raise UserError(
                    f"rank 0 and rank {rank} of the model's process group must both have "
                    f"`{what}`, or neither"
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
