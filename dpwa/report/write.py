"""Writes a report: a page that needs nothing else, and its pictures as files."""

from __future__ import annotations

from pathlib import Path

from dpwa.report.charts import drawn, gossip_charts, looks_for, training_charts
from dpwa.report.facts import Facts
from dpwa.report.files import folder_to_write
from dpwa.report.page import report_page

PAGE_NAME = "report.html"


def write_report(facts: Facts, folder: Path) -> Path:
    """Write the page and the pictures into a folder, which is made if it is not there.

    Returns:
        Where the page is.

    Raises:
        UserError: it cannot be written.
    """
    path = folder / PAGE_NAME
    with folder_to_write(folder):
        training = list(drawn(training_charts(facts, looks_for(facts)), folder))
        gossip = list(drawn(gossip_charts(facts), folder))
        path.write_text(report_page(facts, training, gossip), encoding="utf-8")
    return path
