"""docs/watch.md has every metric, as the code has it, and no other."""

import re
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra: pip install dpwa[metrics]")
from support.metrics import all_metrics, name_of

PAGE = (Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")


def rows():
    for metric in all_metrics():
        is_labelled = metric.type != "histogram"
        labels = ", ".join(f"`{label}`" for label in metric.samples[0].labels if is_labelled)
        kind = "gauge" if metric.type == "info" else metric.type
        told = f"{labels} " if labels else ""
        yield f"| `{name_of(metric)}` | {kind} | {told}| {metric.documentation} |"


def test_the_page_has_all_metrics_and_no_other():
    assert re.findall(r"^\| `dpwa_.*", PAGE, re.MULTILINE) == [*rows()]


def test_the_page_names_the_tags_that_are_no_figures():
    assert "| `dpwa/staleness` |" in PAGE
    assert "| `dpwa/wait_share` |" in PAGE
