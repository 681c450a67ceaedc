"""Every report of a run, made again from its directory alone."""

from __future__ import annotations

from pathlib import Path

from harness.core.files import write_atomic
from harness.report import junit, page, table
from harness.report.run_view import RunView
from harness.store.summary import summarise, to_json

REPORT_FILES = ("summary.json", "results.csv", "junit.xml", "report.html")


def write_reports(view: RunView) -> list[Path]:
    """Write summary.json, results.csv, junit.xml and report.html; returns their paths."""
    texts = (
        to_json(summarise(view.store, view.coverages)),
        table.render(view),
        junit.render(view),
        page.render(view),
    )
    paths = [view.path / name for name in REPORT_FILES]
    for path, text in zip(paths, texts, strict=True):
        write_atomic(path, text)
    return paths
