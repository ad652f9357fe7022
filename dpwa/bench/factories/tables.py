"""Builds the measures of `dpwa bench tables`."""

from __future__ import annotations

import numpy as np
import torch

from dpwa.bench.factory import MeasureFactory
from dpwa.bench.measures import gloo
from dpwa.bench.measures.tables import OnTable, TableWork
from dpwa.bench.measures.timed import Timed
from dpwa.bench.plan import BYTES_PER_VALUE, TablesPlan
from dpwa.bench.session import GlooGroup, Measure
from dpwa.bench.suites.tables import ALONE, LINKS
from dpwa.connection import DpwaConnection
from dpwa.tables.tables import Tables

DELTA = 1e-3


class TablesFactory(MeasureFactory[TablesPlan]):
    """Holds what is added, and for each link a table."""

    def __init__(self, plan: TablesPlan, group: GlooGroup) -> None:
        super().__init__(plan, group)
        self._delta = np.full((plan.rows, plan.columns), DELTA, np.float32)
        self._tables: dict[str, Tables] = {}
        self._works: dict[str, TableWork] = {}

    def _measure(self, name: str) -> Measure:
        values = self._plan.nbytes // BYTES_PER_VALUE
        match name:
            case "gloo_all_gather":
                return Timed(name, gloo.all_gather(torch.ones(values // self._rank.count)))
            case "gloo_all_reduce":
                return Timed(name, gloo.all_reduce(torch.zeros(values)))
        link, _, kind = name.partition("_")
        work = self._work(link)
        do = getattr(work, kind.removesuffix(ALONE))
        takes_part = self._is_first or not kind.endswith(ALONE)
        return OnTable(name, do, work.draw, self._tables[link].flush, takes_part=takes_part)

    def _work(self, link: str) -> TableWork:
        """Return what to do with a table that all processes have."""
        if link not in self._works:
            config = self._plan.config(link, LINKS[link])
            connection = self._open.enter_context(DpwaConnection(self._rank.name, config))
            tables = self._tables[link] = self._open.enter_context(Tables(connection))
            table = tables.matrix(self._plan.rows, self._plan.columns)
            tables.barrier()
            rng = np.random.default_rng(self._rank.index)
            self._works[link] = TableWork(table, self._delta, rng)
        return self._works[link]
