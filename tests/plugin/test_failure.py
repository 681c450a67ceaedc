"""A failing case explains itself: findings, references, the command that shows it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.pytest_plugin import describe
from harness.records import CaseResult, Finding, Verdict

FAILED = CaseResult(
    key="merge[num_tokens=9]",
    id="merge[num_tokens=9]",
    scenario="merge",
    refs=("vllm-project/vllm#36540",),
    verdict=Verdict.FAIL,
    reason="3 live elements of out are NaN",
    findings=(Finding(oracle="finite", site="context.output", tensor="out", message="3 live elements of out are NaN"),),
)


def test_description_names_oracle_site_reference_and_command() -> None:
    assert describe(FAILED, seed=3).splitlines() == [
        "fail: merge[num_tokens=9]",
        "  3 live elements of out are NaN",
        "  - finite: 3 live elements of out are NaN (site context.output)",
        "  see vllm-project/vllm#36540",
        "  reproduce: mla-harness run 'merge[num_tokens=9]' --seed 3",
    ]


def test_description_of_many_findings_stays_short() -> None:
    many = FAILED.model_copy(update={"findings": FAILED.findings * 50})
    assert describe(many).count("\n") < 15
    assert "and 42 more findings" in describe(many)


def test_failing_case_shows_the_description_and_no_traceback(project: pytest.Pytester, merge: Path) -> None:
    # The answer is made up, so that no kernel has to be broken for this.
    project.makeconftest(f"""
        import harness.run.runner as runner
        from harness.records import CaseResult
        failed = CaseResult.model_validate_json({FAILED.model_dump_json()!r})
        runner.WorkerPool.run = lambda self, jobs, on_start=None: iter([failed])
    """)
    done = project.runpytest_subprocess("-k", "9]", "scenarios/")
    done.assert_outcomes(failed=1, deselected=1)
    done.stdout.fnmatch_lines(["*finite: 3 live elements of out are NaN (site context.output)"])
    done.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_properties_of_a_case_reach_junit(project: pytest.Pytester, merge: Path) -> None:
    project.runpytest_subprocess("--junitxml=out.xml", "scenarios/").assert_outcomes(passed=2)
    text = (project.path / "out.xml").read_text(encoding="utf-8")
    assert '<property name="case" value="merge[num_tokens=9]"' in text
    assert '<property name="verdict" value="pass"' in text
    assert '<property name="refs" value="vllm-project/vllm#36540"' in text
