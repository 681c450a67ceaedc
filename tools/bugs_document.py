"""Write docs/bugs.md from a run of `mla-harness selftest`: each bug put back, and what caught it.

mla-harness selftest --out reports/runs/selftest
python tools/bugs_document.py reports/runs/selftest > docs/bugs.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.catalog import FAULTS
from harness.report.page import ref_url

HEAD = ("bug", "upstream", "fault", "scenario", "oracle", "blamed", "seconds")


def document(summary: dict[str, Any]) -> str:
    """The Markdown of one run's `summary.json`. A bug that was not caught says so in its row."""
    faults = sorted(summary["faults"], key=lambda fault: (fault["fault"], fault["scenario"], fault["case"]))
    caught = sum(fault["caught"] for fault in faults)
    names = {fault["fault"] for fault in faults}
    totals = summary["totals"]
    machine = summary["environment"]
    text = [
        "# Bugs the harness knows",
        "",
        "Written by `python tools/bugs_document.py RUN` from a run of `mla-harness selftest`; nothing here is typed by "
        "hand.",
        "",
        f"{len(names)} bugs put back {len(faults)} times, {caught} caught by the declared oracle with the declared blame; "
        f"clean cases: {totals['pass']} pass, {totals['fail'] + totals['crash'] + totals['error']} do not, "
        f"{totals['skip']} skipped. Seconds are those of the case and of the trials that found the memory to blame, on "
        f"{machine.get('cpu', 'a CPU')}, torch {machine.get('torch', '?')}.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + " --- |" * len(HEAD),
    ]
    return "\n".join(text + [_row(fault) for fault in faults]) + "\n"


def _row(fault: dict[str, Any]) -> str:
    spec = FAULTS.get(fault["fault"])
    oracle = fault["expected_by"] if fault["caught"] else f"NOT CAUGHT: {fault['reason']}"
    cells = (
        spec.summary,
        f"[{spec.ref}]({ref_url(spec.ref)})",
        f"`{spec.name}`",
        fault["scenario"],
        oracle,
        ", ".join(fault["blamed"]) or "no memory",
        f"{fault['seconds']:.1f}",
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/bugs_document.py RUN_FOLDER")
    print(document(json.loads((Path(sys.argv[1]) / "summary.json").read_text(encoding="utf-8"))), end="")
