"""The hooks of a poisoned run. `harness.pytest.plugin` registers them if an option asks for poison.

The controlling process of xdist runs no test. It loads no torch, and only adds up the reports of its workers.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from harness.pytest.poison.settings import Settings, read

if TYPE_CHECKING:
    from harness.pytest.poison.process.judging import Judge

JUDGING = "harness.pytest.poison.process.judging"
"""Imported by name, only in processes that run tests: it needs torch."""


class PoisonHooks:
    """The state of one pytest process: the sums of all reports, and the judge unless the process only controls."""

    def __init__(self, settings: Settings, config: pytest.Config, is_controller: bool) -> None:
        self.settings = settings
        self.sums: Counter[str] = Counter()
        self.notes: set[str] = set()
        self._judge: Judge | None = None
        if not is_controller:
            self._judge = importlib.import_module(JUDGING).Judge(settings, config.rootpath)

    def pytest_report_header(self) -> str:
        diff = ", compared with each other" if self.settings.is_diff else ""
        return f"poison: {', '.join(self.settings.patterns)} in {', '.join(sorted(self.settings.sites))}{diff}"

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._judge is not None:
            self._judge.note_collected({str(item.path) for item in session.items})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test under each poison, and report it once."""
        if self._judge is None or not isinstance(item, pytest.Function):
            return None  # Doctests and items of other plug-ins cannot run twice.
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._judge.run(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judge a test when its report is made."""
        report = yield
        if self._judge is not None:
            self._judge.judge(report, call)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the counts of each report, also from xdist's workers."""
        self.sums.update(getattr(report, "poison", {}))
        if getattr(report, "poison_note", ""):
            self.notes.add(str(getattr(report, "poison_note", "")))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("poison")
        for line in summary(self.sums, self.settings.patterns):
            terminalreporter.line(line)
        for note in sorted(self.notes):
            terminalreporter.line(f"free CUDA memory was not filled: {note}")

    def pytest_unconfigure(self) -> None:
        if self._judge is not None:
            self._judge.stop()


def summary(sums: Counter[str], patterns: Sequence[str]) -> list[str]:
    """The closing lines of a run."""
    lines = [
        f"{sums['tests']} tests under {', '.join(patterns)}: {sums['filled']} allocations filled, "
        f"{sums['compared']} comparisons checked ({sums['elements']} elements), "
        f"{sums['found']} found on uninitialised memory"
    ]
    if sums["failed_anyway"]:
        lines.append(f"{sums['failed_anyway']} failed without poison too")
    if sums["lost"]:
        lines.append(
            f"{sums['lost']} failed because the process could not use CUDA any more; each section 'poison' says why"
        )
    if sums["unreadable"]:
        lines.append(f"{sums['unreadable']} sides of comparisons were no dense tensors or arrays, and were not judged")
    if not sums["filled"]:
        lines.append("no memory was filled: these tests allocate nothing through torch's dispatcher, or none ran")
    return lines


def is_controller(options: Any) -> bool:
    """Whether this process only controls workers of xdist."""
    wants_workers = getattr(options, "numprocesses", None) or getattr(options, "tx", None)
    return bool(wants_workers) and "PYTEST_XDIST_WORKER" not in os.environ


def register(config: pytest.Config, options: Any) -> None:
    """Register the hooks that `options` ask for. Raises InputError for unknown words."""
    settings = read(options.poison, options.poison_sites, options.poison_diff)
    if settings is not None:
        config.pluginmanager.register(PoisonHooks(settings, config, is_controller(options)), "mla-harness-poison")
