"""One case, or one fault put back, as its own view of the page shows it: everything that is known of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from harness.core.cases import Case, Job
from harness.core.engine_spec import engine_versions
from harness.core.oracles import most_telling_first
from harness.core.records import Blame, CaseResult, FaultResult, Finding, Shrunk, Verdict
from harness.report.bits import Meaning, explain
from harness.report.command import reproduce, show
from harness.report.diagram import Diagram, diagram
from harness.report.trend_chart import past_of
from harness.report.wording import first_nan_lines, num
from harness.store.run_folder import RunStore

if TYPE_CHECKING:
    from harness.store.history.runs import RunPoint
    from harness.store.history.trends import CaseTrend

MAX_FINDINGS = 25
"""Findings of one case that the page shows; results.jsonl has them all."""
MAX_TEXT = 2000
"""Characters of one message; results.jsonl has the whole."""


@dataclass(frozen=True, slots=True)
class FindingView:
    """A finding with what its bits mean."""

    finding: Finding
    meanings: tuple[Meaning, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that diagnosis found out about a failure, with the command that shows it, where there is one."""

    name: str
    text: str
    command: str = ""
    steps: tuple[tuple[str, str, str], ...] = ()
    """What was reduced, from what, to what."""


@dataclass(frozen=True, slots=True)
class CaseView:
    """All that a case's view shows. A fault that was put back has one too, and then no job may be known."""

    anchor: str
    id: str
    verdict: str
    word: str
    reason: str
    refs: tuple[str, ...]
    fault: str | None
    findings: tuple[FindingView, ...]
    num_hidden: int
    bits: tuple[Meaning, ...]
    blame: Blame | None
    diagram: Diagram | None
    diagnosis: tuple[Fact, ...]
    facts: tuple[tuple[str, str], ...]
    params: tuple[tuple[str, str], ...]
    command: str
    show_command: str
    log: str
    seconds: float


def of_result(
    store: RunStore,
    result: CaseResult,
    job: Job,
    anchor: str,
    *,
    blame: Blame | None = None,
    shrunk: Shrunk | None = None,
    trend: CaseTrend | None = None,
    runs: Sequence[RunPoint] = (),
) -> CaseView:
    """The view of a case that ran."""
    return CaseView(
        anchor=anchor, id=result.id, verdict=result.verdict.value, word=result.verdict.value, reason=result.reason,
        refs=result.refs, fault=result.fault, blame=blame,
        diagram=diagram(blame, result.findings, case=job.case, fault=result.fault, judged=result.looked_at),
        diagnosis=(*diagnosis(result.findings, shrunk, store, blame), *_past(trend, runs)),
        facts=facts(job, result, store.plan.environment), params=params(job.case),
        command=reproduce(result, store.plan.options), show_command=show(result.id, store.plan.options), log=result.log,
        seconds=result.seconds, **_seen(result.findings),
    )  # fmt: skip


def of_fault(
    store: RunStore, found: FaultResult, job: Job | None, anchor: str, *, shrunk: Shrunk | None = None
) -> CaseView:
    """The view of a fault that was put back: how it was caught, or that it was not."""
    blame = Blame(sites=found.blamed, how=found.how) if found.blamed or found.how else None
    again = CaseResult(
        key=found.case, id=found.case, scenario=found.scenario, fault=found.fault, verdict=Verdict.FAIL
    )  # fmt: skip
    expected = f"{found.expected_by}, blaming {', '.join(found.expected_blame) or 'no site'}"
    return CaseView(
        anchor=anchor, id=found.case, verdict="pass" if found.caught else "fail",
        word="caught" if found.caught else "missed", reason=found.reason, refs=(found.ref,) if found.ref else (),
        fault=found.fault, blame=blame,
        diagram=diagram(blame, found.findings, case=job.case if job else None, fault=found.fault,
            scenario=found.scenario),
        diagnosis=diagnosis(found.findings, shrunk, store), facts=(("expected", expected),),
        params=params(job.case) if job else (), command=reproduce(again, store.plan.options),
        show_command=show(found.case, store.plan.options), log="", seconds=found.seconds, **_seen(found.findings),
    )  # fmt: skip


def diagnosis(
    findings: Iterable[Finding], shrunk: Shrunk | None, store: RunStore, blame: Blame | None = None
) -> tuple[Fact, ...]:
    """What is known beyond the findings: the primary one, who wrote and who read first, the smallest failing case.

    This is the place for further facts of a diagnosis.
    """
    found = []
    ordered = most_telling_first(findings)
    if ordered:
        first = ordered[0]
        where = f" at {first.where}" if first.where else ""
        found.append(Fact("most telling finding", f"{first.oracle} on {first.tensor or 'the worker'}{where}"))
    for line in first_nan_lines(blame):
        name, _, text = line.partition(": ")
        found.append(Fact(name, text[:MAX_TEXT]))
    if shrunk:
        again = CaseResult(
            key=shrunk.case.id, id=shrunk.case.id, scenario=shrunk.case.scenario, fault=shrunk.fault,
            verdict=Verdict.FAIL,
        )  # fmt: skip
        ending = "no smaller case fails alike" if shrunk.is_smallest else "the time was up before all were tried"
        text = f"{num(len(shrunk.steps), 'step')}, {num(shrunk.num_trials, 'trial')}, {shrunk.seconds:.1f} s; {ending}"
        steps = tuple((step.what, step.before, step.after) for step in shrunk.steps)
        found.append(Fact("smallest failing case", text, reproduce(again, store.plan.options), steps))
    return tuple(found)


def _past(trend: CaseTrend | None, runs: Sequence[RunPoint]) -> tuple[Fact, ...]:
    return (Fact("in earlier runs", past_of(trend, runs)),) if trend and len(trend.verdicts) > 1 else ()


def facts(job: Job, result: CaseResult, environment: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What was poisoned and looked at, and where, by name."""
    poison, sites = job.case.poison, job.sites if job.sites is not None else job.case.poison.sites
    looked = ", ".join(f"{name} {count:,}" for name, count in result.looked_at.items())
    return tuple(
        (name, text)
        for name, text in (
            ("system", f"{job.case.system} on {job.device}"),
            ("poison", ", ".join(poison.patterns) + (", strict" if poison.strict else "")),
            ("poisoned sites", ", ".join(sites) or "none"),
            ("elements judged", looked),
            ("planned again after the loss of", ", ".join(result.lost_nodes)),
            ("tags", ", ".join(job.case.tags)),
            ("seed", str(job.case.seed)),
            ("environment", machine(environment)),
        )
        if text
    )


def machine(environment: dict[str, Any]) -> str:
    """What a failure depends on of the machine, in a few words."""
    gpus = ", ".join(gpu["name"] for gpu in environment.get("gpus") or ())
    versions = {name: environment.get(name) for name in ("python", "torch", "triton")} | engine_versions(environment)
    words = [f"{name} {version}" for name, version in versions.items() if version]
    return ", ".join([*words, gpus or str(environment.get("cpu") or "")])


def params(case: Case) -> tuple[tuple[str, str], ...]:
    """The parameters that were given, as text."""
    return tuple((name, json.dumps(value)) for name, value in case.values().items() if value is not None)


class _Seen(TypedDict):
    findings: tuple[FindingView, ...]
    num_hidden: int
    bits: tuple[Meaning, ...]


def _seen(findings: tuple[Finding, ...]) -> _Seen:
    shown = [FindingView(_cut(finding), explain(finding.bits)) for finding in findings[:MAX_FINDINGS]]
    every = {(meaning.bits, meaning.dtype): meaning for view in shown for meaning in view.meanings}
    return {
        "findings": tuple(shown),
        "num_hidden": max(0, len(findings) - MAX_FINDINGS),
        # Numbers explain themselves where they stand; the table is for patterns.
        "bits": tuple(meaning for meaning in every.values() if meaning.kind != "number"),
    }


def _cut(finding: Finding) -> Finding:
    return finding.model_copy(update={"message": finding.message[:MAX_TEXT], "where": finding.where[:MAX_TEXT]})
