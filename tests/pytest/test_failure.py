"""A failing case explains itself: findings, references, the command that shows it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.records import Blame, CaseResult, Finding, Verdict
from harness.pytest.items import CaseFailed, describe

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
    blame = Blame(sites=("context.output",), how="fails with it poisoned alone")
    failed = CaseFailed(FAILED, blame, None)
    assert describe(failed, {"device": "cuda", "scenarios": "my", "seed": 3}).splitlines() == [
        "fail: merge[num_tokens=9]",
        "  3 live elements of out are NaN",
        "  - finite: 3 live elements of out are NaN (site context.output)",
        "  blame: context.output (fails with it poisoned alone)",
        "  see vllm-project/vllm#36540",
        "  reproduce: mla-harness run 'merge[num_tokens=9]' --device cuda --scenarios my --seed 3",
    ]


def test_description_of_many_findings_stays_short() -> None:
    many = FAILED.model_copy(update={"findings": FAILED.findings * 50})
    assert describe(CaseFailed(many, None, None), {}).count("\n") < 15
    assert "and 42 more findings" in describe(CaseFailed(many, None, None), {})


# The case fails and all trials of the diagnosis pass, without a broken kernel.
FAILING = f"""
    import harness.run.runner as runner
    from harness.core.records import CaseResult, Verdict
    failed = CaseResult.model_validate_json({FAILED.model_dump_json()!r})

    def run(self, jobs, on_start=None):
        return (failed if job.key == failed.key else CaseResult.of(job, Verdict.PASS) for job in jobs)

    runner.WorkerPool.run = run
"""


def test_failing_case_shows_the_description_and_no_traceback(project: pytest.Pytester, merge: Path) -> None:
    project.makeconftest(FAILING)
    done = project.runpytest_subprocess("-k", "9]", "scenarios/")
    done.assert_outcomes(failed=1, deselected=1)
    done.stdout.fnmatch_lines(["*finite: 3 live elements of out are NaN (site context.output)"])
    done.stdout.no_fnmatch_line("*harness/pytest*")


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (("scenarios/merge.yaml",), "--device cpu"),
        (("my/merge.yaml", "--mla-seed", "3"), "--device cpu --scenarios my --seed 3"),
        (("my/merge.yaml", "--mla-device", "cuda"), "--device cuda --scenarios my"),
    ],
)
def test_the_command_of_a_failing_case_finds_its_file_and_device(
    project: pytest.Pytester, merge: Path, given: tuple[str, ...], command: str
) -> None:
    project.makeconftest(FAILING)
    (project.mkdir("my") / "merge.yaml").write_text(merge.read_text(encoding="utf-8"), encoding="utf-8")
    done = project.runpytest_subprocess("-k", "9]", *given)
    done.stdout.fnmatch_lines([f"  reproduce: mla-harness run 'merge?num_tokens=9?' {command}"])


def test_the_command_of_a_failing_case_is_taken_by_the_command_line(project: pytest.Pytester, merge: Path) -> None:
    from harness.cli.main import exit_code_of

    (project.mkdir("my") / "merge.yaml").write_text(merge.read_text(encoding="utf-8"), encoding="utf-8")
    merge.unlink()
    assert exit_code_of(["show", "merge[num_tokens=9]", "--scenarios", "my"]) == 0


def test_properties_of_a_case_reach_junit(project: pytest.Pytester, merge: Path) -> None:
    project.runpytest_subprocess("--junitxml=out.xml", "scenarios/").assert_outcomes(passed=2)
    text = (project.path / "out.xml").read_text(encoding="utf-8")
    assert '<property name="case" value="merge[num_tokens=9]"' in text
    assert '<property name="verdict" value="pass"' in text
    assert '<property name="refs" value="vllm-project/vllm#36540"' in text


BAD_KERNEL = """
    from harness import kernel

    @kernel(op="merge_attn_states", name="mine")
    def mine(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context):
        return prefix_out + suffix_out, suffix_lse
"""


def test_a_plug_in_kernel_is_judged_alone_and_its_item_shows_blame_and_the_smallest_case(
    project: pytest.Pytester, merge: Path
) -> None:
    path = project.makepyfile(my_kernel=BAD_KERNEL)
    done = project.runpytest_subprocess(f"--mla-plugin={path}", "--mla-shrink=5", "scenarios/")
    outcomes = done.parseoutcomes()
    assert outcomes["failed"] >= 1 and "passed" not in outcomes
    done.stdout.fnmatch_lines(["*merge[[]kernel=mine,*", "*blame: *", "*smallest: *"])
    assert "kernel=torch" not in str(done.stdout)


@pytest.mark.nightly
def test_a_plug_in_kernel_replaces_no_kernel_that_the_file_names(project: pytest.Pytester, merge: Path) -> None:
    path = project.makepyfile(my_kernel=BAD_KERNEL)
    own = project.mkdir("my") / "own.yaml"
    text = merge.read_text(encoding="utf-8").replace("name: merge", "name: own")
    named = "matrix: {num_tokens: [9], kernel: [torch, mine]}"
    for matrix, failed in ((named, 1), (named.replace(", mine", ""), 1)):
        own.write_text(text.replace("matrix: {num_tokens: [9, 12]}", matrix), encoding="utf-8")
        done = project.runpytest_subprocess(f"--mla-plugin={path}", "--mla-shrink=0", "-rA", "my/own.yaml")
        done.assert_outcomes(passed=1, failed=failed)
        done.stdout.fnmatch_lines(["PASSED *own[[]*kernel=torch*", "FAILED *own[[]*kernel=mine*"])
