"""A case that a cluster planned again, as its node was lost, is marked wherever a run is shown."""

from __future__ import annotations

import io
from pathlib import Path

from harness.core.cases import Case, Job
from harness.core.records import CaseResult, Verdict
from harness.report.console import console_for
from harness.report.page import render
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.store.run_folder import RunStore
from tests.transcripts import Approved, lines_with, page_text

NODE = "10.0.0.2 (0a1b2c3d)"


def store(path: Path, verdict: Verdict) -> RunStore:
    jobs = [
        Job(
            key=name,
            case=Case(id=f"case[n={name}]", scenario="stub", system="kernel", op="write_kv"),
        )
        for name in "ab"
    ]
    made = RunStore.create(path, jobs, command="stub")
    for job in jobs:
        nodes = (NODE,) if job.key == "a" else ()
        made.add(
            CaseResult(
                key=job.key, id=job.case.id, scenario="stub", verdict=verdict, lost_nodes=nodes
            )
        )
    return made


def test_the_terminal_names_the_case_and_the_node(tmp_path: Path, approved: Approved) -> None:
    stream = io.StringIO()
    print_run(console_for(stream), RunView(store(tmp_path, Verdict.PASS)))
    approved(lines_with(stream.getvalue(), "planned again after"))
    assert "case[n=b]\n" not in stream.getvalue()


def test_the_page_says_so_in_its_facts_and_in_the_view_of_the_case(
    tmp_path: Path, approved: Approved
) -> None:
    page = render(RunView(store(tmp_path, Verdict.FAIL)))
    approved(lines_with(page_text(page), "1 case after", "planned again after", NODE))


def test_nothing_is_said_where_no_node_was_lost(tmp_path: Path) -> None:
    made = store(tmp_path, Verdict.FAIL)
    for result in made.results():
        made.add(result.model_copy(update={"lost_nodes": ()}))
    assert "planned again" not in render(RunView(made))
