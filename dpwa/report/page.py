"""The page of a report about one run or several, with text, pictures and tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpwa import __version__
from dpwa.files import writing, written
from dpwa.observe.events import KINDS
from dpwa.observe.rates import ACTIVITIES
from dpwa.observe.run_log_contents import Run
from dpwa.observe.verdicts import NodeVerdict
from dpwa.report.charts import TRAFFIC, charts_of, moments
from dpwa.report.facts import Facts, NodeFacts, last_known
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
from dpwa.types import JsonObject
from dpwa.wire.messages import printable

PAGE_NAME = "report.html"
MAX_EVENT_ROWS = 300
_ENDS = {"ended": "finished", "lost": "lost", "running": "running"}
Runs = Mapping[str, Facts]  # by a unique name


def labels_of(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder: its path without the common beginning."""
    paths = [folder.resolve() for folder in folders]
    common = os.path.commonpath([path.parent for path in paths])
    return [printable(str(path.relative_to(common))) for path in paths]


def common_loss(runs: Runs) -> float | None:
    """Return the lowest mean loss that several runs have reached, or `None` if no loss is known."""
    known = [facts.lowest_mean_loss for facts in runs.values() if len(facts.mean_loss.at)]
    return max(known, default=None) if len(runs) > 1 else None


def table_of(runs: Runs, loss: float | None) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of a table with a column for each run.

    `loss` is the loss to reach, by default the lowest that all runs have reached.
    """
    target = common_loss(runs) if loss is None else loss
    to_loss = f"to loss {number(target, 3)}"
    titles = [
        *("nodes", "lost", "duration", "steps", "steps/s", "best loss", "last loss"),
        *("merges", "rounds", *TRAFFIC, "waiting", to_loss, "steps to this loss"),
    ]
    columns = [_column(facts.figures(target)) for facts in runs.values()]
    rows = [list(row) for row in zip(titles, *columns, strict=True)]
    return ["figure", *runs], rows if target is not None else rows[:-2]


def _column(found: JsonObject) -> list[str]:
    seconds, steps = found["seconds_to_loss"], found["steps_to_loss"]
    return [
        str(found["nodes"]),
        str(len(found["lost"])),
        duration(found["seconds"]),
        f"{found['steps']:,.0f}",
        number(found["steps_per_s"], 3),
        number(found["best_loss"]),
        number(found["last_loss"]),
        *(f"{found[kind]:,.0f}" for kind in ("merges", "rounds")),
        *(size(found[f"{kind}_bytes"]) for kind in TRAFFIC),
        share(found["wait_share"]),
        "never" if seconds is None else duration(seconds),
        UNKNOWN if steps is None else f"{steps:,.0f}",
    ]


def sentences(runs: Runs, loss: float | None = None) -> Iterator[str]:
    """Yield sentences about one run, or about the run that reached a loss first."""
    if len(runs) > 1:
        yield from _compared(runs, loss)
    for facts in runs.values() if len(runs) == 1 else ():
        yield from _summary(facts)


def _summary(facts: Facts) -> Iterator[str]:
    run = facts.run
    began = moment(run.began)
    when = f" so far, since {began}" if facts.is_running else f", from {began} to {clock(run.last)}"
    did = "trained" if facts.steps else "ran"
    took = f"took {plural(round(facts.steps), 'step')} in all" if facts.steps else "took no step"
    yield (
        f"{plural(len(facts.nodes), 'node')} {did} for {duration(run.seconds)}{when}, and {took}."
    )
    if facts.best is None or facts.best.log.best is None or not facts.losses:
        yield "No loss is known."
        return
    low, least, most = facts.best.log.best, min(facts.losses), max(facts.losses)
    yield (
        f"The lowest loss was {number(low.loss)} ({facts.best.name} at {clock(low.time)}, step "
        f"{low.steps:,.0f}). The last losses of the nodes are {number(least)} to {number(most)}."
    )


def _compared(runs: Runs, loss: float | None) -> Iterator[str]:
    target = common_loss(runs) if loss is None else loss
    if target is None:
        yield "No run has reported a loss."
        return
    found = {label: facts.reached(target)[0] for label, facts in runs.items()}
    times = {label: seconds for label, seconds in found.items() if seconds is not None}
    if times:
        first = min(times, key=lambda label: times[label])
        others = [f"{n} after {duration(s)}" for n, s in times.items() if n != first]
        rest = f", then {names(others, len(others))}" if others else ""
        what = f"a mean loss of {number(target)}"
        if loss is None:
            what = f"the lowest mean loss that all runs have reached ({number(target)})"
        yield f"{first} was the first run to reach {what}, after {duration(times[first])}{rest}."
    never = [label for label, seconds in found.items() if seconds is None]
    if never:
        yield f"{names(never)} never reached a mean loss of {number(target)}."
    best = min(runs, key=lambda label: runs[label].lowest_mean_loss)
    lowest = runs[best].lowest_mean_loss
    yield f"The lowest mean loss of all runs is {number(lowest)}, in {best}."


def findings(runs: Runs) -> list[tuple[str, NodeVerdict]]:
    """Return the remarkable facts, the worst first, each with the name of a node or ""."""
    found = []
    for label, facts in runs.items():
        before = f"{label}: " if len(runs) > 1 else ""
        found += [(before, verdict) for verdict in facts.general]
        found += [(f"{before}{n}", v) for n, node in facts.nodes.items() for v in node.verdicts]
    return sorted(found, key=lambda finding: finding[1].severity != "bad")


def write_report(runs: Runs, loss: float | None, folder: Path) -> Path:
    """Write the page and the pictures into a new folder, and return the path of the page."""
    path = folder / PAGE_NAME
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        pictures = list(drawn(charts_of(runs), folder))
        with written(path) as out:
            out.write(page_of(runs, loss, pictures).encode())
    return path


def page_of(runs: Runs, loss: float | None, pictures: Sequence[Drawn]) -> str:
    """Return the page as HTML. All inserted texts except pictures are escaped."""
    pages = Environment(
        loader=PackageLoader("dpwa.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    headings, rows = table_of(runs, loss)
    return pages.get_template(PAGE_NAME).render(
        colours=style_sheet(),
        title=_title(runs),
        sentences=sentences(runs, loss),
        headings=headings,
        rows=rows,
        findings=findings(runs),
        pictures=pictures,
        runs=[_shown(label, facts) for label, facts in runs.items()],
        version=__version__,
    )


def _title(runs: Runs) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    (name,) = runs
    return f"Report of {f'run {name}' if name.isdigit() else name or 'the run'}"


def _shown(label: str, facts: Facts) -> JsonObject:
    """Return the parts of the page about one run."""
    events, shown = moments(facts.run), moments(facts.run, MAX_EVENT_ROWS)
    rarest = "" if len(shown) == len(events) else f", of which the {len(shown)} rarest are below"
    return {
        "label": label,
        "about": _about(facts.run),
        "nodes": [_node_row(name, node) for name, node in facts.nodes.items()],
        "events_summary": f"{plural(len(events), 'event')}{rarest}",
        "events": [
            (clock(e.time), e.about, e.kind, names(by), printable(e.text) or UNKNOWN)
            for e, by in shown
        ],
        "meanings": [(k, KINDS[k]) for k in dict.fromkeys(e.kind for e, _ in shown) if k in KINDS],
        "notes": list(_notes(facts.run)),
    }


def _about(run: Run) -> str:
    """Describe the algorithm and the hosts of the nodes."""
    parts = []
    averages = any(node.total("rounds") for node in run.nodes.values())
    for key in ("algorithm",) if averages else ("algorithm", "topology"):
        values = {str(node.told[key])[:60] for node in run.nodes.values() if node.told.get(key)}
        if values:
            parts.append(f"{key} {printable(', '.join(sorted(values)))}")
    hosts = {p.host for node in run.nodes.values() for p in node.processes if p.host}
    if hosts:
        parts.append(f"on {plural(len(hosts), 'host')}: {names(sorted(hosts))}")
    return ", ".join(parts)


def _node_row(name: str, node: NodeFacts) -> list[str]:
    log, rates = node.log, node.rates
    problem = log.processes[-1].problem
    end = f"{f'ended, {problem}' if problem else _ENDS[node.end]}, {clock(log.last)}"
    return [
        name,
        end if len(log.processes) == 1 else f"{end}, {len(log.processes)} processes",
        f"{log.total('steps'):,.0f}",
        number(rates.steps_per_s, 3),
        number(node.loss),
        number(log.best.loss if log.best else None),
        number(last_known(log, "consensus_distance"), 3),
        f"{log.total('merges'):,.0f}",
        f"{log.total('rounds'):,.0f}",
        *(share(rates.shares[a] if rates.shares else None) for a in ACTIVITIES),
        number(rates.staleness, 3),
        *(size(log.total(f"{kind}_bytes")) for kind in TRAFFIC),
    ]


def _notes(run: Run) -> Iterator[str]:
    """Yield notes about the limits of the report, and about other runs in the folder."""
    thinned = [node for node in run.nodes.values() if node.is_thinned]
    if thinned:
        most = max(len(node.rows) for node in thinned)
        yield (
            f"The pictures of {plural(len(thinned), 'node')} show at most {most} samples per node. "
            "Counters, totals and lowest losses cover all samples."
        )
    for span in run.spans:
        if span.number != run.number:
            yield (
                f"The folder has another run of {plural(span.nodes, 'node')}, from "
                f"{moment(span.began)} to {clock(span.last)}. Use --run {span.number} for that run."
            )
    yield from (f"{remark}." for remark in run.remarks)
