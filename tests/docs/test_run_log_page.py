"""docs/watch.md has every figure and every kind of event, as the code has it."""

import re
from pathlib import Path

from dpwa.observe.events import KINDS
from dpwa.observe.figures import FIGURES
from dpwa.observe.run_log import RUN_LOG_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")


def test_the_page_has_all_figures_and_events():
    without_metrics = re.sub(r"^(\| `\w+` \| \w+ \|)[^|]*\| ", r"\1 ", PAGE, flags=re.MULTILINE)
    rows = [f"| `{figure.name}` | {figure.kind} | {figure.text} |" for figure in FIGURES]
    assert [row for row in rows if row not in without_metrics.splitlines()] == []
    rows = [f"| `{kind}` | {text} |" for kind, text in KINDS.items()]
    assert [row for row in rows if row not in PAGE.splitlines()] == []


def test_the_page_tells_the_version():
    assert f"version of this schema: {RUN_LOG_VERSION}" in PAGE
