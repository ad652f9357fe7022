"""How the site is built of the Markdown pages of this repository: `./scripts/docs`.

The source folder is the repository, so that links between pages, examples and the README lead to
the same places as on a Git host. Nothing is loaded from elsewhere: formulas become MathML.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode, comment, meta, raw, section
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import index
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

import dpwa

project = "dpwa"
author = "the authors of dpwa"
copyright = "the authors of dpwa, Apache License 2.0"  # noqa: A001
version = release = dpwa.__version__

root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "examples/*.md", "examples/*/*.md"]
exclude_patterns = [".*", "build", "dist", "tests"]
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 6  # as Git hosts make them of headings
highlight_language = "text"
smartquotes = False  # they turn --json into a dash
nitpicky = True

html_theme = "furo"
html_title = f"dpwa {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_start"]  # index.html, which leads to docs/index.html
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_math_renderer = "mathml"

_SEARCH = re.compile(r"search: ([^<>]+?)\s*(?:-->|$)")
_ENTRY = re.compile(r"^- \[(.+?)\]\(([\w./-]+)\.md\)", re.MULTILINE)


def _add_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Make the table of contents of the site out of the lists of docs/index.md."""
    if page != root_doc:
        return
    opening, *parts = source[0].split("\n## ")
    for part in parts:
        entries = "\n".join(f"{title} <{page}>" for title, page in _ENTRY.findall(part))
        caption = part.partition("\n")[0]
        contents = f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"
        opening += f"\n## {part}\n{contents}"
    source[0] = opening


class _SearchWords(SphinxTransform):
    """Finds the heading above `<!-- search: stop, end a run -->` by these words, at first place."""

    default_priority = 400

    def apply(self, **_options: Any) -> None:
        for node in [*self.document.findall(comment), *self.document.findall(raw)]:
            words = _SEARCH.search(node.astext())
            if words is not None:
                above = node.parent
                while not isinstance(above, section):
                    above = above.parent
                target = above["ids"][-1]
                entries = [("single", w.strip(), target, "main", None) for w in words[1].split(",")]
                # Also for queries of other words of the page
                node.replace_self([index(entries=entries), meta(name="keywords", content=words[1])])


def _write_inline(writer: Any, node: Any) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise SkipNode


def _write_block(writer: Any, node: Any) -> None:
    writer.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise SkipNode


def _copy_pictures(app: Sphinx, _error: Exception | None) -> None:
    """Copy what pages show by HTML, for light and dark: Sphinx collects those of Markdown."""
    here = Path(app.outdir, "docs", "images")
    here.mkdir(parents=True, exist_ok=True)
    for picture in Path(app.srcdir, "docs", "images").glob("dashboard-*.png"):
        shutil.copy(picture, here)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("build-finished", _copy_pictures)
    app.connect("source-read", _add_contents)
    app.add_transform(_SearchWords)
    app.add_html_math_renderer("mathml", (_write_inline, None), (_write_block, None))
