"""`report.html`: one file, no network, readable in a year.

The templates only lay out what is prepared here.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.accuracy.acceptance import read_drafts
from harness.accuracy.cache_hits import read_hits
from harness.core.fault_outcomes import declared_blame
from harness.core.records import BAD, AccuracyRecord, CaseResult, FaultResult, OutcomeGrid, Verdict
from harness.report.accuracy_view import view_of
from harness.report.answers import answers_of
from harness.report.case_view import (
    CaseView,
    case_data,
    embedded,
    of_fault,
    of_result,
    packed,
)
from harness.report.causes import facts
from harness.report.gains import gains
from harness.report.meaning import OF_THE_JUDGED, meaning
from harness.report.plot import BAND_GAP, CELL, GRID_COLUMNS
from harness.report.run_view import RunView
from harness.report.wording import (
    accuracy_title,
    describe_faulty,
    fault_word,
    model_sentence,
    num,
    one_line,
    printable,
    ref_url,
)
from harness.store.coverage import EVERY_KERNEL, STRENGTHS
from harness.store.summary import accuracy_records, totals

FOLDER = Path(__file__).parent
VERDICT_WORDS = {
    Verdict.FAIL: "failed",
    Verdict.CRASH: "crashed",
    Verdict.ERROR: "could not be judged",
    Verdict.NOT_RUN: "not run",
    Verdict.KNOWN: "known to fail",
    Verdict.PASS: "passed",
    Verdict.SKIP: "skipped",
}
"""What the page calls each verdict, in the order of the list of cases: what needs a look comes
first.
"""
ORDER = tuple(VERDICT_WORDS)
IN_FULL = (*ORDER[:3], Verdict.KNOWN)
"""Cases that get a view in the markup while there is room; the script makes the view of any other.
"""
MAX_MEASURED = 40
"""Measurements of accuracy that the page shows; results.csv has them all."""
OUTCOMES = {
    "1": "right",
    "0": "wrong",
    "p": "did not parse",
    "e": "empty",
    "i": "invalid tokens",
    "u": "unanswered",
    ".": "not asked",
}
"""A mark of an accuracy record's grid -> its words."""
MAX_REASON = 240
"""Characters of a reason in a table."""
NUM_PRINTED = 20
"""Views that are printed with the overview; any other is printed when it is open."""
BUDGET = 1_900_000
"""Bytes of the page up to which cases get a view in the markup; the script shows less of the
others.
"""
LARGE_DATA = 1_000_000
"""Characters of the page's data beyond which it is packed. A smaller page shows it as it is."""
MOST_BREAKABLE = 3_000
"""Rows of a list whose ids break behind a parameter; in a longer one they break anywhere."""
MAX_REASONS = 20
"""Reasons of skips in the head of the page; the list of cases has the reason of each."""


def render(view: RunView) -> str:
    """The page of a run."""
    results = view.results
    anchors = {result.key: f"case-{number}" for number, result in enumerate(results, start=1)}
    ranked = sorted(results, key=lambda result: ORDER.index(result.verdict))
    faults = [(f"fault-{number}", fault) for number, fault in enumerate(view.faults, start=1)]
    pairs = [(result, view.jobs[result.key]) for result in ranked]
    answers = answers_of(view.store)
    owned: list[tuple[str, CaseResult | FaultResult]] = [
        *((anchors[result.key], result) for result in results),
        *faults,
    ]
    measured = [
        # A run of `epochs` has one measurement, and stores its answers.
        view_of(
            owner,
            record,
            answers,
            read_drafts(view.path) if answers else None,
            read_hits(view.path) if answers else None,
        )
        for owner, record in _measured(owned)
    ]
    data = case_data(pairs, view.plan.options, view.plan.environment)
    data["measured"] = [asdict(one.data) for one in measured]
    data |= {"outcomes": OUTCOMES, "grid_columns": GRID_COLUMNS}
    data |= {"grid_cell": CELL, "grid_gap": BAND_GAP}
    text = embedded(data)
    # A page of 14,000 cases holds 2 MB of it.
    is_large = len(text) > LARGE_DATA
    shell: dict[str, object] = {
        "run": view,
        "num_cases": len(results),
        "order": [verdict.value for verdict in ORDER if view.counts.get(verdict.value)],
        "words": {verdict.value: word for verdict, word in VERDICT_WORDS.items()},
        "scenarios": sorted(
            view.scenarios.items(),
            key=lambda group: not any(one.verdict in BAD for one in group[1]),
        ),
        "results": ranked,
        "anchors": anchors,
        "says": meaning(view),
        "of_the_judged": OF_THE_JUDGED,
        "unjudged": [
            ("skipped", view.skips.most_common(MAX_REASONS)),
            ("refused", view.refusals.most_common(MAX_REASONS)),
        ],
        "covered": [one for one in view.coverages if one.kernel == EVERY_KERNEL],
        "strengths": STRENGTHS,
        "gains": gains(view.results),
        "judged": judged(view),
        "faults": faults,
        "measured": measured,
        "has_log": answers is not None,
        "num_hidden": max(0, len(view.accuracy) - MAX_MEASURED),
        "environment": list(_facts(view)),
        "data": Markup(packed(text) if is_large else text),
        "data_type": "application/gzip" if is_large else "application/json",
        "most_breakable": MOST_BREAKABLE,
        **own_code(),
    }
    environment = environment_of_page()
    template = environment.get_template("page.html")
    # Rendered once without views, to know the room that is left for them.
    room = BUDGET - len(template.render(**shell, views={}, num_left_out=0).encode())
    views = _within(room, _wanted(view, ranked, faults, anchors), environment)
    num_left_out = sum(result.verdict in IN_FULL for result in results) + len(faults) - len(views)
    return template.render(**shell, views=views, num_left_out=num_left_out)


def breakable(case_id: str) -> Markup:
    """A case id as markup that a narrow window may break after a parameter instead of anywhere."""
    return Markup(re.sub(r"([\[,])", r"\1<wbr>", str(escape(printable(case_id)))))


def ticks(text: str) -> Markup:
    """Text as markup, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def flipped(found: OutcomeGrid) -> list[tuple[int, str, list[str]]]:
    """The questions with different outcomes: number, hash, and the outcome in the baseline, if any,
    and in each epoch.

    A question that was not asked has no outcome.
    """
    rows = [row for row in (found.baseline, *found.rows) if row]
    marks = enumerate(zip(found.questions, *rows, strict=True), 1)
    return [
        (n, name, [OUTCOMES[mark] for mark in own])
        for n, (name, *own) in marks
        if len({*own} - {"."}) > 1
    ]


def templates(*functions: Callable[..., Any], **options: Any) -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    made.filters |= {function.__name__: function for function in functions}
    return made


def environment_of_page() -> Environment:
    """The templates of the page, which escape what they print."""
    known = (
        ref_url,
        breakable,
        ticks,
        accuracy_title,
        model_sentence,
        describe_faulty,
        flipped,
        totals,
        num,
        facts,
    )
    of_faults = (declared_blame, fault_word)
    # Jinja calls it on each value before escaping it.
    # Markup is a text of a type of its own, and is clean already.
    clean = {"finalize": lambda value: printable(value) if type(value) is str else value}
    made = templates(*known, *of_faults, autoescape=True, **clean)
    made.filters["short"] = lambda text: one_line(text, MAX_REASON)
    return made


def own_code() -> dict[str, str]:
    """Style and script of the page, and its Content-Security-Policy: these two by their hashes,
    nothing else at all.

    Text that got into the page as markup after all could neither run nor load anything.
    """
    code = {"style": ("page.css", "accuracy.css"), "script": ("page.js", "accuracy.js")}
    texts = {
        name: Markup("".join((FOLDER / file).read_text(encoding="utf-8") for file in files))
        for name, files in code.items()
    }
    hashes = {
        name: base64.b64encode(hashlib.sha256(text.encode()).digest())
        for name, text in texts.items()
    }
    own = "; ".join(f"{name}-src 'sha256-{digest.decode()}'" for name, digest in hashes.items())
    return {**texts, "csp": f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"}


def _wanted(
    view: RunView,
    ranked: Sequence[CaseResult],
    faults: Sequence[tuple[str, FaultResult]],
    anchors: dict[str, str],
) -> Iterator[CaseView]:
    """The views that stand in the markup if there is room: failures, then faults, those that were
    not caught first.
    """
    jobs = [*view.plan.jobs, *(control.job for control in view.plan.controls)]
    cases = {job.case.id: job.case for job in jobs}
    for result in ranked:
        if result.verdict in IN_FULL:
            yield of_result(view, result, anchors[result.key])
    for anchor, fault in sorted(faults, key=lambda pair: pair[1].caught):
        yield of_fault(view, fault, cases.get(fault.case), anchor)


def _within(room: int, wanted: Iterator[CaseView], environment: Environment) -> dict[str, Markup]:
    """The markup by anchor of as many views as fit into `room` bytes, in their order."""
    macro = environment.get_template("case.html").module.view  # type: ignore[attr-defined]
    views: dict[str, Markup] = {}
    for view in wanted:
        text = macro(view, is_early=len(views) < NUM_PRINTED)
        room -= len(text.encode())
        if room < 0:
            break
        views[view.anchor] = text
    return views


def _measured(
    owners: Sequence[tuple[str, CaseResult | FaultResult]],
) -> list[tuple[str, AccuracyRecord]]:
    """The measurements that are shown, each with the anchor of its case or fault."""
    measured = [
        (anchor, record) for anchor, result in owners for record in accuracy_records([result])
    ]
    # Accuracy that falls without an injected fault comes first.
    measured.sort(key=lambda pair: pair[1].verdict is not Verdict.FAIL or pair[1].fault is not None)
    return measured[:MAX_MEASURED]


def judged(view: RunView) -> list[tuple[str, str]]:
    """What names a run, as names and texts: its plug-ins, commit and command."""
    plan = view.plan
    found = {
        "plug-in": ", ".join(map(str, plan.options.get("plugins") or ())),
        "commit": plan.source.in_full(plan.source.short_commit),
        "command": plan.command,
    }
    return [(name, text) for name, text in found.items() if text]


def _facts(view: RunView) -> Iterator[tuple[str, str]]:
    """The environment as name and text; a missing package reads `not installed`."""
    plan = view.plan
    facts = {"run": plan.run_id, "command": plan.command, "started": plan.started}
    facts["commit"] = plan.source.commit and plan.source.in_full(plan.source.commit)
    if lost := view.lost:
        nodes = dict.fromkeys(node for result in lost for node in result.lost_nodes)
        facts["planned again"] = f"{num(len(lost), 'case')} after the loss of {', '.join(nodes)}"
    for name, value in {**facts, **plan.environment}.items():
        if value == "":
            continue
        if name == "gpus":
            value = (
                ", ".join(f"{gpu['name']} (sm {gpu.get('capability', 'unknown')})" for gpu in value)
                or "none"
            )
        elif isinstance(value, dict):
            value = ", ".join(f"{engine} {fact}" for engine, fact in value.items()) or "none"
        elif value is None:
            value = "none" if name == "cuda" else "not installed"
        yield name.replace("_", " "), str(value)
