"""What the reports of one run show, worked out once: results, causes with commands, totals, skips,
the headline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from harness.core.cases import Job
from harness.core.cause_codes import Code
from harness.core.records import BAD, FAILED, AccuracyRecord, CaseResult, Verdict
from harness.report.causes import RootCause, causes, commands_for
from harness.report.wording import fault_problems, num, reproduce
from harness.store.coverage import Coverage
from harness.store.run_folder import RunStore
from harness.store.summary import accuracy_records, by_scenario, covered_by, totals

JUDGED = (Verdict.PASS, *FAILED, Verdict.KNOWN)
"""The verdicts of a case that was judged."""


class RunView:
    """One run for terminal, page, Markdown, JUnit and table.

    It reads each file of the run folder once.
    """

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.path = store.path
        self.plan = store.plan
        self.results = store.results()
        """One result for each planned case, in the order of the plan."""
        self.jobs = store.jobs_by_key()
        self.blames = store.blames()
        self.shrunk = store.shrunk()
        """The smallest failing cases by job key."""
        self.faults = store.faults()
        """The judged faults of a selftest."""
        self.num_unjudged = len(store.unfinished_controls())
        """The planned faults without a judgement: the run ended before, or what it stored is lost.
        """

    @cached_property
    def causes(self) -> list[tuple[RootCause, dict[str, str]]]:
        """The root causes of the failures, most cases first, each with the commands for its
        example.
        """
        bad = [result for result in self.results if result.verdict in BAD]
        options = self.plan.options
        found = causes(bad, self.jobs, self.blames)
        return [(cause, commands_for(cause, self.jobs, options, self.shrunk)) for cause in found]

    @cached_property
    def coverages(self) -> list[Coverage]:
        """What its calls showed of the conditions of each op: of all kernels, then of each."""
        return covered_by(self.store)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Verdict -> number of cases."""
        return totals(self.results)

    @cached_property
    def scenarios(self) -> dict[str, list[CaseResult]]:
        return by_scenario(self.results)

    @cached_property
    def known(self) -> list[CaseResult]:
        return [result for result in self.results if result.verdict is Verdict.KNOWN]

    @cached_property
    def num_not_run(self) -> int:
        return self.counts.get(Verdict.NOT_RUN.value, 0)

    @cached_property
    def skips(self) -> Counter[str]:
        """Reason -> number of cases that were skipped for it, cases with a fault included.

        Refusals are apart.
        """
        return skip_reasons([*self.results, *self.store.tried().values()])

    @cached_property
    def remarks(self) -> Counter[str]:
        """What plug-ins left behind or kept -> number of cases that pass with this remark."""
        said = (Code.RESTORED, Code.KEPT)
        return Counter(one.reason for one in self.results if one.cause in said)

    @cached_property
    def refusals(self) -> Counter[str]:
        """The words of a kernel that refused cases -> number of these cases, cases with a fault
        included.
        """
        return refusals([*self.results, *self.store.tried().values()])

    @cached_property
    def lost(self) -> list[CaseResult]:
        """The cases that a cluster planned again after it lost their node."""
        return [result for result in self.results if result.lost_nodes]

    @cached_property
    def accuracy(self) -> list[AccuracyRecord]:
        """The measurements of cases, then those with faults."""
        return accuracy_records([*self.results, *self.faults])

    def command(self, result: CaseResult) -> str:
        return reproduce(result, self.plan.options)

    @cached_property
    def headline(self) -> tuple[str, str]:
        """The verdict of the run in one sentence, and its colour: a verdict's name."""
        if self.plan.trials:
            return "Mutants were tried: mutants.jsonl has them", "pass"
        counts = self.counts
        num_faults = len(self.faults)
        uncaught = fault_problems(self.faults)
        bad = counts["fail"] + counts["crash"]
        num_known = counts.get("known", 0)
        if bad:
            also = f", and {uncaught}" if uncaught else ""
            return f"{bad} {'case fails' if bad == 1 else 'cases fail'}{also}", "fail"
        if uncaught:
            return uncaught, "fail"
        if counts["error"]:
            return (
                f"{counts['error']} could not be judged: this run proves nothing about them",
                "error",
            )
        if self.num_not_run:
            return (
                f"{num(self.num_not_run, 'case')} not run: this run proves nothing about them",
                "error",
            )
        if self.num_unjudged:
            return (
                f"{num(self.num_unjudged, 'fault')} not judged: this run proves nothing about them",
                "error",
            )
        if num_known and not counts["pass"]:
            return f"Nothing passed: {num(num_known, 'case')} failed as known", "known"
        if not counts["pass"]:
            if num_faults and not counts["skip"]:
                return f"All {num_faults} faults were caught", "pass"
            powerless = sum(result.cause == Code.POWERLESS for result in self.results)
            if powerless:
                return (
                    f"Nothing was shown: {num(powerless, 'measurement')} could have seen no loss",
                    "skip",
                )
            if num_refused := self.refusals.total():
                return f"Nothing was judged: the kernel refused {num(num_refused, 'case')}", "skip"
            return "Nothing ran: every case was skipped", "skip"
        caught = f", and all {num_faults} faults were caught" if num_faults else ""
        if num_known:
            return (
                f"{num(counts['pass'], 'case')} passed, {num_known} failed as known{caught}",
                "pass",
            )
        ran = (
            f"All {counts['pass']} cases that ran pass"
            if counts["pass"] > 1
            else "The one case that ran passes"
        )
        num_refused = self.refusals.total()
        refused = f", and the kernel refused {num_refused}" if num_refused else ""
        return f"{ran}{caught}{refused}", "pass"


def skip_reasons(results: Iterable[CaseResult]) -> Counter[str]:
    """Reason -> number of results that were skipped for it, those that a kernel refused left
    out.
    """
    return Counter(
        one.reason for one in results if one.verdict is Verdict.SKIP and not one.is_refused
    )


def unjudged_kernels(results: Iterable[CaseResult], jobs: Mapping[str, Job]) -> list[str]:
    """The kernels, as `op/name`, that refused a case and had no case judged.

    The ids of cases name them.
    """
    verdicts: dict[str, set[Verdict]] = {}
    refusing = set()
    for result in results:
        case = jobs[result.key].case
        for name in (case.kernels()[field] for field in case.named):
            verdicts.setdefault(name, set()).add(result.verdict)
            refusing |= {name} if result.is_refused else set()
    return sorted(name for name in refusing if verdicts[name] == {Verdict.SKIP})


def refusals(results: Iterable[CaseResult]) -> Counter[str]:
    """The words of a kernel that refused cases -> number of these results."""
    return Counter(result.reason for result in results if result.is_refused)
