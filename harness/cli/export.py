"""`mla-harness repro CASE --script FILE`: a failing case as a script of its own, checked before it is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from harness.cli.session import Wanted
    from harness.core.cases import Case, Job
    from harness.core.records import CaseResult, Finding, Shrunk
    from harness.diagnose.script.check import Check
    from harness.diagnose.script.render import Story
    from harness.run.environment import Environment
    from harness.run.runner import WorkerPool


def export(wanted: Wanted, pool: WorkerPool, console: Console, path: Path, *, is_pytest: bool, seconds: float) -> None:
    """Find the failure that `wanted` names, make it small, and write it to `path` once the script is seen to show it.

    Raises InputError when nothing fails or there is no script for it, HarnessError when a script does not fail with
    the bug and pass without.
    """
    from harness.cli.shrink import failing_candidates, first_failure
    from harness.core.errors import InputError
    from harness.core.files import write_atomic
    from harness.diagnose.shrink import shrink

    if path.suffix != ".py" or not path.absolute().parent.is_dir():
        raise InputError(f"--script {path}: give a file name that ends in .py, in a folder that exists")
    wanted = with_fault(wanted)
    with console.status("looking for a failing case"):
        job, result = first_failure(pool, failing_candidates(wanted, pool))
    told = f" with {job.fault}" if job.fault else ""
    console.print(f"{job.case.id}{told} fails", markup=False, soft_wrap=True)
    _refuse(job)
    with console.status("trying smaller cases") as status:
        shrunk = shrink(
            pool, job, result, seconds=seconds,
            on_step=lambda step: status.update(f"trying smaller cases: {step.what} is {step.after}"[:100]),
        )  # fmt: skip
    with console.status("running the script with and without the bug"):
        text, case, check = first_that_shows(job, result, shrunk, pool.start(), is_pytest=is_pytest)
    write_atomic(path, text)
    console.print(f"{path}: {text.count(chr(10))} lines, from {case.id}", markup=False, soft_wrap=True)
    console.print(check.sentence, markup=False, soft_wrap=True)


def with_fault(wanted: Wanted) -> Wanted:
    """`wanted` with the known bug that its selector is about, where no bug and no kernel are named."""
    from harness.cli.session import load
    from harness.core.catalog import FAULTS
    from harness.scenario.expand import fault_cases
    from harness.scenario.selection import selects_scenario

    if wanted.fault or wanted.kernel or wanted.plugins:
        return wanted
    (selector,) = wanted.selectors
    number = selector.rpartition("#")[2]
    declared = [
        (use.name, case.id)
        for scenario in load(wanted)
        if selects_scenario(selector, scenario) or selector.partition("[")[0] == scenario.name
        for use, case in fault_cases(scenario, seed=wanted.seed)
        if case.kind.shows_launches
    ]
    here = [fault for fault, identity in declared if identity == selector]
    own = [fault for fault, _ in declared if FAULTS.get(fault).ref.rpartition("#")[2] == number]
    first = next(iter([*here, *own, *(fault for fault, _ in declared)]), None)
    return dataclasses.replace(wanted, fault=first)


def first_that_shows(
    job: Job, result: CaseResult, shrunk: Shrunk, environment: Environment, *, is_pytest: bool
) -> tuple[str, Case, Check]:
    """The script of the smallest case, or else of the case as it was found, whichever fails and passes as it should.

    Raises HarnessError with what the last one did otherwise.
    """
    from harness.core.errors import HarnessError
    from harness.core.records import Verdict
    from harness.diagnose.script.check import check
    from harness.diagnose.script.render import Export, render

    problems = []
    for case, steps in ((shrunk.case, len(shrunk.steps)), (job.case, 0)):
        story = _story(job, case, _telling(result, shrunk), environment, steps)
        export = Export(
            case, job.fault, story, device=job.device, is_pytest=is_pytest, sites=frozenset(case.poison.sites)
        )
        try:
            text = render(export)
        except HarnessError as error:
            problems.append(error)
            continue
        done = check(text, may_crash=result.verdict is Verdict.CRASH, is_pytest=is_pytest)
        if done.holds:
            return text, case, done
        problems.append(HarnessError(f"{case.id}: no script is written, as it does not show the bug: {done.sentence}"))
    raise problems[-1]


def _refuse(job: Job) -> None:
    from harness.core.errors import InputError
    from harness.diagnose.script.render import why_not

    if reason := why_not(job.case, job.fault):
        raise InputError(f"{job.case.id}: {reason}")


def _telling(result: CaseResult, shrunk: Shrunk) -> Finding:
    """The finding that says most to somebody who knows no oracle of ours: about values, where there is one."""
    found = [shrunk.finding, *result.findings]
    return next((finding for finding in found if finding.oracle in ("finite", "sentinel", "reference")), found[0])


def _story(job: Job, case: Case, finding: Finding, environment: Environment, steps: int) -> Story:
    from harness.core.catalog import FAULTS
    from harness.diagnose.script.render import Story, why_of

    fault = FAULTS.get(job.fault) if job.fault else None
    title = fault.summary if fault else finding.message
    refs = dict.fromkeys([fault.ref] if fault else [])
    packages = {
        "torch": environment.torch, "triton": environment.triton if job.device == "cuda" else None,
        **environment.engines,
    }  # fmt: skip
    versions = [f"{name} {version}" for name, version in packages.items() if version]
    where = environment.gpus[0].name if job.device == "cuda" and environment.gpus else "a CPU"
    return Story(
        title=f"{title[:1].upper()}{title[1:]}.", refs=tuple(refs), why=why_of(job.case.scenario, job.fault),
        case=case.id, finding=finding.message if fault else "", steps=steps,
        versions=f"{', '.join(versions)}, Python {environment.python}, on {where} ({environment.platform})",
    )  # fmt: skip
