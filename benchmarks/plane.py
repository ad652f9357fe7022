"""Compare publishing, fetching and merging with plain copies, plain TCP and Gloo.

Each repetition runs every measure once, so ratios hold even if the speed of the machine changes.
Run nothing else at the same time. docs/benchmarks.md describes each measure.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from common import (
    BYTES_PER_VALUE,
    Measure,
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

from dpwa.errors import UserError

CODECS = ("fp16", "bf16", "int8")
LINKS: dict[str, dict[str, Any]] = {
    "publish": {"transport": "shm", "fetch_probability": 0.0},
    "publish_unguarded": {"transport": "shm", "guard": "off", "fetch_probability": 0.0},
    "shm": {"transport": "shm"},
    "tcp": {"transport": "tcp"},
    **{codec: {"transport": "tcp", "codec": codec} for codec in CODECS},
}
RAW_TCP, BARE_ZEROMQ = "raw_tcp", "bare_zeromq"  # these also need ports

# The figures of each measure, with their titles.
MEASURES: dict[str, dict[str, str]] = {
    "copy": {"copy": "copy_ of the model"},
    "lerp": {"lerp": "lerp_ of the model"},
    "copy_together": {"copy_together": "copy_ in all processes"},
    "lerp_together": {"lerp_together": "lerp_ in all processes"},
    "publish": {"publish": "publish with guard: finite"},
    "publish_unguarded": {"publish_unguarded": "publish with guard: off"},
    "shm_one_way": {
        "shm_one_way": "same host: publish, fetch, merge",
        "shm_fetch_merge": "same host: fetch, merge",
    },
    "shm_overlapped": {"shm_overlapped": "same host: fetch during training"},
    "shm_round": {"shm_round": "same host: round of all processes"},
    "tcp_one_way": {
        "tcp_one_way": "stream: publish, fetch, merge",
        "tcp_fetch_merge": "stream: fetch, merge",
    },
    "tcp_round": {"tcp_round": "stream: round of all processes"},
    **{
        f"{codec}_one_way": {
            f"{codec}_one_way": f"{codec}: publish, fetch, merge",
            f"{codec}_fetch_merge": f"{codec}: fetch, merge",
        }
        for codec in CODECS
    },
    "raw_tcp_one_way": {"raw_tcp_one_way": "raw TCP: fetch, then lerp_"},
    "raw_tcp_round": {"raw_tcp_round": "raw TCP: round of all processes"},
    "bare_zeromq_round": {"bare_zeromq_round": "bare ZeroMQ: round of all processes"},
    "gloo_all_reduce": {"gloo_all_reduce": "Gloo: all_reduce, then divide"},
    "gloo_pair": {"gloo_pair": "Gloo: pair exchange, then lerp_"},
}
TITLES = {name: title for figures in MEASURES.values() for name, title in figures.items()}
RATIOS: tuple[Ratio, ...] = (
    (("shm_one_way",), ("copy", "lerp")),
    (("shm_overlapped",), ("copy", "lerp")),
    (("shm_overlapped",), ("copy_together", "lerp_together")),
    (("shm_round",), ("copy", "lerp")),
    (("shm_round",), ("copy_together", "lerp_together")),
    (("gloo_all_reduce",), ("shm_round",)),
    (("gloo_pair",), ("shm_round",)),
    (("raw_tcp_one_way",), ("tcp_fetch_merge",)),
    (("raw_tcp_round",), ("tcp_round",)),
    (("bare_zeromq_round",), ("tcp_round",)),
    (("gloo_all_reduce",), ("tcp_round",)),
    (("gloo_pair",), ("tcp_round",)),
    (("publish",), ("publish_unguarded",)),
    *(((f"{codec}_fetch_merge",), ("tcp_fetch_merge",)) for codec in CODECS),
)


def main() -> None:
    run(_compare, take_part, _options())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--size-mb", type=at_least(0.01), default=100.0, help="size of the model, in 10^6 bytes"
    )
    parser.add_argument(
        "--tensors", type=at_least(1), default=1, help="number of tensors of the model"
    )
    add_options(parser, tuple(MEASURES), processes=2)
    return parser.parse_args()


def _compare(options: argparse.Namespace) -> None:
    plan = plane_plan(
        options.size_mb, options.only, options.repetitions, options.processes, options.tensors
    )
    result = {
        "size_mb": options.size_mb,
        "tensors": options.tensors,
        **result_of(plan, RATIOS),
    }
    tensors = "1 tensor" if options.tensors == 1 else f"{options.tensors} tensors"
    show(result, f"{options.size_mb:g} MB of float32 in {tensors}", TITLES, as_json=options.json)


def plane_plan(
    size_mb: float,
    measures: tuple[str, ...],
    repetitions: int,
    processes: int | tuple[str, ...] = 2,
    tensors: int = 1,
) -> Plan:
    """Return the plan for the processes, or raise `UserError` for more tensors than values."""
    nbytes = nbytes_of(size_mb)
    if nbytes < tensors * BYTES_PER_VALUE:
        raise UserError(f"{tensors} tensors do not fit into {nbytes // BYTES_PER_VALUE} values")
    told = {"measures": measures, "repetitions": repetitions, "tensors": tensors}
    return plan_of(nbytes, [*LINKS, RAW_TCP, BARE_ZEROMQ], processes, **told)


def take_part(_: object = None) -> None:
    with Session() as session, ExitStack() as stack:
        options = session.plan.options
        made = _Measures(session, stack)
        session.repeat(
            {name: made.of(name) for name in options["measures"]}, options["repetitions"]
        )


class _Measures:
    """A factory for the measures of one process, which share a model and nodes."""

    def __init__(self, session: Session, stack: ExitStack) -> None:
        import measures as m
        import torch

        self._m, self._session, self._stack = m, session, stack
        self._is_first = session.index == 0
        plan = session.plan
        self._model = m.FlatModel(plan.nbytes, plan.options["tensors"], seed=session.index)
        self._scratch = torch.zeros_like(self._model.flat)
        self._adapters: dict[str, Any] = {}
        self._raw_tcp: Any = None

    def of(self, name: str) -> Measure:
        """Return a measure. All processes must make the same measures in the same order."""
        m, flat, scratch, alone = self._m, self._model.flat, self._scratch, self._is_first
        match name:
            case "copy" | "copy_together":
                takes_part = alone or name == "copy_together"
                return timed(name, lambda: scratch.copy_(flat), takes_part=takes_part)
            case "lerp" | "lerp_together":
                takes_part = alone or name == "lerp_together"
                work = lambda: scratch.lerp_(flat, m.MERGE_FACTOR)  # noqa: E731
                return timed(name, work, takes_part=takes_part)
            case "publish" | "publish_unguarded":
                return timed(name, self._adapter(name).update_send, takes_part=alone)
            case "gloo_all_reduce":
                return timed(name, m.gloo_reduces_mean(flat))
            case "gloo_pair":
                return m.gloo_pair(flat, scratch, self._session)
            case "raw_tcp_one_way" | "raw_tcp_round":
                takes_part = alone or name == "raw_tcp_round"
                return timed(name, self._raw_tcp_fetch(), takes_part=takes_part)
            case "bare_zeromq_round":
                return timed(name, self._bare_zeromq())
            case "shm_overlapped":
                pause_s = m.pause_s(self._session.plan.nbytes)
                return m.gossip_round(name, self._met("shm"), pause_s)
        link, _, kind = name.partition("_")
        if kind == "round":
            return m.gossip_round(name, self._met(link))
        return m.one_way(link, self._met(link), self._model, is_first=alone)

    def _adapter(self, link: str) -> Any:
        if link not in self._adapters:
            config = self._session.plan.config(link, **LINKS[link])
            adapter = self._m.DpwaPyTorchAdapter(self._model.module, self._session.name, config)
            self._adapters[link] = self._stack.enter_context(adapter)
        return self._adapters[link]

    def _met(self, link: str) -> Any:
        """Return an adapter whose peers all listen and have published."""
        is_new = link not in self._adapters
        adapter = self._adapter(link)
        if is_new:
            self._m.meet(adapter)
            self._session.barrier()
        return adapter

    def _raw_tcp_fetch(self) -> Any:
        if self._raw_tcp is None:
            addresses = self._session.plan.addresses(RAW_TCP)
            raw = self._m.RawTcp(self._model.flat, self._scratch, self._session.index, addresses)
            self._raw_tcp = self._stack.enter_context(raw)
            self._session.barrier()
            raw.connect()
        return self._raw_tcp.fetch_and_merge

    def _bare_zeromq(self) -> Any:
        addresses = self._session.plan.addresses(BARE_ZEROMQ)
        bare = self._m.BareZeroMQ(self._model.flat, self._session.index, addresses)
        self._stack.enter_context(bare)
        self._session.barrier()
        bare.connect()
        bare.publish()
        self._session.barrier()
        return bare.round


if __name__ == "__main__":
    main()
