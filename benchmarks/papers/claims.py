"""What the reproductions share: claims of a paper beside what was measured here, as a table."""

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
    paper: str  # what it says
    ours: str  # what was measured here
    verdict: str  # `HOLDS`, `IN_PART` or `FAILS`
    reason: str = ""  # why it does not hold, or what is to be known about the figures


@dataclass(frozen=True)
class Paper:
    title: str  # with its year
    source: str  # where it is found, such as arXiv:1611.09726
    setting: str  # what was run
    # runs it, shorter with `quick`; returns the claims
    reproduce: Callable[[int, bool], list[Claim]]


def verdict(*checks: bool) -> str:
    """Return what became of a claim of which these parts are true or not."""
    if all(checks):
        return HOLDS
    return IN_PART if any(checks) else FAILS


def listed(values: Iterable[object]) -> str:
    """Return the values with commas between them, numbers with three digits."""
    return ", ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in values)


def main(papers: Sequence[Paper], description: str | None) -> None:
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of all chance (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a short form, of seconds")
    parser.add_argument("--json", action="store_true", help="JSON to standard output")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/papers.md")
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
