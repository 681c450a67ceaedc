"""Failures by root cause: one block for each kernel, memory to blame and first writer, across
scenarios.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.cases import Case, Job
from harness.core.catalog import most_telling_first
from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.records import FAILED, Blame, CaseResult, Shrunk, Verdict
from harness.report.wording import num, one_line, reproduce, reproduce_case

_NOT_FINITE = frozenset(("finite", "sentinel"))
_LABEL = re.compile(r"[\[,]kernel=([^],]+)")


@dataclass(slots=True)
class RootCause:
    """Failing cases of one kernel that show one symptom and blame the same memory.

    The clearest case comes first: the largest error by its power of ten, then the smallest case.
    """

    kernel: str
    """`op/name`, or the system of cases that name no kernel."""
    fault: str | None
    symptom: str
    writer: str = ""
    """The first writer of a value that is not finite, if one was recorded."""
    sites: set[str] = field(default_factory=set)
    """The memory to blame, found by trials, or else named by findings."""
    reached: set[str] = field(default_factory=set)
    """All memory that any of its cases blames."""
    members: list[CaseResult] = field(default_factory=list)
    blame: Blame | None = None
    num_blamed: int = 0

    @property
    def first(self) -> CaseResult:
        return self.members[0]

    @property
    def verdict(self) -> Verdict:
        return self.first.verdict

    @property
    def finding(self) -> Finding | None:
        return next(iter(most_telling_first(self.first.findings)), None)

    @property
    def sentence(self) -> str:
        return self.finding.message if self.finding else self.first.reason

    @property
    def scenarios(self) -> dict[str, int]:
        return dict(Counter(result.scenario for result in self.members).most_common())

    @property
    def oracles(self) -> dict[str, int]:
        """Oracle -> number of cases in which it has a finding."""
        return dict(
            Counter(
                name
                for one in self.members
                for name in {finding.oracle for finding in one.findings}
            ).most_common()
        )

    @property
    def title(self) -> str:
        """`mla_decode/mine: 163 cases of 27 scenarios`."""
        cases = num(len(self.members), "case")
        scenarios = num(len(self.scenarios), "scenario")
        fault = f" with {self.fault}" if self.fault else ""
        return f"{self.kernel}{fault}: {cases}" + (
            f" of {scenarios}" if len(self.members) > 1 else ""
        )

    @property
    def blame_line(self) -> str:
        """The memory to blame and in how many cases trials found it; empty if there is none to
        name.
        """
        if not self.sites:
            return one_line(self.blame.how) if self.blame else ""
        order = (*(self.blame.sites if self.blame else ()), *sorted(self.sites))
        found = ", ".join(site for site in dict.fromkeys(order) if site in self.sites)
        if self.blame is None:
            return f"{found} (named by the findings; no trials were made)"
        if not self.blame.is_decided:
            return f"{found} (named by the findings; {one_line(self.blame.how)})"
        rest = len(self.members) - self.num_blamed
        how = [one_line(self.blame.how)]
        if rest > 0 and self.num_blamed:
            them = "case fails alike and was" if rest == 1 else "cases fail alike and were"
            how.append(f"the other {rest} {them} not tried")
        return f"{found} ({'; '.join(filter(None, how))})"

    def takes(self, other: RootCause) -> bool:
        """Whether a failure has this cause.

        A failure that was not diagnosed has the first cause with its symptom.
        """
        # Sites alone would join two bugs that read the same memory; kernel and symptom alone, two
        # that read other memory.
        same = (self.kernel, self.fault, self.symptom) == (other.kernel, other.fault, other.symptom)
        is_writer = not other.writer or other.writer == self.writer or not self.writer
        return (
            same
            and is_writer
            and (not other.sites or not self.sites or bool(self.reached & other.sites))
        )


def causes(
    failed: Iterable[CaseResult], jobs: Mapping[str, Job], blames: Mapping[str, Blame]
) -> list[RootCause]:
    """The root causes of failed results, most cases first. `jobs` and `blames` are by job key."""
    found: list[RootCause] = []
    decided = {key for key, blame in blames.items() if blame.is_decided}
    # Failures with a blame first: they make the causes, and those without one join them.
    for result in sorted(
        failed, key=lambda one: (one.key not in decided, one.key not in blames, not _sites(one))
    ):
        own = _cause_of(result, jobs[result.key].case, blames.get(result.key))
        cause = next((cause for cause in found if cause.takes(own)), None)
        if cause is None:
            found.append(own)
            continue
        cause.members.append(result)
        # A failure that was not recorded takes part in a cause whose writer is known.
        cause.writer = cause.writer or own.writer
        if own.num_blamed:
            # One cause reaches more memory in a serving run, such as blocks that are newly given to
            # a request.
            cause.sites = cause.sites & own.sites or cause.sites
            cause.reached |= own.sites
            cause.num_blamed += 1
    for cause in found:
        cause.members.sort(
            key=lambda one: (not _sites(one), -_clearness(one), *_size(jobs[one.key].case))
        )
        # The example's own blame is shown with it, unless it tells less than another one.
        own_blame = blames.get(cause.first.key)
        if own_blame is not None and (
            own_blame.is_decided or cause.blame is None or not cause.blame.is_decided
        ):
            cause.blame = own_blame
    return sorted(found, key=lambda cause: (cause.verdict not in FAILED, -len(cause.members)))


def _cause_of(result: CaseResult, case: Case, blame: Blame | None) -> RootCause:
    is_decided = blame is not None and blame.is_decided
    sites = set(blame.sites) if blame is not None and is_decided else _sites(result)
    first = blame.first_nan if blame else None
    return RootCause(
        kernel=kernel_of(case),
        fault=result.fault,
        symptom=symptom_of(result),
        writer=first.writer if first else "",
        sites=sites,
        reached=set(sites),
        members=[result],
        blame=blame,
        num_blamed=int(is_decided),
    )


def _sites(result: CaseResult) -> set[str]:
    return {finding.site for finding in result.findings if finding.site}


def symptom_of(result: CaseResult) -> str:
    """`not finite`, the most telling oracle, or for a crash and an error its line of code and its
    cause.
    """
    oracles = [finding.oracle for finding in most_telling_first(result.findings)]
    if result.verdict is Verdict.FAIL and oracles:
        return "not finite" if _NOT_FINITE & {*oracles} else oracles[0]
    first = result.findings[0] if result.findings else None
    found = (first.at, first.cause, first.error) if first else (result.at, result.cause)
    return " ".join((result.verdict.value, *filter(None, found)))


def kernel_of(case: Case) -> str:
    """The kernel that the id of a case names, or the kernel of its op, or its system."""
    kernels = case.kernels().values()
    label = _LABEL.search(case.id)
    named = next(
        (name for name in kernels if label and label[1] in (name, name.partition("/")[2])), None
    )
    return named or next(
        (name for name in kernels if case.op and name.startswith(f"{case.op}/")), case.system
    )


def _clearness(result: CaseResult) -> int:
    """The power of ten of the largest error, as a multiple of its bound; 0 for findings without a
    bound.
    """
    return max(
        (round(math.log10(finding.excess)) for finding in result.findings if finding.excess),
        default=0,
    )


def _size(case: Case) -> tuple[bool, bool, int, str]:
    """What makes a case easy to look at: a call of one kernel, a contiguous cache, then few and
    small numbers.
    """
    numbers = re.findall(r"\d+", json.dumps(case.values()))
    return case.op is None, _is_strided(case), sum(map(int, numbers)), case.id


def _is_strided(case: Case) -> bool:
    return case.params.cache_layout != "contiguous"


def commands_for(
    cause: RootCause,
    jobs: Mapping[str, Job],
    options: dict[str, Any],
    smallest: Mapping[str, Shrunk],
) -> dict[str, str]:
    """Name -> command for the example of a cause, or for the smallest case that was found for
    it.
    """
    shrunk = next((smallest[one.key] for one in cause.members if one.key in smallest), None)
    again = (
        reproduce_case(shrunk.case.id, shrunk.fault, options)
        if shrunk
        else reproduce(cause.first, options)
    )
    words = {"smallest" if shrunk else "again": again}
    case = jobs[cause.first.key].case
    if case.kind.shows_launches and again.startswith("mla-harness run "):
        if not shrunk:
            words["shrink"] = again.replace(" run ", " shrink ", 1)
        if case.op and not _is_strided(case):
            words["script"] = again.replace(" run ", " repro ", 1) + " --script bug.py"
    return words


def facts(findings: Iterable[Finding]) -> list[tuple[Finding, tuple[str, ...]]]:
    """One finding for each fact, with the other oracles that see the same; the most telling first.

    Findings about one tensor are one fact, whatever the epoch. A finding that says only that a row
    has one value is left out where another one says which value.
    """
    ordered = most_telling_first(findings)
    telling = [finding for finding in ordered if finding.cause != Code.ONE_VALUE] or ordered
    groups: dict[str, list[Finding]] = {}
    for finding in telling:
        groups.setdefault(re.sub(r"\d+", "#", finding.tensor), []).append(finding)
    return [
        (
            group[0],
            tuple(dict.fromkeys(one.oracle for one in group if one.oracle != group[0].oracle)),
        )
        for group in groups.values()
    ]
