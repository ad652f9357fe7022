"""Collectives of dpwa, as users call them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dpwa.bench.measures.timed import Work
from dpwa.bench.plan import node_name
from dpwa.bench.processes import BenchmarkError

if TYPE_CHECKING:
    from dpwa.connection import DpwaConnection


def all_reduce_mean(connection: DpwaConnection, flat: torch.Tensor) -> Work:
    """Return: every process gets the mean of all values of shape `(n,)`.

    Raises:
        BenchmarkError: when it runs, if any process has not contributed.
    """

    def work() -> None:
        _, contributors = connection.all_reduce(flat, "mean")
        _require_all(connection, contributors)

    return work


def broadcast(connection: DpwaConnection, flat: torch.Tensor) -> Work:
    """Return: every process gets the values of the first, of shape `(n,)`."""
    return lambda: connection.broadcast(flat, node_name(0))


def all_gather(connection: DpwaConnection, flat: torch.Tensor) -> Work:
    """Return: every process gets the values of all, each of shape `(n,)`.

    Raises:
        BenchmarkError: when it runs, if any process has not contributed.
    """
    return lambda: _require_all(connection, len(connection.all_gather(flat)))


def _require_all(connection: DpwaConnection, contributors: int) -> None:
    count = len(connection.node.config.nodes)
    if contributors < count:
        raise BenchmarkError(f"{contributors} of {count} processes have contributed")
