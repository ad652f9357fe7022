"""RankGroup: the ranks of a process group that hold one model, and what they tell each other."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dpwa.adapters.optimizer import Optimizers
from dpwa.adapters.ranks.forms import Form
from dpwa.errors import ParametersError
from dpwa.message_codes import get_log
from dpwa.types import Loss, loss_value

log = get_log("dpwa.adapters")

PATIENCE_S = 30.0  # before a rank says that it waits for the others


@dataclass
class RankGroup:
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
        self._leader_loss: float | None = None  # mean of the ranks, for the call under way

    @property
    def is_first(self) -> bool:
        """Tell whether this is rank 0."""
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

        Args:
            loss: of this rank.
            with_leader_loss: whether to ask for the loss that leaders are chosen by, too.
            problem: why this rank cannot do what it is called for; the others do not either.

        Raises:
            ParametersError: on some rank the loss is not one number, or there is a problem.
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
                "raised there says why"
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
        """Return what each rank says of the adapter that it makes."""
        with self.patience(form.name):
            return self.each(form)

    @contextmanager
    def patience(self, name: str) -> Iterator[None]:
        """Say after a while for whom the block waits, in which all ranks make their adapters."""
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
        """Return what each rank says, in order of rank."""
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
