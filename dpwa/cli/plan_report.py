"""A plan as tables for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dpwa.cli import screen
from dpwa.types import JsonObject

if TYPE_CHECKING:
    from dpwa.data.layout import Layout
    from dpwa.plan.choices import Choice, Choices

HEADINGS = ("settings", "a round", "a fetch", "overlap", "waiting", "Mbit/s", "GB/h", "memory")
_NUMBERS = range(1, len(HEADINGS))


def show(choices: Choices, layout: Layout, fits: Sequence[Choice]) -> None:
    """Print what each setting costs, and what fits the budget."""
    console = screen.console()
    for line in _head(choices, layout):
        console.print(screen.plain(line))
    present = choices.present()
    rows = [_row("present", present), *(_row(_named(c), c) for c in choices.alone())]
    console.print()
    console.print(screen.table(HEADINGS, rows, console.width, right=_NUMBERS))
    console.print()
    for line in _tail(choices, present, fits):
        console.print(screen.plain(line))


def as_object(choices: Choices, layout: Layout, fits: Sequence[Choice]) -> JsonObject:
    """Return all of a plan as plain values."""
    link, budget = choices.setting.link, choices.budget
    return {
        "model": {"bytes": layout.nbytes, "tensors": len(layout.tensors)},
        "nodes": choices.setting.nodes,
        "step_s": choices.setting.step_s,
        "link": "shm" if link is None else link.model_dump(),
        "budget": vars(budget),
        "present": _object(choices.present()),
        "alone": [_object(choice) for choice in choices.alone()],
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


def _head(choices: Choices, layout: Layout) -> Iterator[str]:
    setting, link, config = choices.setting, choices.setting.link, choices.config
    where = (
        "on one host"
        if link is None
        else f"over {link.bandwidth_mbps:.4g} Mbit/s and {link.latency_ms:.3g} ms"
    )
    step = _seconds(setting.step_s)
    yield f"{setting.nodes} nodes, a model of {size(layout.nbytes or 0)}, steps of {step}, {where}"
    yield (
        f"present: algorithm {config.algorithm}, codec {config.codec}, fraction "
        f"{config.fraction:g}, fetch_probability {config.fetch_probability:g}, "
        f"transport {config.transport}, timeout_ms {config.timeout_ms}"
    )
    if any(node.codec for node in config.nodes) or config.links:
        yield "Codecs of single nodes and links are left out: this is about all the others."


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
        f"{cost.mbps:.3g}",
        f"{cost.gb_per_hour:.3g}",
        size(cost.memory_bytes),
    ]


def _tail(choices: Choices, present: Choice, fits: Sequence[Choice]) -> Iterator[str]:
    if choices.setting.link is None:
        yield (
            "Nodes of one host merge out of each other's memory: nothing is sent. What copying and "
            "merging take on this machine, `dpwa bench plane` measures."
        )
    for name, reason in choices.refused.items():
        yield f"{name}: {reason}"
    for problem in present.problems:
        yield f"The present settings: {problem}."
    if not choices.budget.is_given:
        return
    if not fits:
        least = choices.least()
        yield (
            f"Nothing fits. The least is {_named(least) or 'the present settings'}: "
            f"{'; '.join(least.problems)}."
        )
        return
    if not fits[0].changes:
        yield "The present settings fit."
        return
    for number, choice in enumerate(fits):
        first = "Best fit" if number == 0 else "Also fits"
        cost = choice.cost
        yield (
            f"{first}: {_named(choice)} ({size(cost.round_bytes)} a round, {cost.mbps:.3g} Mbit/s, "
            f"{cost.gb_per_hour:.3g} GB/h, {cost.wait_share:.0%} waiting)"
        )
        if number == 0:
            for reason in choice.reasons():
                yield f"  {reason}"


def size(nbytes: float) -> str:
    """Return a size in words, such as `496 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
