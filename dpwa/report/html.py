"""Pieces of pages; whatever comes from a file is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dpwa.report.charts import Drawn
from dpwa.report.page_style import CSS

LONG_WORD = 12  # characters; of those that the pages have themselves none is longer
# A page asks for nothing, and runs nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, body: Iterable[str]) -> str:
    """Return a whole page.

    Args:
        title: as plain text.
        body: pieces of HTML.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of plain text."""
    named = f' class="{kind}"' if kind else ""
    return f"<p{named}>{escape(text)}</p>"


def tiles(values: Iterable[tuple[str, str, str]]) -> str:
    """Return a few large figures: what each is, its value, and a remark that may be empty."""
    parts = []
    for what, value, remark in values:
        small = f"<small>{escape(remark)}</small>" if remark else ""
        parts.append(f"<div><dt>{escape(what)}</dt><dd>{escape(value)}{small}</dd></div>")
    return f'<dl class="tiles">{"".join(parts)}</dl>'


def figures(drawn: Iterable[Drawn]) -> str:
    """Return pictures side by side, each with what it shows."""
    parts = [
        f'<figure id="{d.chart.name}"><figcaption><h3>{escape(d.chart.title)}</h3>'
        f"{paragraph(d.chart.text)}</figcaption>{d.svg}</figure>"
        for d in drawn
    ]
    return f'<div class="charts">{"".join(parts)}</div>'


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    text: Sequence[int] = (),
) -> str:
    """Return a table of plain text that can be scrolled; the first column names the rows.

    Args:
        caption: what it shows.
        headings: of the columns.
        rows: cells.
        text: indices of columns with words, not numbers.
    """
    kinds = [' class="text"' if index in text else "" for index in range(len(headings))]
    head = "".join(
        f'<th scope="col"{kind or _kind_of(name)}>{escape(name)}</th>'
        for name, kind in zip(headings, kinds, strict=True)
    )
    body = []
    for row in rows:
        first, *others = map(escape, row)
        cells = zip(others, kinds[1:], strict=True)
        data = "".join(f"<td{kind}>{cell}</td>" for cell, kind in cells)
        body.append(f'<tr><th scope="row">{first}</th>{data}</tr>')
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _kind_of(heading: str) -> str:
    """Return the class of a heading that may be broken anywhere, such as the name of a run."""
    return ' class="long"' if len(max(heading.split(), key=len, default="")) > LONG_WORD else ""
