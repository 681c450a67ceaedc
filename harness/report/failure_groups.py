"""Failures that look alike told once: of a matrix, one cause fails many cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.oracles import most_telling_first
from harness.core.records import Blame, CaseResult
from harness.report.wording import one_line

MAX_SENTENCE = 360


@dataclass(frozen=True, slots=True)
class Member:
    """One case of a group."""

    anchor: str
    id: str


@dataclass(frozen=True, slots=True)
class Group:
    """Cases of one scenario that failed by the same oracles on the same tensor, blaming the same memory."""

    verdict: str
    scenario: str
    sentence: str
    oracles: tuple[str, ...]
    sites: tuple[str, ...]
    refs: tuple[str, ...]
    fault: str | None
    members: tuple[Member, ...]


def failure_groups(results: Sequence[CaseResult], blames: dict[str, Blame], anchors: dict[str, str]) -> list[Group]:
    """The groups in the order of their first case; `results` are bad ones."""
    found: dict[tuple[object, ...], list[CaseResult]] = {}
    for result in results:
        found.setdefault(_likeness(result, blames.get(result.key)), []).append(result)
    return [_group(results, blames.get(results[0].key), anchors) for results in found.values()]


def _likeness(result: CaseResult, blame: Blame | None) -> tuple[object, ...]:
    ordered = most_telling_first(result.findings)
    first = (ordered[0].oracle, ordered[0].tensor) if ordered else ("", one_line(result.reason, 80))
    return (result.verdict, result.scenario, result.fault, *first, blame.sites if blame else ())


def _group(results: list[CaseResult], blame: Blame | None, anchors: dict[str, str]) -> Group:
    first = results[0]
    ordered = most_telling_first(first.findings)
    sentence = ordered[0].message if ordered else first.reason
    named = tuple(dict.fromkeys(finding.site for finding in ordered if finding.site))
    return Group(
        verdict=first.verdict.value, scenario=first.scenario, sentence=one_line(sentence or first.reason, MAX_SENTENCE),
        oracles=tuple(dict.fromkeys(finding.oracle for finding in ordered)),
        sites=blame.sites if blame and blame.sites else named, refs=first.refs, fault=first.fault,
        members=tuple(Member(anchors[result.key], result.id) for result in results),
    )  # fmt: skip
