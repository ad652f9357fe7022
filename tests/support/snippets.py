"""The code in the documentation: its blocks by language, and the commands of dpwa in them.

Blocks that are indented, or name no language, have the language ""; code within a line is a SPAN.
"""

import functools
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
SPAN = "span"
SHELL = ("", "console", "bash")
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]
    if page.name != "CHANGELOG.md"  # of other times
)


@dataclass(frozen=True)
class Snippet:
    """A block or a span of code: where it stands, its language, and its text."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(*languages):
    return [found for found in _all(has_spans=SPAN in languages) if found.language in languages]


def commands(*languages):
    """All command lines of `dpwa` in blocks of these languages, each once for a page."""
    found = {}
    for snippet in blocks(*languages):
        for line in snippet.code.replace("\\\n", " ").splitlines():
            if match := re.match(r"\s*(?:\$ )?((?:[A-Z_]+=\S+ )*dpwa(?: (?!\w+: ).*)?)$", line):
                command = Snippet(snippet.page, snippet.line, snippet.language, match[1].strip())
                found.setdefault((snippet.page, command.code), command)
    return list(found.values())


def is_among(snippet, table):
    """Tell whether a table of (page, beginning of the code) has this snippet."""
    return any(snippet.page == page and snippet.code.startswith(text) for page, text in table)


def environment(**variables):
    """The environment for a process in which dpwa is that of this checkout."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": os.pathsep.join(programs),
        **variables,
    }


def words(command):
    """The variables that a command line sets, and its words without comments."""
    parts = shlex.split(command.code, comments=True)
    start = parts.index("dpwa")
    return dict(part.split("=", 1) for part in parts[:start]), parts[start:]


@functools.cache
def _all(*, has_spans):
    parser = MarkdownIt("commonmark").enable("table")
    if not has_spans:  # most of the time goes into what is within lines
        parser.disable("inline")
    return tuple(snippet for page in PAGES for snippet in _of(page, parser))


def _of(page, parser):
    name, line = str(page.relative_to(ROOT)), 0
    for token in parser.parse(page.read_text("utf-8")):
        line = token.map[0] + 1 if token.map else line
        if token.type == "fence":
            yield Snippet(name, line, token.info.strip(), token.content)
        elif token.type == "code_block":
            yield Snippet(name, line, "", token.content)
        for child in token.children or ():
            if child.type == "code_inline":
                yield Snippet(name, line, SPAN, child.content)
