"""`report.html`: one file, no network, readable in a year. The template only lays out what is prepared here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.records import AccuracyRecord, Blame, CaseResult, EpochAccuracy, FaultResult, Finding, Job, Verdict
from harness.report.accuracy_chart import Chart, Grid, chart, grid
from harness.report.command import reproduce, show
from harness.report.wording import accuracy_title, describe_faulty, model_sentence, printable
from harness.results.store import RunStore
from harness.results.summary import accuracy_records, totals

VERDICT_WORDS = {
    Verdict.PASS: "passed",
    Verdict.FAIL: "failed",
    Verdict.CRASH: "crashed",
    Verdict.SKIP: "skipped",
    Verdict.ERROR: "could not be judged",
}
MAX_FINDINGS = 25
"""Findings of one case that the page shows; results.jsonl has them all."""
MAX_PICTURES = 40
"""Measurements of accuracy that the page draws; results.csv has them all."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case as the page shows it."""

    result: CaseResult
    job: Job
    blame: Blame | None
    findings: tuple[Finding, ...]
    num_hidden: int
    command: str
    show_command: str
    search: str

    @property
    def is_bad(self) -> bool:
        """Whether somebody should look at it."""
        return self.result.verdict in (Verdict.FAIL, Verdict.CRASH, Verdict.ERROR)

    @property
    def params(self) -> list[tuple[str, str]]:
        """The parameters that were given, as text."""
        return [(name, json.dumps(value)) for name, value in self.job.case.params.items() if value is not None]


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
    title: str
    sentence: str
    chart: Chart | None
    grid: Grid | None

    def describe(self, epoch: EpochAccuracy) -> str:
        """What could not be used of an epoch."""
        return describe_faulty(epoch)


def render(store: RunStore) -> str:
    """The page of a run."""
    results = store.results()
    rows = _rows(store, results)
    counts, records = totals(results), accuracy_records([*results, *store.faults()])
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_clean,
    )  # fmt: skip
    environment.filters["ref_url"] = ref_url
    return environment.get_template("page.html").render(
        plan=store.plan,
        counts=counts,
        num_cases=len(results),
        headline=headline(counts, store.faults()),
        words={verdict.value: word for verdict, word in VERDICT_WORDS.items()},
        scenarios=_scenarios(results),
        rows=rows,
        bad_rows=[row for row in rows if row.is_bad],
        faults=store.faults(),
        pictures=[_picture(record) for record in records[:MAX_PICTURES]],
        num_hidden_pictures=max(0, len(records) - MAX_PICTURES),
        facts=_facts(store),
    )


def _picture(record: AccuracyRecord) -> Picture:
    title, sentence = accuracy_title(record), model_sentence(record)
    return Picture(record, title, sentence, chart(record), grid(record.grid))


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
    if not counts["pass"]:
        return "Nothing ran: every case was skipped", "skip"
    caught = f", and all {len(faults)} faults were caught" if faults else ""
    return f"All {counts['pass']} cases that ran pass{caught}", "pass"


def ref_url(ref: str) -> str:
    """The address of `owner/name#number` on GitHub."""
    repository, _, number = ref.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def _clean(value: Any) -> Any:
    """What Jinja calls on each value before escaping it."""
    return printable(value) if type(value) is str else value


def _rows(store: RunStore, results: list[CaseResult]) -> list[Row]:
    blames, jobs = store.blames(), store.jobs_by_key()
    return [_row(store, result, jobs[result.key], blames.get(result.key)) for result in results]


def _row(store: RunStore, result: CaseResult, job: Job, blame: Blame | None) -> Row:
    sites = {finding.site for finding in result.findings if finding.site} | set(blame.sites if blame else ())
    oracles = {finding.oracle for finding in result.findings}
    words = (result.id, *result.refs, *job.case.tags, *sorted(sites), *sorted(oracles), result.fault or "")
    return Row(
        result=result, job=job, blame=blame, findings=result.findings[:MAX_FINDINGS],
        num_hidden=max(0, len(result.findings) - MAX_FINDINGS), command=reproduce(result, store.plan.options),
        show_command=show(result.id), search=" ".join(words).lower(),
    )  # fmt: skip


def _scenarios(results: list[CaseResult]) -> list[ScenarioLine]:
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        groups.setdefault(result.scenario, []).append(result)
    return [
        ScenarioLine(name, group[0].refs, totals(group), sum(result.seconds for result in group))
        for name, group in groups.items()
    ]


def _facts(store: RunStore) -> list[tuple[str, str]]:
    """The environment as name and text; a missing package reads `not installed`."""
    facts = {"run": store.plan.run_id, "command": store.plan.command, **store.plan.environment}
    lines = []
    for name, value in facts.items():
        if name == "gpus":
            value = ", ".join(f"{gpu['name']} (sm {gpu['capability']})" for gpu in value) or "none"
        lines.append((name.replace("_", " "), "not installed" if value is None else str(value)))
    return lines
