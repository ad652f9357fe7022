"""`dpwa plan`: what a round will cost over a link, and which settings fit a budget."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpwa.cli import exit_codes, screen
from dpwa.cli.asking import JsonOption
from dpwa.errors import UserError
from dpwa.report.wording import number, size

if TYPE_CHECKING:
    from dpwa.config import Config
    from dpwa.data.layout import Layout
    from dpwa.plan.choices import Choice, Choices
    from dpwa.plan.costs import LinkFigures
    from dpwa.types import JsonObject

ONE_HOST = "shm"
FEWEST_NODES = 2
USUAL_WAIT = 0.05  # with a budget of bytes: to wait for them would be no way to save
MOST_NODES = 100_000
USUAL_NODES = 2
PORT = 45000  # of a node that is never started
STDIN = "-"
MOST_LINK_CHARS = 64 * 1024
HEADINGS = ("settings", "a round", "a fetch", "overlap", "waiting", "Mbit/s", "GB/h", "memory")
_NUMBERS = range(1, len(HEADINGS))
_SHARE = re.compile(r"(\d+(?:\.\d+)?)(%?)")


def plan(
    step_ms: Annotated[
        float, typer.Option(metavar="MS", help="Milliseconds of one training step.")
    ],
    parameters: Annotated[
        str | None,
        typer.Option(metavar="N", help="Size of the model: a number such as 300000, 124M or 7B."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Or the sizes in a file of safetensors or torch."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="With --parameters: their dtype.")
    ] = "float32",
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="The present settings; else defaults."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--nodes",
            metavar="N",
            min=FEWEST_NODES,
            max=MOST_NODES,
            help="How many nodes, if not those of the file.",
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="shm|FILE|-",
            help="shm: all nodes on one host. Else what `dpwa bench link --json` has printed.",
        ),
    ] = None,
    latency_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Round trip of the link.")
    ] = None,
    bandwidth_mbps: Annotated[
        float | None,
        typer.Option(metavar="MBIT", help="Payload of the link, in 10^6 bits per second."),
    ] = None,
    budget_mbps: Annotated[
        float | None,
        typer.Option(metavar="MBIT", help="What a node may receive, and send, in a second."),
    ] = None,
    budget_gb_per_hour: Annotated[
        float | None, typer.Option(metavar="GB", help="The same in an hour, in 10^9 bytes.")
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Share of the time for waiting; 5% beside another."),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put the best that fits into the file of -c.")
    ] = False,
    shows_table: Annotated[
        bool, typer.Option("--table", help="Also show what each setting costs if changed alone.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Tell what a round of gossip costs over a link, and which settings fit a budget.

    With a budget it looks for the settings that keep to it and give up least. Of the present
    settings, and with --table of each of `codec`, `fraction` and `fetch_probability` changed
    alone, it tells the payload of a round, the seconds of a fetch, how much of that passes during
    the training step and how much is waiting, and the memory of a node: see docs/links.md.

    Exits with 1 when nothing fits the budget.

    Examples:
        dpwa plan --parameters 124M --step-ms 400 --latency-ms 20 --bandwidth-mbps 200
        dpwa bench link 10.0.0.2 --json | dpwa plan --checkpoint net.pt --step-ms 400 --link -
        dpwa plan -c nodes.yaml --parameters 7M --step-ms 90 --link link.json --max-wait 5% --write
    """
    require_torch("dpwa plan")
    from dpwa.plan.choices import Budget, Choices
    from dpwa.plan.costs import Setting
    from dpwa.plan.payloads import Payloads

    for name, value in (
        ("--step-ms", step_ms),
        ("--budget-mbps", budget_mbps),
        ("--budget-gb-per-hour", budget_gb_per_hour),
    ):
        _require_positive(name, value)
    budget = Budget(budget_mbps, budget_gb_per_hour, _share_of(max_wait))
    if budget.is_given and budget.wait_share is None:
        budget = replace(budget, wait_share=USUAL_WAIT)
    if write and (config is None or not budget.is_given):
        raise UserError("--write: expected a file (-c FILE), and a budget to choose by [DPWA-E260]")
    figures = _link_of(link, latency_ms, bandwidth_mbps)
    base = _config_of(config)
    _require_transport(base, is_one_host=figures is None)
    count = nodes or len(base.nodes)
    if count < FEWEST_NODES:
        raise UserError(f"{config}: expected the number of nodes beside it (-n N) [DPWA-E271]")
    layout = _layout_of(parameters, checkpoint, dtype)
    payloads = Payloads(layout)
    setting = Setting(count, step_ms / 1000, figures)
    choices = Choices(base, payloads, setting, budget)
    fits = choices.fitting() if budget.is_given else []
    if as_json:
        typer.echo(json.dumps(_as_object(choices, layout, fits)))
    else:
        _show(choices, layout, fits, with_table=shows_table)
    if budget.is_given and not fits:
        raise typer.Exit(exit_codes.FAILURE)
    if write and config is not None:
        _write(config, fits[0])


def _write(path: Path, best: Choice) -> None:
    from dpwa.plan.settings_file import write_settings

    if not best.changes:
        typer.echo(f"{path}: left as it is, as it fits", err=True)
        return
    write_settings(path, best.changes)
    told = ", ".join(f"{name}: {value}" for name, value in best.changes.items())
    typer.echo(f"{path}: written, {told}", err=True)


def require_torch(command: str) -> None:
    """Say in one line that torch is missing, where its import would end in a traceback."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise UserError(
            f"{command} needs PyTorch, which cannot be imported ({error}); "
            "install it with: pip install -c constraints.txt torch [DPWA-E278]"
        ) from None


def _config_of(path: Path | None) -> Config:
    from dpwa.config import load_config
    from dpwa.config.schema import local_nodes

    if path is not None:
        return load_config(path)
    nodes = local_nodes(range(PORT, PORT + USUAL_NODES))
    return load_config({"nodes": [node.to_mapping() for node in nodes]}, environ={})


def _layout_of(parameters: str | None, checkpoint: Path | None, dtype: str) -> Layout:
    if (parameters is None) == (checkpoint is None):
        raise UserError(
            "expected the size of the model: --parameters N or --checkpoint FILE [DPWA-E261]"
        )
    from dpwa.plan.model_sizes import (
        DTYPES,
        layout_of_checkpoint,
        layout_of_count,
        parameter_count,
    )

    if checkpoint is not None:
        return layout_of_checkpoint(checkpoint)
    if dtype not in DTYPES:
        raise UserError(
            f"--dtype: expected one of {', '.join(DTYPES)} (got {dtype:.40}) [DPWA-E256]"
        )
    return layout_of_count(parameter_count(parameters or ""), dtype)


def _link_of(
    link: str | None, latency_ms: float | None, bandwidth_mbps: float | None
) -> LinkFigures | None:
    """Return the figures of the link; `None` if all nodes are on one host."""
    from dpwa.plan.costs import LinkFigures

    typed = (latency_ms, bandwidth_mbps)
    if link is not None:
        if typed != (None, None):
            raise UserError(
                "expected either --link, or --latency-ms and --bandwidth-mbps [DPWA-E265]"
            )
        return None if link == ONE_HOST else read_link(link)
    if latency_ms is None or bandwidth_mbps is None:
        raise UserError(
            "expected the link: --latency-ms and --bandwidth-mbps, --link FILE with what "
            "`dpwa bench link HOST --json` has measured, or --link shm for nodes of one host"
            " [DPWA-E262]"
        )
    _require_positive("--bandwidth-mbps", bandwidth_mbps)
    if not 0.0 <= latency_ms < float("inf"):
        raise UserError(
            f"--latency-ms: expected a number of at least 0 (got {latency_ms:g}) [DPWA-E258]"
        )
    return LinkFigures(latency_ms=latency_ms, bandwidth_mbps=bandwidth_mbps)


def read_link(source: str) -> LinkFigures:
    """Read what `dpwa bench link HOST --json` has printed, from a file or from standard input."""
    from pydantic import ValidationError

    from dpwa.plan.costs import LinkFigures

    where = "standard input" if source == STDIN else source
    try:
        if source == STDIN:
            text = sys.stdin.read(MOST_LINK_CHARS)
        else:
            with Path(source).open(encoding="utf-8") as file:
                text = file.read(MOST_LINK_CHARS)
        return LinkFigures.model_validate_json(text)
    except OSError as error:
        raise UserError(f"--link {where}: cannot be read ({error.strerror}) [DPWA-E266]") from None
    except (ValidationError, UnicodeDecodeError):
        raise UserError(
            f"--link {where}: expected the output of `dpwa bench link HOST --json`, "
            "with latency_ms and bandwidth_mbps [DPWA-E267]"
        ) from None


def _require_transport(config: Config, *, is_one_host: bool) -> None:
    """Refuse a transport that is not for this link."""
    if is_one_host and config.transport == "tcp":
        raise UserError(
            "transport: tcp streams on one host, too: expected what `dpwa bench link localhost "
            "--json` has measured, in place of --link shm [DPWA-E263]"
        )
    if not is_one_host and config.transport == ONE_HOST:
        raise UserError("transport: shm is for nodes of one host: expected --link shm [DPWA-E264]")


def _share_of(text: str | None) -> float | None:
    if text is None:
        return None
    match = _SHARE.fullmatch(text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0.0 <= share <= 1.0:
        raise UserError(
            f"--max-wait: expected a share such as 5% or 0.05 (got {text:.40}) [DPWA-E259]"
        )
    return share


def _require_positive(name: str, value: float | None) -> None:
    if value is not None and not 0.0 < value < float("inf"):
        raise UserError(f"{name}: expected a number above 0 (got {value:g}) [DPWA-E257]")


def _show(choices: Choices, layout: Layout, fits: Sequence[Choice], *, with_table: bool) -> None:
    console = screen.console()
    present, alone = choices.present(), choices.alone()  # which finds out what is refused
    for line in _answer(choices, present, fits):
        console.print(screen.plain(line))
    console.print()
    for line in _premises(choices, layout):
        console.print(screen.plain(line))
    if with_table:
        rows = [_row("present", present), *(_row(_named(c), c) for c in alone)]
        console.print()
        console.print(screen.table(HEADINGS, rows, console.width, right=_NUMBERS))
    else:
        console.print(screen.plain("What each setting costs if changed alone: --table"))


def _as_object(choices: Choices, layout: Layout, fits: Sequence[Choice]) -> JsonObject:
    link, budget = choices.setting.link, choices.budget
    return {
        "model": {"bytes": layout.nbytes, "tensors": len(layout.tensors)},
        "nodes": choices.setting.nodes,
        "step_s": choices.setting.step_s,
        "link": "shm" if link is None else link.model_dump(),
        "budget": vars(budget),
        "present": _object(choices.present()),
        "alone": [_object(choice) for choice in choices.alone()],
        "together": None if (other := choices.together()) is None else _object(other),
        "fits": [_object(choice) for choice in fits],
        "refused": choices.refused,
    }


def _object(choice: Choice) -> JsonObject:
    cost, config = choice.cost, choice.config
    return {
        "changes": dict(choice.changes),
        "settings": {
            "codec": config.codec,
            "fraction": config.fraction,
            "fetch_probability": config.fetch_probability,
            "transport": config.transport,
            "timeout_ms": config.timeout_ms,
        },
        **vars(cost),
        "round_bytes": cost.round_bytes,
        "wait_share": cost.wait_share,
        "mbps": cost.mbps,
        "gb_per_hour": cost.gb_per_hour,
        "mixed": choice.mixed,
        "problems": list(choice.problems),
        "reasons": choice.reasons(),
    }


def _premises(choices: Choices, layout: Layout) -> Iterator[str]:
    setting, link, config = choices.setting, choices.setting.link, choices.config
    where = (
        "on one host"
        if link is None
        else f"over {number(link.bandwidth_mbps)} Mbit/s and {link.latency_ms:.3g} ms"
    )
    model, step = size(layout.nbytes or 0), _seconds(setting.step_s)
    yield f"{setting.nodes} nodes, a model of {model}, steps of {step}, {where}"
    yield (
        f"present: algorithm {config.algorithm}, codec {config.codec}, fraction "
        f"{config.fraction:g}, fetch_probability {config.fetch_probability:g}, "
        f"transport {config.transport}, timeout_ms {config.timeout_ms}"
    )
    if any(node.codec for node in config.nodes) or config.links:
        yield "Codecs of single nodes and links are left out: this is about all the others."
    for name, reason in choices.refused.items():
        yield f"{name}: {reason}"


def _named(choice: Choice) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in choice.changes.items())


def _row(name: str, choice: Choice) -> list[str]:
    cost = choice.cost
    return [
        name,
        size(cost.round_bytes),
        _seconds(cost.fetch_s),
        _seconds(cost.overlap_s),
        f"{cost.wait_share:.0%}",
        number(cost.mbps, 3),
        f"{cost.gb_per_hour:.3g}",
        size(cost.memory_bytes),
    ]


def _answer(choices: Choices, present: Choice, fits: Sequence[Choice]) -> Iterator[str]:
    if fits and fits[0].changes:
        for number, choice in enumerate(fits):
            first = "Also fits" if number else "Best fit"
            yield f"{first}: {_named(choice)} ({_in_short(choice)})"
            yield from () if number else (f"  {reason}" for reason in choice.reasons())
    elif fits:
        yield "The present settings fit."
    elif choices.budget.is_given:
        least = choices.least()
        yield (
            f"Nothing fits. The least is {_named(least) or 'the present settings'}: "
            f"{'; '.join(least.problems)}."
        )
    cost = present.cost
    yield (
        f"The present settings: {_in_short(present)}; a fetch takes {_seconds(cost.fetch_s)}, a "
        f"node holds {size(cost.memory_bytes)} beside its model."
    )
    for problem in present.problems:
        yield f"The present settings: {problem}."
    if choices.setting.link is None:
        yield (
            "Nodes of one host merge out of each other's memory: nothing is sent. What copying and "
            "merging take on a machine, see docs/benchmarks.md."
        )
    elif not choices.budget.is_given:
        yield "With a budget, such as --max-wait 5%, settings that keep to it are looked for."
    if (together := choices.together()) is not None:
        yield (
            f"With algorithm: together, {_in_short(together)}: where all nodes are equally fast "
            "it learns as much in fewer steps."
        )


def _in_short(choice: Choice) -> str:
    cost = choice.cost
    return (
        f"{size(cost.round_bytes)} a round, {number(cost.mbps, 3)} Mbit/s, "
        f"{cost.gb_per_hour:.3g} GB/h, {cost.wait_share:.0%} waiting"
    )


def _seconds(seconds: float) -> str:
    return f"{number(seconds, 3)} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
