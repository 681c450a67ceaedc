"""The data of the page's script, as compact JSON: what it shows of cases without a view in the markup.

Each text stands once, and a case holds its place in the list of texts. Parameters that all cases of a scenario share
stand with the scenario.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from harness.core.cases import Job
from harness.core.records import CaseResult
from harness.report.case_view import facts, params
from harness.report.command import reproduce
from harness.report.wording import one_line, printable

HEAD = "mla-harness run "
MAX_MESSAGE = 300
"""Characters of the primary finding that the script shows; results.jsonl has the whole."""


def case_data(
    pairs: Sequence[tuple[CaseResult, Job]], options: dict[str, Any], environment: dict[str, Any]
) -> dict[str, Any]:
    """`{texts, scenarios: {name: [[param, value]...]}, cases: [...]}`, the cases in the order of `pairs`.

    A case is `[scenario, facts, params, command, finding, search]`. All but the scenario are places in `texts`: facts
    and params alternate names and values, and the command is its tail after the id, or negative for the whole command.
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
        command, start = reproduce(result, options), HEAD + shlex.quote(result.id)
        cases.append(
            [
                names.index(result.scenario),
                places(facts(job, result, environment)),
                places(own),
                place(command.removeprefix(start)) if command.startswith(start) else -1 - place(command),
                place(finding),
                place(_words(result, job)),
            ]
        )
    return {"texts": list(texts), "scenarios": list(scenarios.items()), "cases": cases}


def embedded(data: dict[str, Any]) -> str:
    """The JSON of `data` for a script element. Its text cannot end the element or start a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _common_params(pairs: Sequence[tuple[CaseResult, Job]]) -> dict[str, dict[str, str]]:
    """The parameters that all cases of a scenario share, by scenario."""
    counts: dict[str, Counter[tuple[str, str]]] = {}
    sizes = Counter(result.scenario for result, _ in pairs)
    for result, job in pairs:
        counts.setdefault(result.scenario, Counter()).update(params(job.case))
    return {name: dict(pair for pair, count in found.items() if count == sizes[name]) for name, found in counts.items()}


def _words(result: CaseResult, job: Job) -> str:
    """Further words that the search finds."""
    sites = {finding.site for finding in result.findings if finding.site}
    oracles = {finding.oracle for finding in result.findings}
    return " ".join((*result.refs, *job.case.tags, *sorted(sites), *sorted(oracles), result.fault or "")).lower()
