"""A failing case as a script that fails with the bug and passes without it, run before it is
written.

Each run of a script is a process of its own.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.cases import Case, Job
from harness.core.catalog import FAULTS
from harness.core.errors import HarnessError
from harness.core.files import FIXTURES, write_atomic
from harness.core.findings import Finding
from harness.core.records import CaseResult, Shrunk, Verdict
from harness.diagnose.script.code import without_bug
from harness.diagnose.script.render import Export, Story, render, why_of
from harness.diagnose.session import comes_from
from harness.run.environment import Environment
from harness.run.planning import Wanted, load
from harness.scenario.expand import fault_cases
from harness.scenario.selection import selects_scenario

SECONDS = 1800.0
"""Limit for one run of a script, which mostly imports torch. --timeout may raise it."""
# Errors of a script that is wrong itself. Its kernel was not reached, so they show nothing.
_NEVER_THE_BUG = (
    "SyntaxError",
    "IndentationError",
    "NameError",
    "ImportError",
    "ModuleNotFoundError",
)
_STREAMS: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "capture_output": True,
    "text": True,
    "errors": "replace",
}
# Runs a script in a process in which no module of this project can be imported, as on the machine
# of a maintainer.
_BLOCKER = """\
import ctypes, runpy, sys
sys.platform == "linux" and ctypes.CDLL(None).prctl(1, 9)  # The script ends with the process that tries it.
class Blocker:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        # vLLM loads the entry point in `mla_harness_vllm` itself, and no more of it.
        if root in ("harness", "mla_harness_adapters") or name.startswith("mla_harness_") and root != name:
            raise ModuleNotFoundError("a script of its own must not import this project")
sys.meta_path.insert(0, Blocker())
if sys.argv[1] == "pytest":
    import pytest
    options = ["-q", "--tb=native", "--assert=plain", "-p", "no:cacheprovider", "--noconftest", "-c", "/dev/null"]
    sys.exit(pytest.main([*options, "--rootdir", sys.argv[3], sys.argv[2]]))
runpy.run_path(sys.argv[2], run_name="__main__")
"""  # noqa: E501


def with_fault(wanted: Wanted) -> Wanted:
    """`wanted` with the known bug of its selector, if it names no bug and no kernel."""
    if wanted.fault or wanted.kernels or wanted.plugins:
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


@dataclass(frozen=True, slots=True)
class Exported:
    """A script that was seen to show a bug, the case that it shows, and its two runs."""

    text: str
    case: Case
    check: Check


def first_that_shows(
    job: Job,
    result: CaseResult,
    shrunk: Shrunk | None,
    environment: Environment,
    *,
    is_pytest: bool,
    seconds: float = SECONDS,
) -> Exported:
    """The script of the smallest case, or else of the original case.

    All runs of the scripts go on at once, as each may import an engine. A run gets `seconds`, and
    no less than SECONDS. Raises HarnessError if neither script fails with the bug and passes
    without it, and says if one had too little time.
    """
    problems: list[HarnessError] = []
    scripts: list[tuple[str, Case]] = []
    # The smallest first. A case that could not be made smaller is tried once.
    tried = {shrunk.case.id: (shrunk.case, len(shrunk.steps))} if shrunk else {}
    for case, steps in (tried | {job.case.id: (job.case, 0)}).values():
        story = _story(job, case, _telling(result, shrunk), environment, steps)
        try:
            scripts.append(
                (
                    render(Export(case, job.fault, story, device=job.device, is_pytest=is_pytest)),
                    case,
                )
            )
        except HarnessError as error:
            problems.append(error)
    limit = max(seconds, job.case.params.own_timeout or SECONDS)
    may_crash = result.verdict is Verdict.CRASH
    with ThreadPoolExecutor(max(1, len(scripts))) as threads:
        checks = threads.map(
            lambda script: check(
                script[0], may_crash=may_crash, is_pytest=is_pytest, seconds=limit
            ),
            scripts,
        )
        for (text, case), done in zip(scripts, checks, strict=True):
            if done.holds:
                return Exported(text, case, done)
            why = f"as it does not show the bug: {done.sentence}"
            if done.late:
                why = (
                    f"as it did not end within {limit:.0f} s {done.late}; give it more time:"
                    f" --timeout {2 * limit:.0f}"
                )
            problems.append(HarnessError(f"{case.id}: no script is written, {why}"))
    raise problems[-1]


def _telling(result: CaseResult, shrunk: Shrunk | None) -> Finding:
    """The clearest finding for readers outside of this project: about values, if there is one."""
    found = [*([shrunk.finding] if shrunk else []), *result.findings]
    return next(
        (finding for finding in found if finding.oracle in ("finite", "sentinel", "reference")),
        found[0],
    )


def _story(job: Job, case: Case, finding: Finding, environment: Environment, steps: int) -> Story:
    fault = FAULTS.get(job.fault) if job.fault else None
    title = fault.summary if fault else finding.message
    # A served case has no device of its own: its engine takes the GPU.
    on_gpu = bool(environment.gpus) and (job.device == "cuda" or case.kind.serves)
    triton = environment.triton if on_gpu else None
    packages = {"torch": environment.torch, "triton": triton, **environment.engines}
    versions = [f"{name} {version}" for name, version in packages.items() if version]
    where = environment.gpus[0].name if on_gpu else "a CPU"
    return Story(
        title=f"{title[:1].upper()}{title[1:]}.",
        refs=(fault.ref,) if fault else job.case.refs,
        why=why_of(job.case.scenario, job.fault),
        case=case.id,
        finding=finding.message if fault else "",
        steps=steps,
        versions=(
            f"{', '.join(versions)}, Python {environment.python}, on {where}"
            f" ({environment.platform})"
        ),
    )


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """The end of one run of a script: its exit status (negative: a signal) and its last line."""

    status: int
    last_line: str
    seconds_ran_out: bool = False

    @property
    def passes(self) -> bool:
        return self.status == 0

    def fails_for_the_bug(self, may_crash: bool) -> bool:
        """Whether an assertion failed, or with `may_crash` also any error that is no mistake of the
        script.
        """
        if self.passes or self.seconds_ran_out or self.last_line.startswith(_NEVER_THE_BUG):
            return False
        return may_crash or self.last_line.startswith("AssertionError")

    @property
    def words(self) -> str:
        if self.seconds_ran_out:
            return "it did not end in time"
        return "passes" if self.passes else f"status {self.status}, {self.last_line or 'no words'}"


@dataclass(frozen=True, slots=True)
class Check:
    """The runs of a script with its bug and without."""

    with_bug: ExportOutcome
    without_bug: ExportOutcome
    may_crash: bool = False

    @property
    def fails_with(self) -> bool:
        return self.with_bug.fails_for_the_bug(self.may_crash)

    @property
    def holds(self) -> bool:
        return self.fails_with and self.without_bug.passes

    @property
    def late(self) -> str:
        """Which of the runs did not end in time, and so showed nothing; empty if both ended."""
        runs = {"with": self.with_bug, "without": self.without_bug}
        late = [name for name, run in runs.items() if run.seconds_ran_out]
        return f"{' and '.join(late)} the bug" if late else ""

    @property
    def sentence(self) -> str:
        """`fails with the bug: yes; passes without: yes`, or what happened instead."""
        fails = "yes" if self.fails_with else f"no ({self.with_bug.words})"
        passes = "yes" if self.without_bug.passes else f"no ({self.without_bug.words})"
        return f"fails with the bug: {fails}; passes without: {passes}"


def check(
    text: str,
    *,
    may_crash: bool = False,
    is_pytest: bool = False,
    python: str | None = None,
    seconds: float = SECONDS,
) -> Check:
    """Run `text` as it is and without its marked line. Neither run can import this project.

    With `may_crash` any error of the kernel counts as the bug, else only a failed assertion.
    `python` is the path of another interpreter. Raises HarnessError if it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="mla-harness-script-") as folder:

        def ran(label: str, content: str) -> ExportOutcome:
            path = Path(folder) / label / f"test_{label}_bug.py"
            path.parent.mkdir()
            write_atomic(path, content)
            return run(path, is_pytest=is_pytest, python=python, seconds=seconds)

        with ThreadPoolExecutor(2) as threads:
            with_bug, without = threads.map(ran, ("with", "without"), (text, without_bug(text)))
        return Check(with_bug, without, may_crash)


def run(
    path: Path, *, is_pytest: bool = False, python: str | None = None, seconds: float = SECONDS
) -> ExportOutcome:
    """Run one script in its own folder, for at most `seconds`.

    PYTHONPATH holds; this project cannot be imported.
    """
    kind = "pytest" if is_pytest else "script"
    words = [
        python or sys.executable,
        "-s",
        "-P",
        "-c",
        _BLOCKER,
        kind,
        str(path),
        str(path.parent),
    ]
    # The plug-in `pytest --poison` is installed here, and a user's options may name others.
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "FIXTURES": str(FIXTURES)}
    environ.pop("PYTEST_ADDOPTS", None)
    try:
        done = subprocess.run(
            words, cwd=path.parent, env=environ, timeout=seconds, check=False, **_STREAMS
        )
    except subprocess.TimeoutExpired:
        return ExportOutcome(-1, "", seconds_ran_out=True)
    except OSError as error:
        raise HarnessError(f"{words[0]}: cannot be run: {error}") from error
    # No test ran. The sentence begins with a name of _NEVER_THE_BUG, so that it is no proof of the
    # bug.
    if is_pytest and done.returncode not in (0, 1):
        return ExportOutcome(
            done.returncode, f"SyntaxError or nothing collected: {_last(done.stdout)}"
        )
    return ExportOutcome(done.returncode, _last_error(done.stdout if is_pytest else done.stderr))


def _last_error(text: str) -> str:
    """The last line that names an exception, or else the last line. torch.distributed writes its
    rank before each.
    """
    lines = re.sub(r"^\[rank\d+\]: ", "", text, flags=re.MULTILINE).splitlines()
    names = [
        line
        for line in lines
        if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b", line)
    ]
    return (names[-1] if names else _last(text)).strip()[:300]


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""
