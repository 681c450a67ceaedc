"""The items of pytest: scenario files and their cases. Failing cases are diagnosed as in `mla-harness run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.records import Blame, CaseResult, Finding, Shrunk, Verdict
from harness.diagnose.run_jobs import apply_known, quarantined
from harness.diagnose.session import Limits, Session
from harness.report.terminal import outcome_line
from harness.report.wording import blame_lines, reproduce, reproduce_case
from harness.run.planning import Wanted, register_plugins
from harness.run.runner import WorkerPool
from harness.scenario.expand import GPU, NIGHTLY, KernelOverride, expand, on_device
from harness.scenario.load import default_directory, load_scenario
from harness.scenario.matrix import ACCURACY
from harness.scenario.selection import is_for_a_plain_run, with_plugins
from mla_harness_loader import own_names

MAX_FINDINGS_SHOWN = 8
MAX_SHRINK_SECONDS = 60.0
"""The time for smaller cases in one pytest process."""

KERNELS = pytest.StashKey[list[str]]()
WORKERS = pytest.StashKey[tuple[WorkerPool, Session]]()


class ScenarioFile(pytest.File):
    """A scenario file. A malformed file is a collection error of one line."""

    @own_names()
    def collect(self) -> list[CaseItem]:
        """One item for each case that `mla-harness run` would run."""
        try:
            names = _kernels_of_plugins(self.config)
            scenario = load_scenario(self.path)
            # Without a GPU, the first case represents a scenario for GPUs.
            is_whole = scenario.device == "any" or self.config.option.mla_device == "cuda"
            keep = None if is_whole else lambda place, name: not place
            # As in `mla-harness run`, cases that need hours run only if the command line names their tag.
            expression = str(self.config.getoption("markexpr", ""))
            tags = [tag for tag in (NIGHTLY, ACCURACY) if tag in expression][:1]

            def choose(override: KernelOverride | None) -> list[Case]:
                cases = expand(scenario, seed=self.config.option.mla_seed, override=override, keep=keep)
                return [case for case in cases if is_for_a_plain_run(case, tags, override)]

            cases = with_plugins(names, choose) if names else choose(None)
            if names and scenario.names_kernels:
                # The file says what is judged. The plug-in's kernels come on top of that.
                written = [case for case in choose(None) if ACCURACY in tags or not case.kind.asks_canary]
                cases = list({case.id: case for case in [*written, *cases]}.values())
        except InputError as error:
            raise self.CollectError(str(error)) from None
        items = []
        for case in cases:
            item: CaseItem = CaseItem.from_parent(self, name=case.id, case=case)
            for tag in case.tags:
                self._declare(tag)
                item.add_marker(tag)
            items.append(item)
        return items

    def _declare(self, tag: str) -> None:
        """Register a tag as a marker, for `--strict-markers`."""
        lines = self.config.getini("markers")
        if not any(line.partition(":")[0].strip() == tag for line in lines):
            self.config.addinivalue_line("markers", f"{tag}: tag of a scenario")


class CaseFailed(Exception):
    """A case did not pass. Carries its result and its diagnosis."""

    def __init__(self, result: CaseResult, blame: Blame | None, shrunk: Shrunk | None) -> None:
        super().__init__(result.reason)
        self.result, self.blame, self.shrunk = result, blame, shrunk


class CaseItem(pytest.Item):
    def __init__(self, *, case: Case, **rest: Any) -> None:
        super().__init__(**rest)
        self.case = case

    @own_names()
    def runtest(self) -> None:
        device = self._device
        job = Job(
            key=self.case.id,
            case=on_device(self.case, device),
            device=device,
            plugins=tuple(str(path) for path in _plugins(self.config)),
            timeout_seconds=self.case.params.own_timeout or self.config.option.mla_timeout,
        )
        pool, session = _workers(self.config)
        engines = pool.start().engines
        result = quarantined(job, engines) or apply_known(job, next(iter(pool.run([job]))), engines)
        self.user_properties += [
            ("case", result.id),
            ("verdict", result.verdict.value),
            ("case_seconds", f"{result.seconds:.3f}"),
            ("refs", " ".join(result.refs)),
        ]
        if result.log:
            self.add_report_section("call", "worker log", result.log)
        if result.verdict is Verdict.SKIP:
            pytest.skip(result.reason)
        if result.verdict is Verdict.KNOWN:
            pytest.xfail(result.reason)
        if result.verdict is not Verdict.PASS:
            blame = session.explain([(job, result)]).get(job.key) if result.findings else None
            blames = {job.key: blame} if blame else {}
            raise CaseFailed(result, blame, next(session.smallest([(job, result)], blames), None))

    @own_names()
    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The findings, instead of a traceback of the harness."""
        if isinstance(excinfo.value, CaseFailed):
            return describe(excinfo.value, self._options())
        return super().repr_failure(excinfo, style)

    @property
    def _device(self) -> str:
        return "cuda" if GPU in self.case.tags else str(self.config.option.mla_device)

    def _options(self) -> dict[str, Any]:
        """The options of `mla-harness run` that repeat the case: device, seed, plug-ins, and an unusual folder."""
        folder, here = self.path.parent.resolve(), self.config.invocation_params.dir.resolve()
        scenarios = str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
        return {
            "device": self._device,
            "seed": self.config.option.mla_seed,
            "plugins": [str(path) for path in _plugins(self.config)],
            "scenarios": None if folder == default_directory().resolve() else scenarios,
        }

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


def describe(failed: CaseFailed, options: dict[str, Any]) -> str:
    """The findings of a case, their blame, and the commands that repeat it with these options."""
    result, blame, shrunk = failed.result, failed.blame, failed.shrunk
    lines = [f"{result.verdict.value}: {result.id}"]
    if result.reason:
        lines.append(f"  {result.reason}")
    lines += [f"  - {_sentence(finding)}" for finding in result.findings[:MAX_FINDINGS_SHOWN]]
    if len(result.findings) > MAX_FINDINGS_SHOWN:
        lines.append(f"  - and {len(result.findings) - MAX_FINDINGS_SHOWN} more findings")
    lines += [f"  {line}" for line in blame_lines(blame)]
    if result.refs:
        lines.append("  see " + ", ".join(result.refs))
    lines.append(f"  reproduce: {reproduce(result, options)}")
    if shrunk is not None and shrunk.steps:
        lines.append(f"  smallest: {reproduce_case(shrunk.case.id, shrunk.fault, options)} ({outcome_line(shrunk)})")
    return "\n".join(lines)


def _sentence(finding: Finding) -> str:
    place = " ".join(filter(None, (finding.tensor, finding.where)))
    site = f" (site {finding.site})" if finding.site else ""
    return f"{finding.oracle}: {finding.message or place}{site}" + (f"\n    at {finding.at}" if finding.at else "")


def _plugins(config: pytest.Config) -> tuple[Path, ...]:
    return tuple(Path(name).resolve() for name in config.option.mla_plugin)


def _kernels_of_plugins(config: pytest.Config) -> list[str]:
    """The kernels of the plug-in files, registered once in this process."""
    if KERNELS not in config.stash:
        plugins = _plugins(config)
        config.stash[KERNELS] = register_plugins(Wanted(plugins=plugins), _workers(config)[0]) if plugins else []
    return config.stash[KERNELS]


def _workers(config: pytest.Config) -> tuple[WorkerPool, Session]:
    """The worker of this pytest process, and the diagnosis on it. The first case starts the worker."""
    if WORKERS not in config.stash:
        pool, seconds = WorkerPool(1), config.option.mla_shrink
        limits = Limits(shrink_seconds=MAX_SHRINK_SECONDS if seconds else 0.0, most_shrink_seconds=seconds)
        config.stash[WORKERS] = pool, Session(pool, limits)
        config.add_cleanup(pool.close)
    return config.stash[WORKERS]
