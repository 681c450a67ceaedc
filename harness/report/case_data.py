"""What the page's script shows of the cases that have no view of their own in the markup, as compact JSON.

Two thousand cases say the same things again and again, so each text stands once, and a case holds its place in the
list of texts; parameters that a scenario's cases share stand with the scenario.
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


class Texts:
    """Each text once; a text's number is its place."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """The number of `text`."""
        return self.places.setdefault(printable(text), len(self.places))

    def places_of(self, pairs: Iterable[tuple[str, str]]) -> list[int]:
        """The numbers of names and values by turns."""
        return [self.place(part) for pair in pairs for part in pair]


def case_data(
    pairs: Sequence[tuple[CaseResult, Job]], options: dict[str, Any], environment: dict[str, Any]
) -> dict[str, Any]:
    """`{texts, scenarios: {name: [[param, value]...]}, cases: [...]}`, the cases in the order of `pairs`.

    A case is `[scenario, facts, params, command, finding, search]`, each of them numbers of texts: facts and params
    by turns a name and a value, the command its tail after the id (or, negative, the whole of it).
    """
    texts = Texts()
    common = _common_params(pairs)
    scenarios = {
        name: [texts.place(part) for pair in shared.items() for part in pair] for name, shared in common.items()
    }
    names = list(scenarios)
    cases = []
    for result, job in pairs:
        own = [pair for pair in params(job.case) if common[result.scenario].get(pair[0]) != pair[1]]
        finding = one_line(result.findings[0].message, MAX_MESSAGE) if result.findings else ""
        cases.append(
            [
                names.index(result.scenario),
                texts.places_of(facts(job, result, environment)),
                texts.places_of(own),
                _command(result, options, texts),
                texts.place(finding),
                texts.place(_words(result, job)),
            ]
        )
    return {"texts": list(texts.places), "scenarios": list(scenarios.items()), "cases": cases}


def embedded(data: dict[str, Any]) -> str:
    """The JSON of `data` for a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _common_params(pairs: Sequence[tuple[CaseResult, Job]]) -> dict[str, dict[str, str]]:
    """Of each scenario the parameters that all of its cases have alike."""
    counts: dict[str, Counter[tuple[str, str]]] = {}
    sizes = Counter(result.scenario for result, _ in pairs)
    for result, job in pairs:
        counts.setdefault(result.scenario, Counter()).update(params(job.case))
    return {name: dict(pair for pair, count in found.items() if count == sizes[name]) for name, found in counts.items()}


def _command(result: CaseResult, options: dict[str, Any], texts: Texts) -> int:
    command, start = reproduce(result, options), HEAD + shlex.quote(result.id)
    return texts.place(command.removeprefix(start)) if command.startswith(start) else -1 - texts.place(command)


def _words(result: CaseResult, job: Job) -> str:
    """What the search finds besides what the row shows."""
    sites = {finding.site for finding in result.findings if finding.site}
    oracles = {finding.oracle for finding in result.findings}
    return " ".join((*result.refs, *job.case.tags, *sorted(sites), *sorted(oracles), result.fault or "")).lower()
