"""The page of a report: a summary in words, what stands out, pictures, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dpwa import __version__
from dpwa.errors import UserError
from dpwa.files import written
from dpwa.observe.events import KINDS
from dpwa.observe.run_data import Run
from dpwa.observe.verdicts import NodeVerdict
from dpwa.report.charts import (
    gossip_charts,
    looks_for,
    moments,
    shares_of,
    traffic_of,
    training_charts,
)
from dpwa.report.facts import Facts, NodeFacts, mean
from dpwa.report.style import Drawn, drawn, style_sheet
from dpwa.report.wording import (
    UNKNOWN,
    clock,
    duration,
    moment,
    names,
    number,
    plural,
    share,
    size,
)
from dpwa.wire.messages import printable

MOST_EVENT_ROWS = 300
_IN_SHORT = {
    "lost": ("gone",),
    "much slower than the others": ("slow",),
    "stalled at the end": ("stalled",),
    "of no use any more, with a loss or parameters that are not finite": ("diverged",),
}
_ENDS = {"ended": "finished", "lost": "lost", "running": "still at work"}


def report_page(facts: Facts, training: Sequence[Drawn], gossip: Sequence[Drawn]) -> str:
    run = facts.run
    events, shown = moments(run), moments(run, MOST_EVENT_ROWS)
    rarest = "" if len(shown) == len(events) else f", the rarest {len(shown)} of them"
    kinds = dict.fromkeys(event.kind for event, _ in shown)
    return rendered(
        "report.html",
        title=f"Report of {title_of(run)}",
        about=_told(run),
        sentences=sentences(facts),
        tiles=[tile for tile in _tiles(facts) if tile[1] != UNKNOWN],
        findings=findings(facts),
        training=training,
        gossip=gossip,
        nodes=[_node_row(name, node) for name, node in facts.nodes.items()],
        events_summary=f"{plural(len(events), 'event')}{rarest}",
        events=[
            (clock(e.time), e.about, e.kind, names(by), printable(e.text) or UNKNOWN)
            for e, by in shown
        ],
        meanings=[(kind, KINDS[kind]) for kind in kinds if kind in KINDS],
        notes=_notes(run),
    )


def rendered(template: str, **shown: object) -> str:
    """Return a page; whatever is put into it is escaped, but for pictures."""
    pages = Environment(
        loader=PackageLoader("dpwa.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template(template).render(colours=style_sheet(), **shown)


def title_of(run: Run) -> str:
    name = printable(run.folder.resolve().name)
    return f"run {name}" if name.isdigit() else name or "the run"


def sentences(facts: Facts) -> Iterator[str]:
    run, count = facts.run, len(facts.nodes)
    until = "so far" if facts.is_running else f"to {clock(run.last)}"
    speeds = [s for node in facts.nodes.values() if (s := node.rates.steps_per_s)]
    pace = f" A node took {number(median(speeds), 3)} steps/s (median)." if speeds else ""
    if not facts.steps:
        yield (
            f"{plural(count, 'node')} ran for {duration(run.seconds)}, from {moment(run.began)} "
            f"{until}. No node took a training step."
        )
        yield from _in_short(facts)
        return
    yield (
        f"{plural(count, 'node')} trained for {duration(run.seconds)}, from {moment(run.began)} "
        f"{until}, and took {plural(round(facts.steps), 'step')} in all.{pace}"
    )
    rounds = [found for node in facts.nodes.values() if (found := node.log.total("rounds"))]
    if rounds:
        yield f"A node averaged its gradients with others in {median(rounds):,.0f} rounds (median)."
    best, losses = facts.best, facts.losses
    if best is not None and best.log.best is not None and losses:
        low = best.log.best
        last = (
            f"the last losses lie between {number(min(losses))} and {number(max(losses))}, "
            f"their mean is {number(mean(losses))}"
            if len(losses) > 1
            else f"the last one is {number(losses[0])}"
        )
        yield (
            f"The lowest loss was {number(low.loss)} ({best.name} at {clock(low.time)}, "
            f"step {low.steps:,.0f}); {last}."
        )
    else:
        yield "No loss is known."
    yield from _in_short(facts)


def _in_short(facts: Facts) -> Iterator[str]:
    """Yield who was lost, and who stands out otherwise, without the reasons."""
    for what, kinds in _IN_SHORT.items():
        found = [name for name, node in facts.nodes.items() if node.is_(*kinds)]
        if found:
            yield f"{names(found)} {'was' if len(found) == 1 else 'were'} {what}."


def findings(facts: Facts) -> list[tuple[str, NodeVerdict]]:
    """Return what stands out, the worst first: the name of a node, or nothing, and what is."""
    found = [("", verdict) for verdict in facts.general]
    found += [(name, v) for name, node in facts.nodes.items() for v in node.verdicts]
    return sorted(found, key=lambda finding: finding[1].severity != "bad")


def _told(run: Run) -> str:
    """Say what the nodes ran, and where."""
    parts = []
    has_trained = any(node.total("steps") for node in run.nodes.values())
    averages = any(np.isfinite(node.figure("rounds")).any() for node in run.nodes.values())
    draws = ("algorithm",) if averages else ("algorithm", "topology")
    for key in draws if has_trained else ():
        values = {str(node.told[key])[:60] for node in run.nodes.values() if node.told.get(key)}
        if values:
            parts.append(f"{key} {printable(', '.join(sorted(values)))}")
    hosts = {p.host for node in run.nodes.values() for p in node.processes if p.host}
    if hosts:
        parts.append(f"on {plural(len(hosts), 'host')}: {names(sorted(hosts))}")
    return "; ".join(parts)


def _tiles(facts: Facts) -> Iterator[tuple[str, str, str]]:
    run, best = facts.run, facts.best
    bad = sum(v.severity == "bad" for _, v in findings(facts))
    yield "nodes", str(len(facts.nodes)), plural(bad, "problem")
    yield "duration", duration(run.seconds), "still running" if facts.is_running else ""
    yield "steps", f"{facts.steps:,.0f}", "of all nodes"
    low = best.log.best if best is not None else None
    yield "lowest loss", number(low.loss if low else None, 3), best.name if best and low else ""
    yield "last loss", number(mean(facts.losses), 3), "mean of the nodes"
    merges = f"{sum(node.log.total('merges') for node in facts.nodes.values()):,.0f}"
    if facts.rounds:
        yield "rounds", f"{facts.rounds:,.0f}", f"of all nodes, and {merges} merges"
    else:
        yield "merges", merges, ""
    traffic = [traffic_of(node.log) for node in facts.nodes.values()]
    sent, mapped = (sum(t[kind] for t in traffic) for kind in ("sent", "mapped"))
    yield "sent", size(sent), f"and {size(mapped)} mapped"
    waits = [found["wait"] for n in facts.nodes.values() if (found := shares_of(n.log))]
    yield "waiting", share(mean(waits)), "of the time, mean of the nodes"


def _node_row(name: str, node: NodeFacts) -> list[str]:
    log, rates = node.log, node.rates
    shares = shares_of(log)
    problem = log.processes[-1].problem
    end = f"{f'ended, {problem}' if problem else _ENDS[node.end]}, {clock(log.last)}"
    return [
        name,
        end if len(log.processes) == 1 else f"{end}; {len(log.processes)} processes",
        f"{log.total('steps'):,.0f}",
        number(rates.steps_per_s, 3),
        number(node.loss),
        number(log.best.loss if log.best else None),
        f"{log.total('merges'):,.0f}",
        f"{log.total('rounds'):,.0f}",
        *(share(shares[a] if shares else None) for a in ("train", "publish", "wait", "merge")),
        number(rates.staleness, 3),
        *map(size, traffic_of(log).values()),
    ]


def _notes(run: Run) -> Iterator[str]:
    """Say how far the report can be trusted, and what it is not about."""
    thinned = [name for name, node in run.nodes.items() if node.is_thinned]
    if thinned:
        most = max(len(run.nodes[name].rows) for name in thinned)
        yield (
            f"The samples of {plural(len(thinned), 'node')} were thinned to {most} at most for the "
            "pictures. Counters, totals and lowest losses are those of all samples."
        )
    for span in run.spans:
        if span.number != run.number:
            yield (
                f"The folder has another run, of {plural(span.nodes, 'node')}, from "
                f"{moment(span.began)} to {clock(span.last)}: --run {span.number} shows it."
            )
    yield from (f"{remark}." for remark in run.remarks)
    yield f"Times are those of the nodes' clocks. Made by dpwa {__version__}."


PAGE_NAME = "report.html"


def write_report(facts: Facts, folder: Path) -> Path:
    """Write the page and the pictures into a folder, which is made; return where the page is."""
    path = folder / PAGE_NAME
    with folder_to_write(folder):
        training = list(drawn(training_charts(facts, looks_for(facts)), folder))
        gossip = list(drawn(gossip_charts(facts), folder))
        with written(path) as out:
            out.write(report_page(facts, training, gossip).encode())
    return path


@contextmanager
def folder_to_write(folder: Path) -> Iterator[None]:
    """Make a folder; whatever cannot be written into it is one `UserError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(
            f"--output: expected a folder that can be written to (got {folder}: {error.strerror})"
            " [DPWA-E283]"
        ) from None
