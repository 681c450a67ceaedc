"""`report.html`: one file, no network, readable in a year. The templates only lay out what is prepared here."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.core.cases import Job
from harness.core.records import AccuracyRecord, CaseResult, EpochAccuracy, FaultResult, Verdict
from harness.report.accuracy_chart import Chart, Grid, chart, grid
from harness.report.case_data import case_data, embedded
from harness.report.case_view import CaseView, of_fault, of_result
from harness.report.failure_groups import Group, failure_groups
from harness.report.trend_chart import trend_view
from harness.report.wording import accuracy_title, describe_faulty, model_sentence, num, one_line, printable
from harness.store.history.trends import Trends
from harness.store.run_folder import RunStore
from harness.store.summary import accuracy_records, totals

FOLDER = Path(__file__).parent
VERDICT_WORDS = {
    Verdict.PASS: "passed",
    Verdict.FAIL: "failed",
    Verdict.CRASH: "crashed",
    Verdict.SKIP: "skipped",
    Verdict.ERROR: "could not be judged",
    Verdict.KNOWN: "known to fail",
}
ORDER = (Verdict.FAIL, Verdict.CRASH, Verdict.ERROR, Verdict.KNOWN, Verdict.PASS, Verdict.SKIP)
"""The order of the list of cases: what somebody should look at comes first."""
BAD = ORDER[:3]
IN_FULL = ORDER[:4]
"""Cases that get a view in the markup while there is room; the script makes the view of any other."""
MAX_PICTURES = 40
"""Measurements of accuracy that the page draws; results.csv has them all."""
MAX_REASON = 240
"""Characters of a reason in the list of cases."""
NUM_PRINTED = 20
"""Views that are printed with the overview; any other is printed when it is open."""
BUDGET = 1_900_000
"""Bytes of the page up to which cases get a view in the markup; the script shows less of the others."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list of cases."""

    anchor: str
    result: CaseResult
    reason: str


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One line of the list of faults that were put back."""

    anchor: str
    found: FaultResult


@dataclass(frozen=True, slots=True)
class ScenarioLine:
    """One scenario's counts."""

    name: str
    refs: tuple[str, ...]
    counts: dict[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Picture:
    """One measurement of accuracy with its chart and its grid, where there is something to draw."""

    record: AccuracyRecord
    owner: str
    """The anchor of the case or fault that measured it."""
    title: str
    sentence: str
    chart: Chart | None
    grid: Grid | None

    def describe(self, epoch: EpochAccuracy) -> str:
        """What could not be used of an epoch."""
        return describe_faulty(epoch)


def render(store: RunStore, trends: Trends | None = None) -> str:
    """The page of a run, with its place among earlier runs where `trends` knows any."""
    results, jobs = store.results(), store.jobs_by_key()
    anchors = {result.key: f"case-{number}" for number, result in enumerate(results, start=1)}
    ranked = sorted(results, key=lambda result: ORDER.index(result.verdict))
    faults = [FaultRow(f"fault-{number}", found) for number, found in enumerate(store.faults(), start=1)]
    counts, found = totals(results), [row.found for row in faults]
    environment = _environment()
    shell: dict[str, Any] = {
        "plan": store.plan,
        "counts": counts,
        "num_cases": len(results),
        "headline": headline(counts, found),
        "order": [verdict.value for verdict in ORDER if counts.get(verdict.value)],
        "words": {verdict.value: word for verdict, word in VERDICT_WORDS.items()},
        "scenarios": _scenarios(results),
        "rows": [_row(result, anchors[result.key]) for result in ranked],
        "groups": _groups(store, ranked, anchors),
        "known": [Row(anchors[r.key], r, _symptom(r)) for r in ranked if r.verdict is Verdict.KNOWN],
        "faults": faults,
        "pictures": _pictures(results, faults, anchors),
        "num_hidden_pictures": max(0, len(accuracy_records([*results, *found])) - MAX_PICTURES),
        "trends": trend_view(trends),
        "facts": _facts(store),
        **_own_code(),
    }
    pairs = [(result, jobs[result.key]) for result in ranked]
    shell["data"] = Markup(embedded(case_data(pairs, store.plan.options, store.plan.environment)))
    template = environment.get_template("page.html")
    room = BUDGET - len(template.render(**shell, views=(), in_full=(), num_left_out=0).encode())
    wanted = _wanted(store, ranked, faults, anchors, jobs, trends)
    views = _within(room, wanted, environment)
    num_left_out = sum(result.verdict in IN_FULL for result in results) + len(faults) - len(views)
    return template.render(**shell, views=views.values(), in_full=views, num_left_out=num_left_out)


def headline(counts: dict[str, int], faults: list[FaultResult]) -> tuple[str, str]:
    """The verdict of the run in one sentence, and the colour it is said in."""
    missed = sum(not fault.caught for fault in faults)
    bad = counts["fail"] + counts["crash"]
    if bad:
        noun = "case fails" if bad == 1 else "cases fail"
        return f"{bad} {noun}" + (f", and {missed} of {len(faults)} faults got through" if missed else ""), "fail"
    if missed:
        return f"{missed} of {len(faults)} faults got through unnoticed", "fail"
    if counts["error"]:
        return f"{counts['error']} could not be judged: this run proves nothing about them", "error"
    num_known = counts.get("known", 0)
    if num_known and not counts["pass"]:
        return f"Nothing passed: {num(num_known, 'case')} failed as known", "known"
    if not counts["pass"]:
        if faults and not counts["skip"]:
            return f"All {len(faults)} faults were caught", "pass"
        return "Nothing ran: every case was skipped", "skip"
    caught = f", and all {len(faults)} faults were caught" if faults else ""
    if num_known:
        return f"{num(counts['pass'], 'case')} passed, {num_known} failed as known{caught}", "pass"
    return f"All {counts['pass']} cases that ran pass{caught}", "pass"


def ref_url(ref: str) -> str:
    """The address of `owner/name#number` on GitHub."""
    repository, _, number = ref.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def breakable(case_id: str) -> Markup:
    """A case id as markup that a narrow window may break after a parameter instead of anywhere."""
    return Markup(re.sub(r"([\[,])", r"\1<wbr>", str(escape(printable(case_id)))))


def ticks(text: str) -> Markup:
    """Text as markup, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_clean,
    )  # fmt: skip
    environment.filters |= {"ref_url": ref_url, "breakable": breakable, "ticks": ticks}
    return environment


def _clean(value: Any) -> Any:
    """What Jinja calls on each value before escaping it."""
    return printable(value) if type(value) is str else value


def _own_code() -> dict[str, str]:
    style, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    return {"style": style, "script": script, "csp": _policy(style, script)}


def _policy(style: str, script: str) -> str:
    """The page's Content-Security-Policy: its own style and script by their hashes, and nothing else at all.

    Text that got into the page as markup after all could neither run nor load anything.
    """

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _row(result: CaseResult, anchor: str) -> Row:
    return Row(anchor, result, one_line(result.reason, MAX_REASON))


def _symptom(result: CaseResult) -> str:
    return one_line(result.findings[0].message if result.findings else result.reason, MAX_REASON)


def _groups(store: RunStore, ranked: list[CaseResult], anchors: dict[str, str]) -> list[Group]:
    return failure_groups([result for result in ranked if result.verdict in BAD], store.blames(), anchors)


def _wanted(
    store: RunStore,
    ranked: list[CaseResult],
    faults: list[FaultRow],
    anchors: dict[str, str],
    jobs: dict[str, Job],
    trends: Trends | None,
) -> Iterator[CaseView]:
    """The views that stand in the markup if there is room: failures, then faults, the missed ones first."""
    blames, shrunk = store.blames(), store.shrunk()
    past = {trend.key: trend for trend in trends.cases} if trends else {}
    runs = trends.runs if trends else ()
    by_id = {job.case.id: job for job in jobs.values()} | {c.job.case.id: c.job for c in store.plan.controls}
    for result in ranked:
        if result.verdict in IN_FULL:
            yield of_result(
                store, result, jobs[result.key], anchors[result.key], blame=blames.get(result.key),
                shrunk=shrunk.get(result.key), trend=past.get(result.key), runs=runs,
            )  # fmt: skip
    for row in sorted(faults, key=lambda row: row.found.caught):
        found = row.found
        smallest = shrunk.get(f"{found.case}!{found.fault}")
        yield of_fault(store, found, by_id.get(found.case), row.anchor, shrunk=smallest)


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


def _pictures(results: list[CaseResult], faults: list[FaultRow], anchors: dict[str, str]) -> list[Picture]:
    owners: list[tuple[CaseResult | FaultResult, str]] = [(result, anchors[result.key]) for result in results]
    owners += [(row.found, row.anchor) for row in faults]
    measured = [(record, owner) for result, owner in owners for record in accuracy_records([result])]
    # A fallen curve that nobody put there comes before the others.
    measured.sort(key=lambda pair: pair[0].verdict is not Verdict.FAIL or pair[0].fault is not None)
    return [
        Picture(record, owner, accuracy_title(record), model_sentence(record), chart(record), grid(record.grid))
        for record, owner in measured[:MAX_PICTURES]
    ]


def _scenarios(results: list[CaseResult]) -> list[ScenarioLine]:
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        groups.setdefault(result.scenario, []).append(result)
    lines = [
        ScenarioLine(name, group[0].refs, totals(group), sum(result.seconds for result in group))
        for name, group in groups.items()
    ]
    return sorted(lines, key=lambda line: not any(line.counts[verdict.value] for verdict in BAD))


def _facts(store: RunStore) -> list[tuple[str, str]]:
    """The environment as name and text; a missing package reads `not installed`."""
    source = store.plan.source
    facts = {"run": store.plan.run_id, "command": store.plan.command, "started": store.plan.started}
    if source.commit:
        changed = ", with changes that are not committed" if source.changes else ""
        facts["commit"] = source.commit + (f" on {source.branch}" if source.branch else "") + changed
    lost = [result for result in store.results() if result.lost_nodes]
    if lost:
        nodes = dict.fromkeys(node for result in lost for node in result.lost_nodes)
        facts["planned again"] = f"{num(len(lost), 'case')} after the loss of {', '.join(nodes)}"
    lines = []
    for name, value in {**facts, **store.plan.environment}.items():
        if value == "":
            continue
        if name == "gpus":
            value = ", ".join(f"{gpu['name']} (sm {gpu['capability']})" for gpu in value) or "none"
        elif name == "engines":
            value = ", ".join(f"{engine} {version}" for engine, version in value.items()) or "none"
        lines.append((name.replace("_", " "), "not installed" if value is None else str(value)))
    return lines
