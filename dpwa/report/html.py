"""Pieces of pages; whatever comes from a file is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dpwa.report.style import FAINT, INK, LINE, PAGE, PALETTE, Drawn, style_sheet


def _var(colour: str) -> str:
    return f"var(--c{colour[1:]})"


CSS = (
    ":root{color-scheme:light dark}"
    + style_sheet()
    + f"""
:root{{--page:#f3f4f6;--bad:#b3261e;--odd:#8a5a00}}
@media (prefers-color-scheme:dark){{:root{{--page:#0d0f12;--bad:#ff8a80;--odd:#f3b73e}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:{_var(INK)};font:16px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}}
main,header,footer{{max-width:1264px;margin:0 auto;padding:0 16px}}
header{{padding-top:28px}}
h1{{font-size:clamp(1.4rem,4.5vw,2rem);line-height:1.2;margin:0;overflow-wrap:anywhere}}
h2{{font-size:1.25rem;margin:36px 0 12px}}
h3{{font-size:1rem;margin:0 0 2px}}
p{{margin:0 0 10px;max-width:75ch;overflow-wrap:anywhere}}
.faint,figcaption,footer,dt{{color:{_var(FAINT)}}}
.tiles{{display:grid;grid-template-columns:repeat(2,1fr);gap:10px;margin:18px 0}}
.tiles div,figure,.findings li,.scroll{{background:{_var(PAGE)};border:1px solid {_var(LINE)};
border-radius:10px}}
.tiles div{{padding:10px 14px}}
dt{{font-size:.82rem}}
dd{{margin:0;font-size:1.1rem;font-weight:600;overflow-wrap:anywhere}}
dd small{{display:block;font-size:.8rem;font-weight:400;color:{_var(FAINT)}}}
.findings{{list-style:none;margin:0;padding:0;display:grid;gap:8px}}
.findings li{{padding:10px 14px;border-left-width:5px;overflow-wrap:anywhere}}
.findings .bad{{border-left-color:var(--bad)}}
.findings .odd{{border-left-color:var(--odd)}}
.findings .good{{border-left-color:{_var(PALETTE[2])}}}
.bad b{{color:var(--bad)}}
.odd b{{color:var(--odd)}}
.findings b{{margin-right:.5em}}
.charts{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:14px;
align-items:start}}
figure{{margin:0;padding:14px}}
figcaption p{{font-size:.88rem;margin:0 0 8px}}
figcaption h3{{color:{_var(INK)}}}
svg{{display:block;width:100%;height:auto}}
.scroll{{overflow-x:auto;max-height:75vh}}
table{{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}}
caption{{text-align:left;padding:10px 12px;color:{_var(FAINT)}}}
th,td{{padding:6px 7px;text-align:right;white-space:nowrap;border-top:1px solid {_var(LINE)}}}
thead th{{position:sticky;top:0;background:{_var(PAGE)};border-top:0;white-space:normal;
vertical-align:bottom}}
th.long,tbody th{{white-space:normal;overflow-wrap:anywhere;min-width:6.5em}}
th:first-child,td.text,th.text{{text-align:left}}
th:first-child{{padding-left:12px}}
td.text{{white-space:normal;min-width:8em}}
td.long{{min-width:16em;overflow-wrap:anywhere}}
summary{{cursor:pointer;margin:10px 0}}
code{{font-size:.9em;overflow-wrap:anywhere}}
footer{{padding-top:20px;padding-bottom:40px;font-size:.88rem}}
:focus-visible{{outline:2px solid {_var(PALETTE[0])};outline-offset:2px}}
@media (min-width:560px){{.tiles{{grid-template-columns:repeat(4,1fr)}}}}
@media (min-width:1040px){{.tiles{{grid-template-columns:repeat(8,1fr)}}}}
@media (max-width:480px){{main,header,footer{{padding-left:10px;padding-right:10px}}
figure{{padding:10px 8px}}}}
@media print{{.scroll{{max-height:none}}figure{{break-inside:avoid}}}}
"""
)


LONG_WORD = 12  # characters; of those that the pages have themselves none is longer
# A page asks for nothing, and runs nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, body: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
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

    `text` are indices of columns with words, not numbers.
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
