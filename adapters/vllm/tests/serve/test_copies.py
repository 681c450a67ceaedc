"""A source that changes while a copy of it is queued is found by the lines of both, and no other
source is.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import pytest
import torch

from harness.core.cause_codes import Code
from harness.evidence.moves import ordered
from harness.evidence.records import Evidence, Run
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import select
from mla_harness_adapters.report import ProcessReport, Report
from mla_harness_vllm.serve import copies
from mla_harness_vllm.serve.copies import WatchedCopies
from mla_harness_vllm.target import watched
from tests.transcripts import Approved


@dataclass
class Event:
    """Happened if its stream has run."""

    has_happened: bool = False

    def query(self) -> bool:
        return self.has_happened


class Worker:
    """Copies inputs to a device that runs its copies when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(copies, "is_source", lambda value: value is self.pinned)
        self.pinned, self.target = torch.zeros(8), torch.zeros(8)
        self.events: list[Event] = []
        self.held: list[int] = []
        self.copies = WatchedCopies(3, self._record, self.held.append, torch.clone)
        self._copy = self.copies.watched("copy_", torch.Tensor.copy_)

    def _record(self) -> Event:
        self.events.append(Event())
        return self.events[-1]

    def copy_inputs(self) -> None:
        self._copy(self.target, self.pinned, non_blocking=True)

    def step(self, value: float, *, waits: bool) -> None:
        for event in self.events if waits else []:
            event.has_happened = True
        self.pinned.fill_(value)
        self.copy_inputs()


@pytest.mark.parametrize("waits", [True, False])
def test_only_a_host_that_does_not_wait_is_found(
    waits: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Worker(monkeypatch)
    for value in range(1, 40):
        worker.step(float(value), waits=waits)
    assert 0 < len(worker.held) < 20 and bool(worker.copies.races) is not waits
    assert bool(capsys.readouterr().err) is not waits


def test_the_copy_and_the_change_are_told_by_their_lines_and_functions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], approved: Approved
) -> None:
    worker = Worker(monkeypatch)
    for value in (1.0, 2.0):
        worker.step(value, waits=False)
    ((copied, changed),) = worker.copies.races
    told = "\n".join([copied, changed, capsys.readouterr().err])
    approved(re.sub(r"(\.py:)\d+", r"\1LINE", told))


def test_a_source_that_keeps_its_content_or_is_blocking_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(monkeypatch)
    for _ in range(3):
        worker.step(1.0, waits=False)
    worker.copies.check("the end")
    assert not worker.copies.races
    worker.copies.watched("copy_", torch.Tensor.copy_)(worker.target, worker.pinned)
    worker.copies.watched("to", torch.Tensor.to)(worker.pinned, torch.float64)
    assert len(worker.events) == 3


def test_a_queued_copy_reads_what_was_there_when_it_was_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(monkeypatch)
    read: list[torch.Tensor] = []
    copy = worker.copies.watched("copy_", lambda target, source, **_: read.append(source))
    worker.pinned.fill_(1.0)
    copy(worker.target, src=worker.pinned, non_blocking=True)
    to = worker.copies.watched("to", lambda source, *_: read.append(source))
    to(worker.pinned, torch.float64, True)
    worker.pinned.fill_(2.0)
    assert [one.tolist() for one in read] == [[1.0] * 8] * 2


def test_a_change_after_the_last_copy_is_found_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)
    worker.step(1.0, waits=True)
    worker.pinned.fill_(random.random())
    monkeypatch.setattr(copies, "COPIES", [worker.copies])
    ((_, changed),) = copies.races()
    assert changed == "the end"


def test_pageable_memory_and_large_sources_are_not_watched() -> None:
    assert not copies.is_source(torch.zeros(4)) and not copies.is_source(None)


def test_the_finding_names_the_copy_the_change_and_the_rank(approved: Approved) -> None:
    race = ("runner.py:4 in step", "runner.py:9 in step")
    worker = ProcessReport(rank=1, process=7, counts={"copies": 12}, races=(race,))
    run = Run("nan", [watched(Report(ranks=(worker,)))])
    found = ordered(
        Evidence(select(load_scenarios(shipped_directory()), ["merge-kernel"])[0], [run])
    )
    (finding,) = found.findings
    assert (found.looked_at, finding.site) == (12, None)
    assert finding.cause.partition(":")[0] == Code.UNORDERED
    approved(finding.message)
