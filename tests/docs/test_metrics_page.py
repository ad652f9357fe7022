"""docs/watch.md has every metric, as the code has it, and no other."""

import re
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra: pip install dpwa[metrics]")
from support.metrics import all_metrics, name_of

from dpwa.observe.figures import FIGURES

PAGE = (Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")


FIGURE_OF = {figure.text: figure for figure in FIGURES}


def rows():
    for metric in all_metrics():
        if metric.documentation in FIGURE_OF:
            continue
        is_labelled = metric.type != "histogram"
        labels = ", ".join(f"`{label}`" for label in metric.samples[0].labels if is_labelled)
        kind = "gauge" if metric.type == "info" else metric.type
        told = f"{labels} " if labels else ""
        yield f"| `{name_of(metric)}` | {kind} | {told}| {metric.documentation} |"


def test_the_page_has_all_metrics_and_no_other():
    assert re.findall(r"^\| `dpwa_.*", PAGE, re.MULTILINE) == [*rows()]


def test_a_figure_that_is_a_metric_has_its_name():
    named = dict(re.findall(r"^\| `(\w+)` \| \w+ \| `(dpwa_\w+)` \|", PAGE, re.MULTILINE))
    metrics = [metric for metric in all_metrics() if metric.documentation in FIGURE_OF]
    assert named == {FIGURE_OF[one.documentation].name: name_of(one) for one in metrics}


def test_the_page_names_the_tags_that_are_no_figures():
    assert "| `dpwa/staleness` |" in PAGE
    assert "| `dpwa/wait_share` |" in PAGE
