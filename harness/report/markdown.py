"""A run in Markdown, for the summary page of a CI job: verdict first, new failures next, all of it
cut to size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.core.fault_outcomes import MISSED, WRONG_BLAME
from harness.core.records import BAD
from harness.report.meaning import OF_THE_JUDGED, meaning
from harness.report.page import templates
from harness.report.run_view import RunView
from harness.report.terminal_history import change_groups, count_line, flaky_line
from harness.report.wording import OTHER_BLAME, accuracy_title, known_line, num, one_line
from harness.store.history.compare import RunComparison
from harness.store.history.trends import Trends
from harness.store.summary import totals

MAX_LISTED = 20
UNCAUGHT = {MISSED: "Faults that were missed", WRONG_BLAME: f"Faults that were {OTHER_BLAME}"}
# `text` has escaped some bars already.
_BAR = re.compile(r"(?<!\\)\|")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()!|~&$])")


def render(
    view: RunView, comparison: RunComparison | None = None, trends: Trends | None = None
) -> str:
    """The summary of a run; with a comparison also what changed, with trends also what is flaky.

    Text of kernels, findings and branches is escaped: none of it can become HTML, an image or a row
    of a table. Lists are cut, so that it stays far below the 1 MiB that GitHub takes of a step.
    """
    found = templates(accuracy_title, code, count_line, flaky_line, known_line, num, one_line, text)
    plan = view.plan
    machine = view.plan.environment
    torch = f"torch {machine['torch']}" if machine.get("torch") else ""
    device = (machine.get("gpus") and machine["gpus"][0].get("name")) or machine.get("cpu")
    uncaught = {
        title: [
            f"{fault.fault} in {fault.case}: {one_line(fault.reason, 200)}"
            for fault in view.faults
            if fault.outcome == outcome
        ]
        for outcome, title in UNCAUGHT.items()
    }
    return found.get_template("summary.md.j2").render(
        view=view,
        says=_says(view),
        most=MAX_LISTED,
        facts=(plan.run_id, plan.source.words, f"{plan.seconds:.1f} s", torch, str(device or "")),
        totals=_totals(view),
        comparison=comparison,
        groups=change_groups(comparison, view.causes) if comparison else (),
        uncaught=uncaught,
        trends=trends,
    )


def _says(view: RunView) -> list[str]:
    """What the run says, in the order of the terminal: judged, not judged and why, covered."""
    lines = [(line.name, f"{line.name}: {line.sentence}") for line in meaning(view)]
    unjudged = [
        f"{word} {num(count, 'case')}: {reason}"
        for word, reasons in (("skipped", view.skips), ("refused", view.refusals))
        for reason, count in reasons.most_common(MAX_LISTED)
    ]
    first = [line for name, line in lines if name in OF_THE_JUDGED]
    return [*first, *unjudged, *(line for name, line in lines if name not in OF_THE_JUDGED)]


def _totals(view: RunView) -> str:
    """The table of verdicts."""
    groups = view.scenarios
    verdicts = list(view.counts)
    # A scenario in which all is well is one of many; they are counted together.
    shown = {
        name: group for name, group in groups.items() if any(one.verdict in BAD for one in group)
    }
    counted = [(code(name), group) for name, group in list(shown.items())[:MAX_LISTED]]
    others = [result for name, group in groups.items() if name not in shown for result in group]
    if others:
        counted.append(
            (
                num(len(groups) - len(shown), "scenario") + (" without a failure" if shown else ""),
                others,
            )
        )
    if len(groups) > 1 and shown:
        counted.append(("**all**", view.results))
    rows = []
    for name, results in counted:
        counts = totals(results)
        seconds = f"{sum(result.seconds for result in results):.1f}"
        rows.append([name, *(counts.get(verdict) or "·" for verdict in verdicts), seconds])
    return table(["scenario", *verdicts, "s"], rows)


def table(head: Sequence[str], rows: Iterable[Iterable[object]] = ()) -> str:
    """A table. A cell stands on one line, and a bar in it is escaped."""
    return "\n".join([_row(head), "|" + " --- |" * len(head), *map(_row, rows)])


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(_BAR.sub(r"\|", " ".join(str(cell).split())) for cell in cells) + " |"


def text(found: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", one_line(found, 1000))


def code(found: str) -> str:
    """Text in a code span, fenced by more backticks than it holds in a row."""
    plain = one_line(found, 1000)
    longest = max(map(len, re.findall("`+", plain)), default=0)
    pad = " " if longest else ""
    fence = "`" * (longest + 1)
    return f"{fence}{pad}{plain}{pad}{fence}"
