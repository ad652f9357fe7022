"""Print a table with the claims of a paper and the measurements of dpwa, for all reproductions."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"


@dataclass(frozen=True)
class Claim:
    paper: str  # the statement of the paper
    ours: str  # the measurement of dpwa
    verdict: str  # `HOLDS`, `IN_PART` or `FAILS`
    reason: str = ""  # the reason for the verdict, or a remark about the figures


@dataclass(frozen=True)
class Paper:
    title: str  # with authors and year
    source: str  # such as arXiv:1611.09726
    setting: str  # a description of the runs
    # called with a seed, and True for short runs
    reproduce: Callable[[int, bool], list[Claim]]


def verdict(*checks: bool) -> str:
    """Return the verdict on a claim from the checks of its parts."""
    if all(checks):
        return HOLDS
    return IN_PART if any(checks) else FAILS


def listed(values: Iterable[object]) -> str:
    """Return the values as a comma-separated list, with three digits for each float."""
    return ", ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in values)


def main(papers: Sequence[Paper], description: str | None) -> None:
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of all runs (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="short runs, which take seconds")
    parser.add_argument("--json", action="store_true", help="print JSON to standard output")
    parser.add_argument("--markdown", action="store_true", help="print tables for docs/papers.md")
    options = parser.parse_args()
    found = []
    for paper in papers:
        began = time.process_time()
        claims = paper.reproduce(options.seed, options.quick)
        cpu_s = time.process_time() - began
        if options.markdown:
            print(markdown(paper, claims), flush=True)
        else:
            _show(paper, claims, cpu_s, sys.stderr if options.json else sys.stdout)
        about = {"title": paper.title, "source": paper.source, "setting": paper.setting}
        found.append({**about, "cpu_s": cpu_s, "claims": [asdict(claim) for claim in claims]})
    if options.json:
        print(json.dumps({"seed": options.seed, "quick": options.quick, "papers": found}))


def _show(paper: Paper, claims: Sequence[Claim], cpu_s: float, out: object) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, expand=False)
    for heading in ("paper", "ours", "verdict"):
        table.add_column(heading, overflow="fold")
    for claim in claims:
        ours = f"{claim.ours}\n({claim.reason})" if claim.reason else claim.ours
        table.add_row(claim.paper, ours, claim.verdict, end_section=True)
        table.add_row()
    console = Console(file=out, highlight=False, markup=False)  # type: ignore[arg-type]
    console.print(f"{paper.title}, {paper.source}\n{paper.setting} ({cpu_s:.1f} s of CPU)\n")
    console.print(table)


def markdown(paper: Paper, claims: Sequence[Claim]) -> str:
    rows = [f"## {paper.title}", "", f"{paper.source}. {paper.setting}", ""]
    rows += ["| claim | verdict | remark |", "|---|---|---|"]
    for claim in claims:
        remark = f"{claim.reason[0].upper()}{claim.reason[1:]}." if claim.reason else ""
        cells = (claim.paper, f"**{claim.verdict}**", remark)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*rows, ""])
