"""pytest plug-in: each scenario file is collected, each of its cases is a test item, its id is the case id.

A YAML file is taken for a scenario when it is named on the command line (or in `testpaths`), or when a folder called
`scenarios` that holds it is: `pytest scenarios/`, `pytest my/own.yaml`. Any other YAML file is left alone, because
this plug-in is loaded wherever the harness is installed. Cases run in a worker process, so a
crash is one item's failure and torch is never imported by pytest itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.core.cases import Case, Job
from harness.core.errors import HarnessError, InputError
from harness.core.records import CaseResult, Finding, Verdict

if TYPE_CHECKING:
    from harness.run.runner import WorkerPool

DEVICE_OPTION = "--mla-device"
SEED_OPTION = "--mla-seed"
TIMEOUT_OPTION = "--mla-timeout"
POISON_OPTION = "--poison"
POISON_SITES_OPTION = "--poison-sites"
POISON_DIFF_OPTION = "--poison-diff"
POISON_HOOKS = "harness.pytest.poison.hooks"
MAX_FINDINGS_SHOWN = 8

POOL = pytest.StashKey["WorkerPool"]()
POISONED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of scenario items; without scenario items they do nothing."""
    group = parser.getgroup("mla", "MLA harness")
    group.addoption(DEVICE_OPTION, default="cpu", choices=("cpu", "cuda"), help="device that scenario cases run on")
    group.addoption(SEED_OPTION, type=int, default=0, metavar="N", help="seed of scenario cases (default 0)")
    group.addoption(
        TIMEOUT_OPTION, type=float, default=60.0, metavar="SECONDS", help="time limit of one scenario case (default 60)"
    )
    own = parser.getgroup("poison", "MLA harness: any suite under poison")
    own.addoption(
        POISON_OPTION, metavar="PATTERNS",
        help="run the tests of any suite with unwritten memory filled: nan,max,inf,random,zeros, one or several",
    )  # fmt: skip
    own.addoption(POISON_SITES_OPTION, metavar="SITES", help="memory to fill: code,tests,free (default: all three)")
    own.addoption(
        POISON_DIFF_OPTION, action="store_true",
        help="run each test under two patterns, and compare the tensors it asserts on",
    )  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the poison before the first conftest.py imports torch's comparing functions."""
    _start_poison(early_config, early_config.known_args_namespace)


def _start_poison(config: pytest.Config, options: Any) -> None:
    """Register the hooks of a poisoned run, once, if an option asks for one."""
    if not (options.poison or options.poison_sites or options.poison_diff) or config.stash.get(POISONED, False):
        return
    config.stash[POISONED] = True
    try:
        # Loaded by its name: it needs torch, which this process otherwise leaves alone.
        importlib.import_module(POISON_HOOKS).register(config, options)
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    """Register the tag that selects cases for a GPU, so that `-m gpu` is understood where no case has it."""
    _start_poison(config, config.option)  # where a conftest.py loads this plug-in, this is its first hook
    config.addinivalue_line("markers", "gpu: a scenario that needs a CUDA device")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    """Collect a YAML file that was asked for."""
    if file_path.suffix not in (".yaml", ".yml"):
        return None
    session, folder = parent.session, file_path.parent
    if not (session.isinitpath(file_path) or (folder.name == "scenarios" and session.isinitpath(folder))):
        return None
    collected: ScenarioFile = ScenarioFile.from_parent(parent, path=file_path)
    return collected


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the worker process, if any case started one."""
    pool = config.stash.get(POOL, None)
    if pool is not None:
        pool.close()


class ScenarioFile(pytest.File):
    """A scenario file; a malformed one is one collection error of one line."""

    def collect(self) -> Iterator[CaseItem]:
        from harness.scenario.expand import NIGHTLY, expand
        from harness.scenario.load import load_scenario

        try:
            scenario = load_scenario(self.path)
            # Where there is no GPU, the first case stands for all of a scenario for GPUs.
            is_whole = scenario.device == "any" or self.config.getoption(DEVICE_OPTION) == "cuda"
            keep = None if is_whole else lambda place, name: not place
            cases = expand(scenario, seed=self.config.getoption(SEED_OPTION), keep=keep)
        except InputError as error:
            raise self.CollectError(str(error)) from None
        # As in `mla-harness run`: what takes hours is run when it is asked for.
        with_nightly = NIGHTLY in str(self.config.getoption("markexpr", ""))
        for case in [case for case in cases if with_nightly or NIGHTLY not in case.tags]:
            item: CaseItem = CaseItem.from_parent(self, name=case.id, case=case)
            for tag in case.tags:
                self._declare(tag)
                item.add_marker(tag)
            yield item

    def _declare(self, tag: str) -> None:
        """Tags are markers; `--strict-markers` wants each to be known before it is used."""
        lines = self.config.getini("markers")
        if not any(line.partition(":")[0].strip() == tag for line in lines):
            self.config.addinivalue_line("markers", f"{tag}: tag of a scenario")


class CaseFailed(Exception):
    """A case that did not pass; carries its result."""

    def __init__(self, result: CaseResult) -> None:
        super().__init__(result.reason)
        self.result = result


class CaseItem(pytest.Item):
    """One case of a scenario."""

    def __init__(self, *, case: Case, **rest: Any) -> None:
        super().__init__(**rest)
        self.case = case

    def runtest(self) -> None:
        from harness.scenario.device import on_device

        device = self._device
        job = Job(
            key=self.case.id,
            case=on_device(self.case, device),
            device=device,
            timeout_seconds=self.case.params.own_timeout or self.config.getoption(TIMEOUT_OPTION),
        )
        (result,) = _pool(self.config).run([job])
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
        if result.verdict is not Verdict.PASS:
            raise CaseFailed(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A finding explains itself: no traceback of the harness."""
        if isinstance(excinfo.value, CaseFailed):
            return describe(excinfo.value.result, self._options())
        return super().repr_failure(excinfo, style)

    @property
    def _device(self) -> str:
        from harness.scenario.expand import GPU

        return "cuda" if GPU in self.case.tags else str(self.config.getoption(DEVICE_OPTION))

    def _options(self) -> dict[str, Any]:
        """What `mla-harness run` must be told besides the id: device, seed, and a folder that is not the usual one."""
        from harness.scenario.load import default_directory

        folder, here = self.path.parent.resolve(), self.config.invocation_params.dir.resolve()
        scenarios = str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
        return {
            "device": self._device,
            "seed": self.config.getoption(SEED_OPTION),
            "scenarios": None if folder == default_directory().resolve() else scenarios,
        }

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


def describe(result: CaseResult, options: dict[str, Any]) -> str:
    """What went wrong in a case, finding by finding, and the command with these options that shows it again."""
    from harness.report.command import reproduce

    lines = [f"{result.verdict.value}: {result.id}"]
    if result.reason:
        lines.append(f"  {result.reason}")
    lines += [f"  - {_sentence(finding)}" for finding in result.findings[:MAX_FINDINGS_SHOWN]]
    if len(result.findings) > MAX_FINDINGS_SHOWN:
        lines.append(f"  - and {len(result.findings) - MAX_FINDINGS_SHOWN} more findings")
    if result.refs:
        lines.append("  see " + ", ".join(result.refs))
    lines.append(f"  reproduce: {reproduce(result, options)}")
    return "\n".join(lines)


def _sentence(finding: Finding) -> str:
    place = " ".join(filter(None, (finding.tensor, finding.where)))
    site = f" (site {finding.site})" if finding.site else ""
    return f"{finding.oracle}: {finding.message or place}{site}"


def _pool(config: pytest.Config) -> WorkerPool:
    """One worker process for each pytest process, started by the first case."""
    if POOL not in config.stash:
        from harness.run.runner import WorkerPool

        config.stash[POOL] = WorkerPool(1)
    return config.stash[POOL]
