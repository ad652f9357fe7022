"""Compare all_reduce, broadcast, all_gather and barriers of dpwa and of Gloo.

Each repetition runs every measure once, so ratios hold even if the speed of the machine changes.
Run nothing else at the same time. docs/benchmarks.md describes each measure.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from common import (
    BYTES_PER_VALUE,
    Plan,
    Ratio,
    Session,
    add_options,
    at_least,
    nbytes_of,
    plan_of,
    result_of,
    run,
    show,
    timed,
)

LINKS = ("shm", "tcp")
GLOO = "gloo"
SMALL_BYTES = 1000
CALLS = 50  # number of calls in a sample, for calls that take less than a millisecond
WHO = {"shm": "dpwa, same host", "tcp": "dpwa, streamed", GLOO: "Gloo"}
WHAT = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "barrier": "barrier",
    "small_all_reduce": "all_reduce of 1 KB",
}
TITLES = {f"{who}_{kind}": f"{WHO[who]}: {WHAT[kind]}" for kind in WHAT for who in WHO}
RATIOS: tuple[Ratio, ...] = tuple(
    ((f"{GLOO}_{kind}",), (f"{link}_{kind}",)) for kind in WHAT for link in LINKS
)


def main() -> None:
    run(_compare, take_part, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--size-mb", type=at_least(0.01), default=100.0, help="size of the value, in 10^6 bytes"
    )
    add_options(parser, tuple(TITLES), processes=2)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    plan = collectives_plan(options.size_mb, options.only, options.repetitions, options.processes)
    result = {"size_mb": options.size_mb, **result_of(plan, RATIOS)}
    show(result, f"{options.size_mb:g} MB of float32", TITLES, as_json=options.json)


def collectives_plan(
    size_mb: float,
    measures: tuple[str, ...],
    repetitions: int,
    processes: int | tuple[str, ...] = 2,
) -> Plan:
    told = {"measures": measures, "repetitions": repetitions}
    return plan_of(nbytes_of(size_mb), LINKS, processes, **told)


def take_part(_: object = None) -> None:
    import measures as m

    with Session() as session, ExitStack() as stack:
        plan = session.plan
        flat = m.FlatModel(plan.nbytes, 1, seed=session.index).flat
        part = flat[: len(flat) // session.count].clone()
        small = flat[: SMALL_BYTES // BYTES_PER_VALUE].clone()
        connections: dict[str, Any] = {}

        def met(link: str) -> Any:
            if link not in connections:
                config = plan.config(link, transport=link)
                made = m.DpwaConnection(session.name, config)
                connections[link] = stack.enter_context(made)
                made.barrier()
            return connections[link]

        def work(who: str, kind: str) -> Any:
            value = {"all_gather": part, "small_all_reduce": small}.get(kind, flat)
            if who == GLOO:
                match kind:
                    case "barrier":
                        return session.barrier
                    case "broadcast":
                        return m.gloo_broadcasts(value)
                    case "all_gather":
                        return m.gloo_gathers(value)
                return m.gloo_reduces_mean(value)
            match kind:
                case "barrier":
                    return met(who).barrier
                case "broadcast":
                    return m.broadcasts(met(who), value)
                case "all_gather":
                    return m.gathers(met(who), value)
            return m.reduces_mean(met(who), value)

        made = {}
        for name in plan.options["measures"]:
            who, _, kind = name.partition("_")
            calls = CALLS if kind in ("barrier", "small_all_reduce") else 1
            made[name] = timed(name, work(who, kind), calls=calls)
        session.repeat(made, plan.options["repetitions"])


if __name__ == "__main__":
    main()
