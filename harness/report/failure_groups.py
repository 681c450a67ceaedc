"""Failures that look alike in one group: one cause fails many cases of a matrix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.oracles import most_telling_first
from harness.core.records import Blame, CaseResult
from harness.report.wording import one_line

MAX_SENTENCE = 360


@dataclass(frozen=True, slots=True)
class Group:
    """Cases of one scenario that failed by the same oracles on the same tensor, blaming the same memory."""

    members: tuple[CaseResult, ...]
    sentence: str
    oracles: tuple[str, ...]
    sites: tuple[str, ...]


def failure_groups(failed: Iterable[CaseResult], blames: dict[str, Blame]) -> list[Group]:
    """The groups in the order of their first case. `blames` are by job key."""
    found: dict[tuple[object, ...], list[CaseResult]] = {}
    for result in failed:
        found.setdefault(_likeness(result, blames.get(result.key)), []).append(result)
    return [_group(results, blames.get(results[0].key)) for results in found.values()]


def _likeness(result: CaseResult, blame: Blame | None) -> tuple[object, ...]:
    ordered = most_telling_first(result.findings)
    first = (ordered[0].oracle, ordered[0].tensor) if ordered else ("", one_line(result.reason, 80))
    return (result.verdict, result.scenario, result.fault, *first, blame.sites if blame else ())


def _group(results: list[CaseResult], blame: Blame | None) -> Group:
    first = results[0]
    ordered = most_telling_first(first.findings)
    named = tuple(dict.fromkeys(finding.site for finding in ordered if finding.site))
    return Group(
        members=tuple(results),
        sentence=one_line((ordered[0].message if ordered else "") or first.reason, MAX_SENTENCE),
        oracles=tuple(dict.fromkeys(finding.oracle for finding in ordered)),
        sites=blame.sites if blame and blame.sites else named,
    )
