"""docs/watch.md has every metric, as the code has it, and no other."""

import re
from pathlib import Path

from dpwa.observe.prometheus import HISTOGRAMS, METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")


def rows():
    for metric in METRICS:
        name = metric.family + ("_total" if metric.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{name}` | {metric.kind} | {labels + ' ' if labels else ''}| {metric.text} |"
    for histogram in HISTOGRAMS:
        yield f"| `{histogram.family}` | histogram | | {histogram.text} |"


def test_the_page_has_all_metrics_and_no_other():
    assert re.findall(r"^\| `dpwa_.*", PAGE, re.MULTILINE) == [*rows()]


def test_the_page_names_the_tags_that_are_no_figures():
    assert "| `dpwa/staleness` |" in PAGE
    assert "| `dpwa/wait_share` |" in PAGE
