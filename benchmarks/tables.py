"""Compare reads and additions of a shared table with collectives of Gloo.

Each repetition runs every measure once, so ratios hold even if the speed of the machine changes.
Run nothing else at the same time. docs/benchmarks.md describes each measure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from common import (
    BYTES_PER_VALUE,
    Measure,
    Ratio,
    Session,
    add_options,
    at_least,
    plan_of,
    result_of,
    run,
    show,
    timed,
)

LINKS = ("shm", "tcp")
ROWS_SHARE = 0.01  # share of the rows in a measure of some rows
ALONE = "_alone"  # suffix of a measure in which one process works and the others only serve
DELTA = 1e-3
WHO = {"shm": "dpwa, same host", "tcp": "dpwa, streamed"}
WHAT = {
    "get_rows": "get 1 % of the rows",
    f"get_rows{ALONE}": "the same, by one process",
    "get_all": "get the whole table",
    "add_rows": "add to 1 % of the rows",
    "add_rows_async": "the same, without waiting",
    "add_all": "add to the whole table",
}
WHOLE = tuple(f"{link}_{kind}" for kind in ("get_all", "add_all") for link in LINKS)
TITLES = {
    **{f"{link}_{kind}": f"{WHO[link]}: {WHAT[kind]}" for kind in WHAT for link in LINKS},
    "gloo_all_gather": "Gloo: all_gather of the table",
    "gloo_all_reduce": "Gloo: all_reduce of a table",
}
RATIOS: tuple[Ratio, ...] = (
    *((("gloo_all_gather",), (f"{link}_get_all",)) for link in LINKS),
    *((("gloo_all_reduce",), (f"{link}_add_all",)) for link in LINKS),
)


def main() -> None:
    run(_compare, _take_part, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=at_least(100), default=1_000_000)
    parser.add_argument("--columns", type=at_least(1), default=64, help="float32 values in a row")
    add_options(parser, tuple(TITLES), processes=4)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    nbytes = options.rows * options.columns * BYTES_PER_VALUE
    shape = {"rows": options.rows, "columns": options.columns}
    told = {"measures": options.only, "repetitions": options.repetitions}
    found = result_of(plan_of(nbytes, LINKS, options.processes, **told, **shape), RATIOS)
    mb_per_s = {
        name: nbytes / 1000 / figure["median_ms"]
        for name, figure in found["figures"].items()
        if name in WHOLE
    }
    heading = f"{options.rows} x {options.columns} float32"
    more = {"MB/s of each process": mb_per_s}
    result = {**shape, "mb_per_s": mb_per_s, **found}
    show(result, heading, TITLES, as_json=options.json, more=more)


def _take_part(_: argparse.Namespace) -> None:
    with Session() as session, ExitStack() as stack:
        options = session.plan.options
        made = _Measures(session, stack)
        session.repeat(
            {name: made.of(name) for name in options["measures"]}, options["repetitions"]
        )


class _Measures:
    """A factory for the measures of one process, which share the tables of the process."""

    def __init__(self, session: Session, stack: ExitStack) -> None:
        import numpy as np

        self._session, self._stack = session, stack
        options = session.plan.options
        shape = self._shape = options["rows"], options["columns"]
        self._delta = np.full(shape, DELTA, np.float32)
        self._made: dict[str, tuple[TableWork, Callable[[], object]]] = {}

    def of(self, name: str) -> Measure:
        """Return a measure. All processes must make the same measures in the same order."""
        import measures as m
        import torch

        values = self._session.plan.nbytes // BYTES_PER_VALUE
        match name:
            case "gloo_all_gather":
                return timed(name, m.gloo_gathers(torch.ones(values // self._session.count)))
            case "gloo_all_reduce":
                return timed(name, m.gloo_reduces(torch.zeros(values)))
        link, _, kind = name.partition("_")
        work, flush = self._work(link)
        takes_part = self._session.index == 0 or not kind.endswith(ALONE)
        return timed(
            name,
            getattr(work, kind.removesuffix(ALONE)),
            takes_part=takes_part,
            prepare=work.draw,
            settle=flush,
        )

    def _work(self, link: str) -> tuple[TableWork, Callable[[], object]]:
        """Return the work on a table that all processes share, and a function that waits for it."""
        import numpy as np

        from dpwa.connection import DpwaConnection
        from dpwa.tables.node_tables import Tables

        if link not in self._made:
            config = self._session.plan.config(link, transport=link)
            connection = self._stack.enter_context(DpwaConnection(self._session.name, config))
            tables = self._stack.enter_context(Tables(connection))
            table = tables.matrix(*self._shape)
            tables.barrier()
            rng = np.random.default_rng(self._session.index)
            self._made[link] = TableWork(table, self._delta, rng), tables.flush
        return self._made[link]


class TableWork:
    """The work of a process on a table of shape (rows, columns).

    `delta` has the shape of the table. `add_all` adds `delta` to the table. `add_rows` adds the
    first rows of `delta` to rows that `rng` picks.
    """

    def __init__(self, table: Any, delta: Any, rng: Any) -> None:
        self._table, self._delta, self._rng = table, delta, rng
        self.draw()

    def draw(self) -> None:
        rows = len(self._delta)
        self._ids = self._rng.choice(rows, round(rows * ROWS_SHARE), replace=False)

    def get_rows(self) -> None:
        self._table.get(self._ids)

    def get_all(self) -> None:
        self._table.get()

    def add_rows(self) -> None:
        self._table.add(self._delta[: len(self._ids)], self._ids, sync=True)

    def add_rows_async(self) -> None:
        self._table.add(self._delta[: len(self._ids)], self._ids)

    def add_all(self) -> None:
        self._table.add(self._delta, sync=True)


if __name__ == "__main__":
    main()
