"""The view of one case, or of one injected fault, on the page, and the data of the script for cases
without a view.
"""

from __future__ import annotations

import base64
import gzip
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.cases import Case, Job
from harness.core.catalog import most_telling_first
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, FaultResult, Shrunk, Verdict
from harness.core.systems import engine_versions
from harness.report.causes import facts as facts_of
from harness.report.run_view import RunView
from harness.report.wording import (
    expected_of,
    fault_word,
    first_nan_lines,
    one_line,
    outcome_line,
    printable,
    reproduce,
    reproduce_case,
    show,
)

MAX_FINDINGS = 25
"""Findings of one case that the page shows; results.jsonl has them all."""
MAX_TEXT = 2000
"""Characters of one message; results.jsonl has the whole."""
HEAD = "mla-harness run "
MAX_MESSAGE = 300
"""Characters of the primary finding that the script shows; results.jsonl has the whole."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One result of a diagnosis, with the command that shows it if there is one."""

    name: str
    text: str
    command: str = ""
    steps: tuple[tuple[str, str, str], ...] = ()
    """What was reduced, from what, to what."""


@dataclass(frozen=True, slots=True)
class CaseView:
    """What the view of a case or of an injected fault shows.

    The template adds the fields of `result`.
    """

    anchor: str
    result: CaseResult
    word: str
    """What the badge says: the verdict, or what became of the fault."""
    blame: Blame | None
    diagnosis: tuple[Fact, ...]
    facts: tuple[tuple[str, str], ...]
    params: tuple[tuple[str, str], ...]
    command: str
    show_command: str

    @property
    def refs(self) -> list[str]:
        known = (self.result.known.issue,) if self.result.known else ()
        return list(dict.fromkeys((*self.result.refs, *known)))

    @property
    def findings(self) -> list[tuple[Finding, tuple[str, ...]]]:
        """The facts that are shown, each with the other oracles that see it."""
        return [
            (finding.but(message=finding.message[:MAX_TEXT], where=finding.where[:MAX_TEXT]), also)
            for finding, also in facts_of(self.result.findings)[:MAX_FINDINGS]
        ]

    @property
    def num_hidden(self) -> int:
        return max(0, len(facts_of(self.result.findings)) - MAX_FINDINGS)


def of_result(view: RunView, result: CaseResult, anchor: str) -> CaseView:
    """The view of a case that ran."""
    job = view.jobs[result.key]
    blame = view.blames.get(result.key)
    options = view.plan.options
    return CaseView(
        anchor=anchor,
        result=result,
        word=result.verdict.value,
        blame=blame,
        diagnosis=diagnosis(result, view.shrunk.get(result.key), options, blame),
        facts=facts(job, result, view.plan.environment),
        params=params(job.case),
        command=view.command(result),
        show_command=show(result.id, options),
    )


def of_fault(view: RunView, found: FaultResult, case: Case | None, anchor: str) -> CaseView:
    """The view of an injected fault. `case` is None when the plan does not hold it."""
    result = CaseResult(
        key=f"{found.case}!{found.fault}",
        id=found.case,
        refs=(found.ref,) if found.ref else (),
        verdict=Verdict.PASS if found.caught else Verdict.FAIL,
        **{
            name: getattr(found, name)
            for name in ("scenario", "fault", "seconds", "reason", "findings")
        },
    )
    return CaseView(
        anchor=anchor,
        result=result,
        word=fault_word(found.outcome),
        blame=Blame(sites=found.blamed, how=found.how) if found.blamed or found.how else None,
        diagnosis=diagnosis(result, view.shrunk.get(result.key), view.plan.options),
        facts=(("expected", expected_of(found)),),
        params=params(case) if case else (),
        command=view.command(result),
        show_command=show(found.case, view.plan.options),
    )


def diagnosis(
    result: CaseResult, shrunk: Shrunk | None, options: dict[str, Any], blame: Blame | None = None
) -> tuple[Fact, ...]:
    """The known failure, the most telling finding, the first writer and reader, and the smallest
    failing case.
    """
    entry = result.known
    found = [Fact("known failure", f"{entry.issue} in {entry.where}")] if entry else []
    for first in most_telling_first(result.findings)[:1]:
        where = f" at {first.where}" if first.where else ""
        found.append(
            Fact("most telling finding", f"{first.oracle} on {first.tensor or 'the worker'}{where}")
        )
    for line in first_nan_lines(blame):
        name, _, text = line.partition(": ")
        found.append(Fact(name, text[:MAX_TEXT]))
    if shrunk:
        steps = tuple((step.what, step.before, step.after) for step in shrunk.steps)
        again = reproduce_case(shrunk.case.id, shrunk.fault, options)
        found.append(Fact("smallest failing case", outcome_line(shrunk), again, steps))
    return tuple(found)


def facts(job: Job, result: CaseResult, environment: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What was poisoned and judged, and on which machine, as names and texts."""
    poison = job.case.poison
    named = {
        "system": f"{job.case.system} on {job.kernel_device}",
        "poison": ", ".join(poison.patterns) + (", strict" if poison.strict else ""),
        "filled": ", ".join(f"{site} {count:,} bytes" for site, count in result.filled.items()),
        "sites to fill": "" if result.filled else ", ".join(job.poisoned_sites) or "none",
        "elements judged": ", ".join(
            f"{name} {count:,}" for name, count in result.looked_at.items()
        ),
        "planned again after the loss of": ", ".join(result.lost_nodes),
        "tags": ", ".join(job.case.tags),
        "seed": str(job.case.seed),
        "environment": machine(environment),
    }
    return tuple((name, text) for name, text in named.items() if text)


def machine(environment: dict[str, Any]) -> str:
    """Versions and devices that a failure depends on, in one line."""
    gpus = ", ".join(gpu["name"] for gpu in environment.get("gpus") or ())
    versions = {
        name: environment.get(name) for name in ("python", "torch", "triton")
    } | engine_versions(environment)
    words = [
        f"{name} {version}"
        for name, version in (versions | environment.get("variables", {})).items()
        if version
    ]
    return ", ".join([*words, gpus or str(environment.get("cpu") or "")])


def params(case: Case) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, json.dumps(value)) for name, value in case.values().items() if value is not None
    )


def case_data(
    pairs: Sequence[tuple[CaseResult, Job]], options: dict[str, Any], environment: dict[str, Any]
) -> dict[str, Any]:
    """`{texts, scenarios: {name: [[param, value]...]}, cases: [...]}`, the cases in the order of
    `pairs`.

    Each text stands once. Parameters that all cases of a scenario share stand with the scenario. A
    case is `[scenario, facts, params, command, finding, search]`. All but the scenario are places
    in `texts`: facts and params alternate names and values, and the command is its tail after the
    id, or negative for the whole command.
    """
    texts: dict[str, int] = {}

    def place(text: str) -> int:
        return texts.setdefault(printable(text), len(texts))

    def places(found: Iterable[tuple[str, str]]) -> list[int]:
        return [place(part) for pair in found for part in pair]

    common = _common_params(pairs)
    scenarios = {name: places(shared.items()) for name, shared in common.items()}
    names = list(scenarios)
    cases = []
    for result, job in pairs:
        own = [pair for pair in params(job.case) if common[result.scenario].get(pair[0]) != pair[1]]
        finding = one_line(result.findings[0].message, MAX_MESSAGE) if result.findings else ""
        command = reproduce(result, options)
        start = HEAD + shlex.quote(result.id)
        cases.append(
            [
                names.index(result.scenario),
                places(facts(job, result, environment)),
                places(own),
                place(command.removeprefix(start))
                if command.startswith(start)
                else -1 - place(command),
                place(finding),
                place(_words(result, job)),
            ]
        )
    return {"texts": list(texts), "scenarios": list(scenarios.items()), "cases": cases}


def embedded(data: dict[str, Any]) -> str:
    """The JSON of `data` for a script element.

    Its text cannot end the element or start a comment.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        # As escapes of JSON, which read the same. Two of them are ends of lines for older
        # JavaScript.
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def packed(text: str) -> str:
    """`text` as gzip in base64, which the script of the page unpacks."""
    # Without a time, the same page is the same bytes.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _common_params(pairs: Sequence[tuple[CaseResult, Job]]) -> dict[str, dict[str, str]]:
    """The parameters that all cases of a scenario share, by scenario."""
    counts: dict[str, Counter[tuple[str, str]]] = {}
    sizes = Counter(result.scenario for result, _ in pairs)
    for result, job in pairs:
        counts.setdefault(result.scenario, Counter()).update(params(job.case))
    return {
        name: dict(pair for pair, count in found.items() if count == sizes[name])
        for name, found in counts.items()
    }


def _words(result: CaseResult, job: Job) -> str:
    sites = {finding.site for finding in result.findings if finding.site}
    oracles = {finding.oracle for finding in result.findings}
    return " ".join(
        (*result.refs, *job.case.tags, *sorted(sites), *sorted(oracles), result.fault or "")
    ).lower()
