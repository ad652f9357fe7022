"""`dpwa plan` computes the cost of a round over a link, with your settings and alternatives."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import screen
from dpwa.cli.query_options import JsonOption
from dpwa.errors import UserError
from dpwa.report.wording import number, share, size

if TYPE_CHECKING:
    from dpwa.config import Config
    from dpwa.data.layout import Layout
    from dpwa.plan.costs import LinkFigures, RoundCost, Setting
    from dpwa.types import JsonObject

FEWEST_NODES = 2
MAX_NODES = 100_000
USUAL_NODES = 2
PORT = 45000  # of nodes in a configuration that is never started
STDIN = "-"
MAX_LINK_CHARS = 64 * 1024
SHARES = (0.5, 0.25, 0.1)  # the alternatives for `fraction` and `fetch_probability`
HEADINGS = ("settings", "a round", "a fetch", "waiting", "Mbit/s", "GB/h")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KMBG]?)", re.IGNORECASE)

Change = Mapping[str, str | int | float]


def plan(
    parameters: Annotated[
        str,
        typer.Option(metavar="N", help="Number of parameters, such as 300000, 124M or 7B."),
    ],
    step_ms: Annotated[
        float, typer.Option(metavar="MS", help="Duration of a training step in milliseconds.")
    ],
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="dtype of the parameters.")
    ] = "float32",
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            help="Configuration with your settings. Without FILE, all settings have defaults.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--nodes",
            metavar="N",
            min=FEWEST_NODES,
            max=MAX_NODES,
            help="Number of nodes. The default is the number in the file, or 2 without a file.",
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-", help="File with the output of `dpwa bench link HOST --json`."
        ),
    ] = None,
    latency_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Round-trip time of the link in milliseconds, if --link is not given.",
        ),
    ] = None,
    bandwidth_mbps: Annotated[
        float | None,
        typer.Option(
            metavar="MBIT",
            help="Payload that the link carries, in Mbit/s, if --link is not given.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the cost of a round of gossip over a link, for your settings and for alternatives.

    The first row is for your settings. In each other row, one setting differs: `codec`, `fraction`,
    `fetch_probability` or `algorithm: together`. The columns are the payload that a node receives
    in a round, the duration of a fetch, and the share of the time that a node waits. The last two
    columns are the payload that a node receives per second and per hour. See docs/links.md.

    Examples:
        dpwa plan --parameters 124M --step-ms 400 --latency-ms 20 --bandwidth-mbps 200
        dpwa bench link 10.0.0.2 --json | dpwa plan --parameters 124M --step-ms 400 --link -
        dpwa plan -c nodes.yaml --parameters 7M --step-ms 90 --link link.json
    """
    from dpwa.plan.costs import Setting

    _require_positive("--step-ms", step_ms)
    figures = _link_of(link, latency_ms, bandwidth_mbps)
    base = _config_of(config)
    count = nodes or len(base.nodes)
    if count < FEWEST_NODES:
        raise UserError(f"{config}: expected at least 2 nodes. Give the number with -n [DPWA-E271]")
    setting = Setting(_layout_of(parameters, dtype), count, step_ms / 1000, figures)
    rows = list(_rows(base, setting))
    if as_json:
        typer.echo(json.dumps(_as_object(setting, rows)))
    else:
        _show(base, setting, rows)


def _layout_of(parameters: str, dtype: str) -> Layout:
    from dpwa.data.codecs.sizes import WIDTHS
    from dpwa.data.layout import Layout, TensorSpec
    from dpwa.wire import limits

    match = _COUNT.fullmatch(parameters.strip().replace("_", "").replace(",", ""))
    count = round(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if count < 1:
        raise UserError(
            f"--parameters: expected a number such as 300000, 124M or 7B (got {parameters:.40})"
            " [DPWA-E255]"
        )
    if dtype not in WIDTHS:
        raise UserError(
            f"--dtype: expected one of {', '.join(WIDTHS)} (got {dtype:.40}) [DPWA-E256]"
        )
    most_bytes = limits.CHUNK_BYTES * limits.MAX_PIECES
    if count * WIDTHS[dtype] > most_bytes:
        raise UserError(
            f"the model has {count * WIDTHS[dtype] / 1e9:.0f} GB, but a node can stream at most "
            f"{most_bytes / 1e9:.0f} GB [DPWA-E270]"
        )
    return Layout((TensorSpec("parameters", dtype, (count,), WIDTHS[dtype]),))


def _link_of(
    link: str | None, latency_ms: float | None, bandwidth_mbps: float | None
) -> LinkFigures:
    from dpwa.plan.costs import LinkFigures

    if link is not None:
        if latency_ms is not None or bandwidth_mbps is not None:
            raise UserError(
                "expected either --link, or --latency-ms and --bandwidth-mbps, not both [DPWA-E265]"
            )
        return read_link(link)
    if latency_ms is None or bandwidth_mbps is None:
        raise UserError(
            "expected a latency and a bandwidth. Give --latency-ms and --bandwidth-mbps, or --link "
            "FILE with the output of `dpwa bench link HOST --json` [DPWA-E262]"
        )
    _require_positive("--bandwidth-mbps", bandwidth_mbps)
    if not 0.0 <= latency_ms < math.inf:
        raise UserError(
            f"--latency-ms: expected a number of at least 0 (got {latency_ms:g}) [DPWA-E258]"
        )
    return LinkFigures(latency_ms=latency_ms, bandwidth_mbps=bandwidth_mbps)


def read_link(source: str) -> LinkFigures:
    """Read the output of `dpwa bench link HOST --json`, from a file or from standard input."""
    from pydantic import ValidationError

    from dpwa.plan.costs import LinkFigures

    where = "standard input" if source == STDIN else source
    try:
        if source == STDIN:
            text = sys.stdin.read(MAX_LINK_CHARS)
        else:
            with Path(source).open(encoding="utf-8") as file:
                text = file.read(MAX_LINK_CHARS)
        return LinkFigures.model_validate_json(text)
    except OSError as error:
        raise UserError(f"--link {where}: cannot be read ({error.strerror}) [DPWA-E266]") from None
    except (ValidationError, UnicodeDecodeError):
        raise UserError(
            f"--link {where}: expected the output of `dpwa bench link HOST --json`, "
            "with latency_ms and bandwidth_mbps [DPWA-E267]"
        ) from None


def _require_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise UserError(f"{name}: expected a number above 0 (got {value:g}) [DPWA-E257]")


def _config_of(path: Path | None) -> Config:
    from dpwa.config import load_config
    from dpwa.config.schema import local_nodes

    if path is None:
        nodes = local_nodes(range(PORT, PORT + USUAL_NODES))
        return load_config({"nodes": [node.to_mapping() for node in nodes]}, environ={})
    found = load_config(path)
    if found.transport == "shm":
        raise UserError(
            "`transport: shm` is for nodes on one host, which use no link. Expected a "
            "configuration with a different transport [DPWA-E264]"
        )
    return found


Row = tuple[Change, "RoundCost"]  # the changed settings, and the cost of a round


def _rows(base: Config, setting: Setting) -> Iterator[Row]:
    """Yield the cost with the present settings, and then the cost after each single change."""
    from dpwa.plan.costs import cost_of

    present = cost_of(base, setting)
    yield {}, present
    for change in _changes(base):
        config = base.model_copy(update=dict(change))
        if _is_refused(config):
            continue
        cost = cost_of(config, setting)
        if cost == present:
            continue  # the change has no effect
        if cost.is_late:  # no fetch would end before the timeout
            timeout = {"timeout_ms": cost.timeout_ms}
            change = {**change, **timeout}
            cost = cost_of(config.model_copy(update=timeout), setting)
        yield change, cost


def _changes(now: Config) -> Iterator[Change]:
    yield from ({"codec": name} for name in ("none", "bf16", "int8") if name != now.codec)
    yield from ({"fraction": part} for part in SHARES if part < now.fraction)
    yield from ({"fetch_probability": part} for part in SHARES if part < now.fetch_probability)
    if now.algorithm == "gossip":
        yield {"algorithm": "together"}


def _is_refused(config: Config) -> bool:
    from dpwa.config.clashes import clashes

    return any(clashes(vars(config)))


def _as_object(setting: Setting, rows: list[Row]) -> JsonObject:
    (_, present), *others = rows
    return {
        "model": {"bytes": setting.layout.nbytes},
        "nodes": setting.nodes,
        "step_s": setting.step_s,
        "link": setting.link.model_dump(),
        "present": _object(present),
        "alone": [{"changes": dict(change), **_object(cost)} for change, cost in others],
    }


def _object(cost: RoundCost) -> JsonObject:
    figures = ("round_bytes", "wait_share", "mbps", "gb_per_hour", "timeout_ms")
    return {**asdict(cost), **{name: getattr(cost, name) for name in figures}}


def _show(base: Config, setting: Setting, rows: list[Row]) -> None:
    console, link = screen.console(), setting.link
    console.print(
        screen.plain(
            f"{setting.nodes} nodes, a model of {size(setting.layout.nbytes or 0)}, steps of "
            f"{_seconds(setting.step_s)}, over {number(link.bandwidth_mbps)} Mbit/s and "
            f"{link.latency_ms:.3g} ms. Present: algorithm {base.algorithm}, codec {base.codec}, "
            f"fraction {base.fraction:g}, fetch_probability {base.fetch_probability:g}, "
            f"timeout_ms {base.timeout_ms}"
        )
    )
    if any(node.codec for node in base.nodes) or base.links:
        console.print("The table ignores the codecs of single nodes and links.")
    if (present := rows[0][1]).is_late:
        console.print(
            screen.plain(
                f"With your settings, all fetches time out. Set timeout_ms to {present.timeout_ms}."
            )
        )
    cells = [_cells(change, cost) for change, cost in rows]
    console.print()
    console.print(screen.table(HEADINGS, cells, console.width, right=range(1, len(HEADINGS))))


def _cells(change: Change, cost: RoundCost) -> list[str]:
    named = ", ".join(f"{name} {value}" for name, value in change.items())
    return [
        named or "present",
        size(cost.round_bytes),
        _seconds(cost.fetch_s),
        share(cost.wait_share),
        number(cost.mbps, 3),
        f"{cost.gb_per_hour:.3g}",
    ]


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
