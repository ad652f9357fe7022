"""The same work by Gloo, as torch.distributed offers it: what dpwa would replace."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from dpwa.bench.measures.timed import Work
from dpwa.bench.model import MERGE_FACTOR
from dpwa.bench.plan import Rank
from dpwa.bench.records import Sample


def all_reduce(flat: torch.Tensor) -> Work:
    """Return: every process gets the sum of all values of shape `(n,)`."""
    return lambda: dist.all_reduce(flat)


def all_reduce_mean(flat: torch.Tensor) -> Work:
    """Return: every process gets the mean of all values of shape `(n,)`."""

    def work() -> None:
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())

    return work


def broadcast(flat: torch.Tensor) -> Work:
    """Return: every process gets the values of the first, of shape `(n,)`."""
    return lambda: dist.broadcast(flat, 0)


def all_gather(flat: torch.Tensor) -> Work:
    """Return: every process gets the values of all, each of shape `(n,)`.

    They go into memory that is there already.
    """
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    return lambda: dist.all_gather(gathered, flat)


def barrier() -> None:
    """Wait for every process."""
    dist.barrier()


class GlooPairExchange:
    """Every process sends its model to the next one, and merges that of the one before.

    Two processes are each other's partner; of more, each sends one model and gets one, too.

    Args:
        flat: the model of this process, shape `(n,)`.
        scratch: what arrives, shape `(n,)`.
        rank: which process this is.
    """

    def __init__(self, flat: torch.Tensor, scratch: torch.Tensor, rank: Rank) -> None:
        self._flat = flat
        self._scratch = scratch
        self._to = (rank.index + 1) % rank.count
        self._from = (rank.index - 1) % rank.count

    def prepare(self) -> None:
        """Nothing."""

    def run(self) -> Sample:
        """Take part in one."""
        before = time.perf_counter()
        sending = dist.isend(self._flat, self._to)
        receiving = dist.irecv(self._scratch, self._from)
        for work in (sending, receiving):
            if work is not None:  # it is only for processes outside of the group
                work.wait()
        self._flat.lerp_(self._scratch, MERGE_FACTOR)
        return {"gloo_pair": time.perf_counter() - before}
