"""A failing case as a script: the first text that fails with the bug and passes without it."""

from __future__ import annotations

import dataclasses

from harness.core.cases import Case, Job
from harness.core.catalog import FAULTS
from harness.core.errors import HarnessError
from harness.core.records import CaseResult, Finding, Shrunk, Verdict
from harness.diagnose.failing_case import comes_from
from harness.diagnose.script.check import Check, check
from harness.diagnose.script.render import Export, Story, render, why_of
from harness.run.environment import Environment
from harness.run.planning import Wanted, load
from harness.scenario.expand import fault_cases
from harness.scenario.selection import selects_scenario


def with_fault(wanted: Wanted) -> Wanted:
    """`wanted` with the known bug of its selector, if it names no bug and no kernel."""
    if wanted.fault or wanted.kernel or wanted.plugins:
        return wanted
    (selector,) = wanted.selectors
    declared = [
        (use.name, case.id)
        for scenario in load(wanted)
        if selects_scenario(selector, scenario) or selector.partition("[")[0] == scenario.name
        for use, case in fault_cases(scenario, seed=wanted.seed)
        if case.kind.shows_launches
    ]
    here = [fault for fault, identity in declared if identity == selector]
    own = [fault for fault, _ in declared if comes_from(selector, fault)]
    first = next(iter([*here, *own, *(fault for fault, _ in declared)]), None)
    return dataclasses.replace(wanted, fault=first)


def first_that_shows(
    job: Job, result: CaseResult, shrunk: Shrunk, environment: Environment, *, is_pytest: bool
) -> tuple[str, Case, Check]:
    """The script of the smallest case, or else of the original case, with the case and its check.

    Raises HarnessError if neither script fails with the bug and passes without it.
    """
    problems = []
    for case, steps in ((shrunk.case, len(shrunk.steps)), (job.case, 0)):
        story = _story(job, case, _telling(result, shrunk), environment, steps)
        try:
            text = render(Export(case, job.fault, story, device=job.device, is_pytest=is_pytest))
        except HarnessError as error:
            problems.append(error)
            continue
        done = check(text, may_crash=result.verdict is Verdict.CRASH, is_pytest=is_pytest)
        if done.holds:
            return text, case, done
        problems.append(HarnessError(f"{case.id}: no script is written, as it does not show the bug: {done.sentence}"))
    raise problems[-1]


def _telling(result: CaseResult, shrunk: Shrunk) -> Finding:
    """The clearest finding for readers outside of this project: about values, if there is one."""
    found = [shrunk.finding, *result.findings]
    return next((finding for finding in found if finding.oracle in ("finite", "sentinel", "reference")), found[0])


def _story(job: Job, case: Case, finding: Finding, environment: Environment, steps: int) -> Story:
    fault = FAULTS.get(job.fault) if job.fault else None
    title = fault.summary if fault else finding.message
    triton = environment.triton if job.device == "cuda" else None
    packages = {"torch": environment.torch, "triton": triton, **environment.engines}
    versions = [f"{name} {version}" for name, version in packages.items() if version]
    where = environment.gpus[0].name if job.device == "cuda" and environment.gpus else "a CPU"
    return Story(
        title=f"{title[:1].upper()}{title[1:]}.",
        refs=(fault.ref,) if fault else (),
        why=why_of(job.case.scenario, job.fault),
        case=case.id,
        finding=finding.message if fault else "",
        steps=steps,
        versions=f"{', '.join(versions)}, Python {environment.python}, on {where} ({environment.platform})",
    )
