"""The hooks of a poisoned run.

`torch_poison.pytest_plugin` registers them if an option asks for poison.

The controlling process of xdist runs no test. It loads no torch, and only adds up the reports of
its workers.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from torch_poison.errors import PoisonError
from torch_poison.suite.settings import OFF, Settings, read

if TYPE_CHECKING:
    from torch_poison.suite.judging import SuiteJudge

JUDGING = "torch_poison.suite.judging"
"""Imported by name, only in processes that run tests: it needs torch."""
SENTENCES = {
    "excepted": "ran without poison: marked poison_ok",
    "failed_anyway": "failed without poison too",
    "unwatched": "fail only while their comparisons are watched, and were not watched",
    "lost": (
        "failed because the process could not use CUDA any more; each section 'poison' says why"
    ),
    "unreadable": "sides of comparisons were no dense tensors or arrays, and were not judged",
}
"""A count that is shown if it is not 0, with the words behind it."""


class PoisonHooks:
    """The state of one pytest process: the sums of all reports, and the judge unless the process
    only controls.
    """

    def __init__(self, settings: Settings, config: pytest.Config, is_controller: bool) -> None:
        self.settings = settings
        self.sums: Counter[str] = Counter()
        self.notes: set[str] = set()
        self._judge: SuiteJudge | None = None
        if not is_controller:
            self._judge = importlib.import_module(JUDGING).SuiteJudge(settings, config.rootpath)

    def pytest_report_header(self) -> str:
        diff = ", compared with each other" if self.settings.is_diff else ""
        return (
            f"poison: {', '.join(self.settings.patterns)} in"
            f" {', '.join(sorted(self.settings.sites))}{diff}"
        )

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # Marks without a reason are refused before the first test runs, not in the middle of the
        # suite.
        for item in session.items:
            _why_ok(item)
        if self._judge is not None:
            self._judge.note_collected({str(item.path) for item in session.items})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if self._judge is None or not isinstance(item, pytest.Function) or _why_ok(item):
            return None  # Doctests and items of other plug-ins cannot run twice.
        # A test runs once for each pattern, and again without poison if it failed. That is more
        # than one run of the protocol, so this hook does all of it.
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._judge.run(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        # The test has run: pytest asks no further plug-in to run it.
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self._judge is not None:
            self._judge.judge(report, call)
            if call.when == "call" and _why_ok(item):
                # xdist sends the attributes of a report to the controlling process.
                report.__dict__["poison"] = {"excepted": 1}
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
    lines = [
        f"{sums['tests']} tests under {', '.join(patterns)}: {sums['filled']} allocations filled, "
        f"{sums['compared']} comparisons checked ({sums['elements']} elements), "
        f"{sums['found']} found on uninitialised memory"
    ]
    lines += [f"{sums[count]} {words}" for count, words in SENTENCES.items() if sums[count]]
    if not sums["filled"]:
        lines.append(
            "no memory was filled: these tests allocate nothing through torch's dispatcher, or"
            " none ran"
        )
    return lines


def _why_ok(item: pytest.Item) -> str:
    """The reason of a test's mark `poison_ok`, or empty.

    Raises UsageError for a mark without a reason.
    """
    mark = item.get_closest_marker("poison_ok")
    if mark is None:
        return ""
    reason = " ".join(map(str, (*mark.args, *mark.kwargs.values()))).strip()
    if not reason:
        raise pytest.UsageError(f"{item.nodeid}: say why: @pytest.mark.poison_ok('reason')")
    return reason


def is_controller(options: Any) -> bool:
    wants_workers = getattr(options, "numprocesses", None) or getattr(options, "tx", None)
    return bool(wants_workers) and "PYTEST_XDIST_WORKER" not in os.environ


def register(config: pytest.Config, options: Any) -> None:
    """Register the hooks that `options` ask for. Raises UsageError for unknown words."""
    given = {
        name: getattr(options, name) or config.getini(name)
        for name in ("poison", "poison_sites", "poison_diff")
    }
    # `--poison off` on the command line wins over an ini file that asks for a comparison.
    is_diff = bool(given["poison_diff"]) and options.poison != OFF
    try:
        settings = read(
            given["poison"] or None,
            given["poison_sites"] or None,
            is_diff,
            config.getini("poison_allow"),
        )
        if settings is not None:
            config.pluginmanager.register(
                PoisonHooks(settings, config, is_controller(options)), "torch-poison"
            )
    except PoisonError as error:
        raise pytest.UsageError(str(error)) from None
