"""Rounds of dpwa itself, through the calls that a training loop makes."""

from __future__ import annotations

import time

from dpwa.adapters.pytorch import DpwaPyTorchAdapter
from dpwa.bench.model import FlatModel
from dpwa.bench.processes import BenchmarkError
from dpwa.bench.records import Sample
from dpwa.clock import Deadline, SystemClock
from dpwa.policy.beginners import BEGINNING

MEET_TIMEOUT_S = 60.0
MEET_PAUSE_S = 0.01
PAUSE_S = 0.02  # a stand-in for training that a fetch of nothing fits into,
PAUSE_S_PER_BYTE = 1e-9  # and more for every byte


class Round:
    """A round that all processes do at once: `update_send` until merged.

    Args:
        figure: what its time is called.
        adapter: gossips the model of this process.
        pause_s: how long to pause in between, as training does; that time is not counted.
    """

    def __init__(self, figure: str, adapter: DpwaPyTorchAdapter, pause_s: float = 0.0) -> None:
        self._figure = figure
        self._adapter = adapter
        self._pause_s = pause_s

    def prepare(self) -> None:
        """Nothing: every process has published in a round before."""

    def run(self) -> Sample:
        """Do one round."""
        before = time.perf_counter()
        self._adapter.update_send()
        sent = time.perf_counter()
        if self._pause_s:
            time.sleep(self._pause_s)
        waiting = time.perf_counter()
        merge = self._adapter.update_wait()
        merged = time.perf_counter()
        return None if merge is None else {self._figure: merged - waiting + sent - before}


class OneWay:
    """The first process fetches and waits; the others have published, and do nothing else.

    Args:
        prefix: of the names of its figures.
        adapter: gossips the model of this process.
        model: that model.
        is_first: whether this is the first process.
    """

    def __init__(
        self, prefix: str, adapter: DpwaPyTorchAdapter, model: FlatModel, *, is_first: bool
    ) -> None:
        self._prefix = prefix
        self._adapter = adapter
        self._model = model
        self._is_first = is_first

    def prepare(self) -> None:
        """Publish something new in every process but the first."""
        self._model.train_a_little()
        if not self._is_first:
            self._adapter.update_send()
            self._adapter.update_wait()

    def run(self) -> Sample:
        """Do one round in the first process; its fetch begins when `update_send` returns."""
        if not self._is_first:
            return {}
        before = time.perf_counter()
        self._adapter.update_send()
        sent = time.perf_counter()
        merge = self._adapter.update_wait()
        merged = time.perf_counter()
        if merge is None:
            return None
        return {
            f"{self._prefix}_one_way": merged - before,
            f"{self._prefix}_fetch_merge": merged - sent,
        }


def pause_s(nbytes: int) -> float:
    """Return how long training must take for a fetch on the same host to end meanwhile."""
    return PAUSE_S + PAUSE_S_PER_BYTE * nbytes


def meet(adapter: DpwaPyTorchAdapter) -> None:
    """Gossip until something was merged.

    All processes do so at the same time, and a barrier must follow.

    Raises:
        BenchmarkError: nothing was merged in a minute.
    """
    # No beginner, however long others take: whoever has met waits, and would be refused.
    adapter.connection.node.rounds.resume(BEGINNING, 0)
    deadline = Deadline(SystemClock(), MEET_TIMEOUT_S)
    while not deadline.expired():
        adapter.update_send()
        time.sleep(MEET_PAUSE_S)
        if adapter.update_wait() is not None:
            return
    peers = adapter.connection.node.report()["peers"]
    raise BenchmarkError(f"{adapter.name} met nobody in {MEET_TIMEOUT_S:.0f} s: {peers}")
