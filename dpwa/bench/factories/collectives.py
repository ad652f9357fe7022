"""Builds the measures of `dpwa bench collectives`."""

from __future__ import annotations

from dpwa.bench.factory import MeasureFactory
from dpwa.bench.measures import collectives, gloo
from dpwa.bench.measures.timed import Timed, Work
from dpwa.bench.model import FlatModel
from dpwa.bench.plan import BYTES_PER_VALUE, CollectivesPlan
from dpwa.bench.session import GlooGroup, Measure
from dpwa.bench.suites.collectives import GLOO, LINKS, SMALL_BYTES
from dpwa.connection import DpwaConnection

CALLS = 50  # in a row, of what takes less than a millisecond


class CollectivesFactory(MeasureFactory[CollectivesPlan]):
    """Holds the values, and a connection for each link."""

    def __init__(self, plan: CollectivesPlan, group: GlooGroup) -> None:
        super().__init__(plan, group)
        self._flat = FlatModel(plan.nbytes, 1, seed=self._rank.index).flat
        self._part = self._flat[: len(self._flat) // self._rank.count].clone()
        self._small = self._flat[: SMALL_BYTES // BYTES_PER_VALUE].clone()
        self._connections: dict[str, DpwaConnection] = {}

    def _measure(self, name: str) -> Measure:
        who, _, kind = name.partition("_")
        is_short = kind in ("barrier", "small_all_reduce")
        work = self._by_gloo(kind) if who == GLOO else self._by_dpwa(who, kind)
        return Timed(name, work, calls=CALLS if is_short else 1)

    def _by_gloo(self, kind: str) -> Work:
        match kind:
            case "all_reduce":
                return gloo.all_reduce_mean(self._flat)
            case "small_all_reduce":
                return gloo.all_reduce_mean(self._small)
            case "broadcast":
                return gloo.broadcast(self._flat)
            case "all_gather":
                return gloo.all_gather(self._part)
        return gloo.barrier

    def _by_dpwa(self, link: str, kind: str) -> Work:
        connection = self._met(link)
        match kind:
            case "all_reduce":
                return collectives.all_reduce_mean(connection, self._flat)
            case "small_all_reduce":
                return collectives.all_reduce_mean(connection, self._small)
            case "broadcast":
                return collectives.broadcast(connection, self._flat)
            case "all_gather":
                return collectives.all_gather(connection, self._part)
        return connection.barrier

    def _met(self, link: str) -> DpwaConnection:
        """Return a connection that all processes have."""
        if link not in self._connections:
            connection = DpwaConnection(self._rank.name, self._plan.config(link, LINKS[link]))
            self._connections[link] = self._open.enter_context(connection)
            connection.barrier()
        return self._connections[link]
