"""RankGroup: the ranks of a process group that hold one model, and the messages between them.

Messages are plain data, encoded as msgpack.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgpack
import torch
import torch.distributed as dist

from dpwa import errors
from dpwa.adapters.merge import Merge
from dpwa.adapters.module_state import ModuleState
from dpwa.adapters.ranks.alone import Alone, Making
from dpwa.config import ConfigSource, load_config
from dpwa.data.segments import ByteArray
from dpwa.errors import ClosedError, ParametersError, UserError
from dpwa.lifecycle import require_own_process
from dpwa.policy.finishing import FinishReport
from dpwa.types import Loss, loss_value

log = logging.getLogger("dpwa.adapters")


R = TypeVar("R")

BUCKET_BYTES = 32 * 1024**2  # maximum size of the tensors in one broadcast


class Failure(NamedTuple):
    """An error on one rank, in the form in which it is sent to other ranks."""

    rank: int
    kind: str  # the name of a class in `dpwa.errors`, or "" for other errors
    text: str
    attributes: dict[str, Any]
    code: int | None = None  # the exit status of a process that does not handle the error

    @classmethod
    def from_error(cls, error: Exception, rank: int) -> Failure:
        """Return the description of an error. For errors of other libraries it is only a text."""
        for kind in type(error).__mro__:
            if vars(errors).get(kind.__name__) is kind:
                attributes = vars(error) if kind is type(error) else {}
                code = getattr(error, "code", None)
                return cls(rank, kind.__name__, str(error), attributes, code)
        return cls(rank, "", f"{type(error).__name__}: {error}", {})

    def throw(self) -> NoReturn:
        kind: type[Exception] = vars(errors)[self.kind] if self.kind else RuntimeError
        error = kind.__new__(kind)
        error.args = (f"rank {self.rank} of the model's process group: {self.text}",)
        vars(error).update(self.attributes)
        if isinstance(error, SystemExit):  # SystemExit ends a process without a message
            error.code = self.code
            log.error("%s", error.args[0])
        raise error


# the node's clock, number of updates and peers, and the members of its collectives
Progress = tuple[float, int, tuple[str, ...], tuple[str, ...]]


class RankOutcome(NamedTuple):
    """The outcome of a call on rank 0."""

    result: Any = None  # the returned value
    failure: Failure | None = None  # the raised error
    has_changed: bool = False  # whether rank 0 broadcasts parameters and averaged buffers next
    fingerprint: bytes = b""  # the fingerprint of their layout
    progress: Progress = (0.0, 0, (), ())


class NodeElsewhere:
    """Stands in for the node on all ranks except rank 0, because only rank 0 has the node.

    Its attributes have the values that rank 0 had after the last call.
    """

    def __init__(self, name: str, source: ConfigSource, rank: int) -> None:
        self.name = name
        self.config = load_config(source)
        self.config.require(name)
        self.clock = 0.0
        self.updates = 0
        self.peers: tuple[str, ...] = ()
        self._members: tuple[str, ...] = ()
        self._rank = rank
        self._owner = os.getpid()
        self._is_closed = False

    @property
    def collectives(self) -> NodeElsewhere:
        """Return this object, because it also lists the members of the node's collectives."""
        return self

    def members(self) -> tuple[str, ...]:
        return tuple(self._members)

    def check_process(self) -> None:
        require_own_process(self._owner, self.name)

    def check_open(self) -> None:
        self.check_process()
        if self._is_closed:
            raise ClosedError(f"node {self.name!r} is closed [DPWA-E058]")

    def described(self) -> str:
        state = "closed" if self._is_closed else f"clock {self.clock:.4g}"
        return f"{self.name!r}, {state}, rank {self._rank}, without the node, which rank 0 has"

    def follow(self, progress: Progress) -> None:
        self.clock, self.updates, self.peers, self._members = progress

    def close(self) -> None:
        """Refuse all further calls. Rank 0 closes the node itself."""
        self._is_closed = True

    def __getattr__(self, name: str) -> NoReturn:
        what = "collectives" if name == "run" else name
        raise UserError(
            f"rank {self.__dict__.get('_rank')} of the model's process group has no {what!r}, "
            f"because only rank 0 has the node {self.__dict__.get('name')!r}. Use {what!r} only on "
            "rank 0 [DPWA-E138]"
        )


class Form(NamedTuple):
    """A rank's description of its adapter, for a comparison with the other ranks."""

    name: str
    has: dict[str, bool]  # by optional argument: whether the rank got it
    failure: Failure | None
    has_origin: bool = False
    progress: Progress = (0.0, 0, (), ())


def form_of(given: Making, failure: Exception | None, rank: int) -> Form:
    what = ("leader_loss", "optimizer", "scheduler")
    has = {each: getattr(given, each) is not None for each in what}
    return Form(given.name, has, None if failure is None else Failure.from_error(failure, rank))


def require_alike(forms: Sequence[Form]) -> None:
    """Raise the error of a failed rank, or a `UserError` if ranks have different arguments."""
    for form in forms:
        if form.failure is not None:
            Failure(*form.failure).throw()
    first = forms[0]
    for rank, form in enumerate(forms):
        if form.name != first.name:
            raise UserError(
                "the ranks that hold a module together are one node, so they must pass the same "
                f"name (rank 0 has {first.name!r}, and rank {rank} has {form.name!r}) [DPWA-E140]"
            )
        for what, has in form.has.items():
            if has != first.has[what]:
                raise UserError(
                    f"rank 0 and rank {rank} of the model's process group must both pass `{what}`, "
                    "or both omit the argument [DPWA-E142]"
                )


RESULTS = {kind.__name__: kind for kind in (Merge, FinishReport)}  # classes of calls' results


def pack(said: object) -> bytearray:
    """Encode plain data and the results of calls as msgpack. Encode other objects as text."""
    return bytearray(msgpack.packb(said, default=_plain, unicode_errors="surrogatepass"))


def _plain(value: object) -> Any:
    kind = type(value).__name__
    return {kind: vars(value)} if kind in RESULTS else str(value)


def unpack(data: ByteArray) -> Any:
    return msgpack.unpackb(data, use_list=False, unicode_errors="surrogatepass")


def result_of(told: Any) -> Any:
    """Return the result of a call on rank 0, from the decoded message of rank 0."""
    if not isinstance(told, dict):
        return told
    ((kind, fields),) = told.items()
    return RESULTS[kind](**fields)


def versions(state: ModuleState) -> list[tuple[int, int]]:
    """Return numbers. At least one changes with every write to a gossiped tensor."""
    return [(id(entry.tensor), entry.tensor._version) for entry in state.entries]


def buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield lists of tensors on one device. Each list is small enough for one broadcast."""
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


PATIENCE_S = 30.0  # before a rank logs that it waits for the other ranks


@dataclass
class RankGroup(Alone):
    """The process group of a module, as an object on each rank of the group."""

    group: dist.ProcessGroup
    device: torch.device  # the device of small messages, from which the group can send
    rank: int = field(init=False)
    size: int = field(init=False)
    is_alone: bool = field(default=False, init=False)
    is_inside: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._source = dist.get_global_rank(self.group, 0)
        # on each rank: returns the loss by which nodes choose leaders
        self._measure: Callable[[], Loss] | None = None
        self._leader_loss: float | None = None  # the mean over the ranks, for the current call

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run methods on this rank only, and not on all ranks, until the block ends."""
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False

    def with_mean_of_leader_losses(self, given: Making) -> Making:
        self._measure = given.leader_loss
        if self._measure is None:
            return given
        return replace(given, leader_loss=lambda: self._leader_loss)

    def call(
        self, call: Callable[..., R], arguments: dict[str, Any], *, with_leader_loss: bool
    ) -> R:
        """Call a method on all ranks. An argument `loss` becomes the mean over all ranks."""
        problem = self.problem()
        if "loss" in arguments:
            arguments["loss"] = self.mean(arguments["loss"], problem, with_leader_loss)
        elif problem is not None:
            raise problem
        return self.run(partial(call, **arguments))

    def problem(self) -> Exception | None:
        """Return the reason why this rank cannot make a call now, or `None`."""
        raise NotImplementedError

    def run(self, call: Callable[[], R]) -> R:
        raise NotImplementedError

    def mean(self, loss: Loss, problem: Exception | None, with_leader_loss: bool) -> float | None:
        """Return the mean of the losses of all ranks that have a loss.

        Raises `ParametersError` on all ranks if the loss of a rank is not a single number, or if a
        rank has a `problem`, which is the reason why it cannot make the call. With
        `with_leader_loss`, also compute the mean of the losses by which nodes choose leaders.
        """
        values: list[float | None] = []
        try:
            values.append(loss_value(loss))
            if with_leader_loss and self._measure is not None:
                values.append(loss_value(self._measure()))
        except Exception as error:  # noqa: BLE001 - the other ranks must not wait for this rank
            problem, values = error, [None]
        values += [None] * (2 - len(values))
        told = [number for v in values for number in (v or 0.0, float(v is not None))]
        rows = self.numbers([*told, float(problem is not None)])
        if problem is not None:
            raise problem
        total, count, leader_total, leader_count, problems = map(sum, zip(*rows, strict=True))
        if problems:
            raise ParametersError(
                "the same call has failed on another rank of the model's process group. See the "
                "error on that rank for the reason [DPWA-E139]"
            )
        self._leader_loss = leader_total / leader_count if leader_count else None
        mean = total / count if count else None
        return math.inf if mean is not None and math.isnan(mean) else mean

    def numbers(self, own: Sequence[float]) -> list[list[float]]:
        """Return the numbers of each rank, in the order of ranks. All ranks give equally many."""
        rows = torch.zeros(self.size, len(own), dtype=torch.float64)
        rows[self.rank] = torch.tensor(own, dtype=torch.float64)
        rows = rows.to(self.device)
        dist.all_reduce(rows, group=self.group)  # with Gloo, a fifth of the time of an all-gather
        told: list[list[float]] = rows.tolist()
        return told

    def gather(self, form: Form) -> list[Form]:
        with self.patience(form.name):
            return [Form(*told) for told in self.each(form)]

    @contextmanager
    def patience(self, name: str) -> Iterator[None]:
        """Log after a while that this rank still waits for all ranks to make their adapters."""
        text = (
            f"still waiting for all {self.size} ranks of the model's process group. Each rank must "
            "make its adapter"
        )
        timer = threading.Timer(PATIENCE_S, log.warning, (f"{name}: {text}",))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def each(self, own: object) -> list[Any]:
        """Return the object `own` of each rank, in the order of ranks. Tuples arrive as tuples."""
        data = pack(own)
        lengths = [int(length) for (length,) in self.numbers([len(data)])]
        rows = torch.zeros(self.size, max(lengths), dtype=torch.uint8)
        rows[self.rank, : len(data)] = torch.frombuffer(data, dtype=torch.uint8)
        rows = rows.to(self.device)
        dist.all_reduce(rows, group=self.group)
        told = zip(rows.cpu(), lengths, strict=True)
        return [unpack(row[:length].numpy()) for row, length in told]

    def say(self, said: object) -> Any:
        """Send an object from rank 0 to all ranks, and return the object."""
        return unpack(self.hand_out(pack(said)))

    def hand_out(self, data: bytearray | ByteArray) -> ByteArray:
        """Send one or more bytes from rank 0 to all ranks, and return the bytes."""
        length = torch.tensor([len(data)], device=self.device)
        dist.broadcast(length, self._source, self.group)
        if self.is_first:
            there = torch.frombuffer(data, dtype=torch.uint8).to(self.device)
        else:
            there = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        dist.broadcast(there, self._source, self.group)
        return there.cpu().numpy()
