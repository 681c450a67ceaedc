"""tools/vllm_report.py: the order of its steps, and the page that it makes of several sessions' runs."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.records import FirstNan

ROOT = Path(__file__).resolve().parents[2]
CASE = "vllm-expert-ids[routing=simulated]"


@pytest.fixture(scope="module")
def tool() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("vllm_report", ROOT / "tools" / "vllm_report.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def note(folder: Path, step: str, verdict: str, case: str = CASE, reason: str = "", release: str = "0.24.0") -> None:
    place = folder / release / step / "run" / "r1"
    place.mkdir(parents=True)
    accuracy = {"epochs": [{"accuracy": 1.0 if verdict == "pass" else 0.0}]}
    result = {"id": case, "verdict": verdict, "reason": reason, "seconds": 9.0, "accuracy": accuracy}
    (place / "results.jsonl").write_text(json.dumps(result) + "\n")


def steps(tool: Any, *words: str) -> list[Any]:
    return list(tool.steps(tool.parse(["run", "--out", "out", *words])))


def page(tool: Any, tmp_path: Path, *folders: Path) -> str:
    tool.render(argparse.Namespace(folders=list(folders), docs=tmp_path / "page.md"))
    return (tmp_path / "page.md").read_text()


def test_the_newest_result_counts_in_the_table_of_prs_and_every_run_is_listed(tool: Any, tmp_path: Path) -> None:
    note(tmp_path / "old", "clean-1", "fail", reason="wrong then")
    note(tmp_path / "new", "clean-1", "pass")
    note(tmp_path / "new", "vllm.router-int64-ids", "fail", reason="the ids were misread")
    text = page(tool, tmp_path, tmp_path / "old", tmp_path / "new")
    row = next(line for line in text.splitlines() if "#38359" in line)
    assert "**pass**, 1.0000" in row and "**fail**, 0.0000" in row and "the ids were misread" in row
    clean = next(line for line in text.splitlines() if line.startswith(f"| `{CASE}`"))
    assert clean.index("**fail**") < clean.index("**pass**")
    assert f"- `{CASE}` on 0.24.0: wrong then" in text


def test_a_bug_that_a_release_has_itself_is_no_false_alarm_and_a_skip_gives_way_to_a_run(
    tool: Any, tmp_path: Path
) -> None:
    stale = "vllm-kv-cache-stale[backend=FLASH_ATTN_MLA]"
    for number in (1, 2):
        note(tmp_path / "old", f"clean-{number}", "skip", reason="not installed", release="0.22.1")
        note(tmp_path / "new", f"clean-{number}", "pass", release="0.22.1")
        note(tmp_path / "own", f"clean-{number}", "fail", case=stale, reason="empty", release="0.22.1")
    text = page(tool, tmp_path, tmp_path / "old", tmp_path / "new", tmp_path / "own")
    assert "- 0.22.1: 1 of 1 clean cases passed, each twice; of bugs of its own 2 of 2 runs failed" in text
    assert "not installed" not in text and "### Not passed" not in text
    own = text.partition("### Bugs that a release has itself")[2]
    assert next(line for line in own.splitlines() if stale in line).count("**fail**") == 2
    assert "vllm-project/vllm#43961" in own


def test_a_clean_case_that_failed_once_is_not_counted_as_passed(tool: Any, tmp_path: Path) -> None:
    note(tmp_path / "new", "clean-1", "pass")
    note(tmp_path / "new", "clean-2", "fail", reason="too few right")
    assert "- 0.24.0: 0 of 1 clean cases passed, each twice" in page(tool, tmp_path, tmp_path / "new")


def test_a_fault_that_got_through_is_not_called_caught(tool: Any, tmp_path: Path) -> None:
    note(tmp_path / "new", "clean-1", "pass")
    note(tmp_path / "new", "vllm.router-int64-ids", "pass")
    text = page(tool, tmp_path, tmp_path / "new")
    assert "not caught" in next(line for line in text.splitlines() if "#38359" in line)


def test_the_harness_s_own_time_limit_is_no_crash_of_vllm(tool: Any, tmp_path: Path) -> None:
    note(tmp_path / "new", "clean-1", "crash", reason="no answer within 300 s; the worker was killed")
    assert "**timed out**" in page(tool, tmp_path, tmp_path / "new")


def test_the_fault_of_the_hybrid_canary_waits_for_compiled_kernels_and_the_clean_round_does_not(tool: Any) -> None:
    waiting = steps(tool, "--release", "0.24.0=here")
    started = []
    running: list[Any] = []
    while (step := tool.next_step(waiting, running)) is not None:
        waiting.remove(step)
        running.append(step)
        started.append(step.name)
    waits = {"vllm.skip-zero-new-blocks", "hybrid-1"}
    assert started[0] == "warm" and "clean-1" in started and not waits & set(started)
    assert waits <= {step.name for step in waiting}
    running.remove(next(step for step in running if step.name == "warm"))
    assert tool.next_step(waiting, running).name == "vllm.skip-zero-new-blocks"


def test_the_page_says_what_a_round_took_that_was_not_cut(tool: Any, tmp_path: Path) -> None:
    for step, verdict in (("warm", "pass"), ("clean-1", "pass"), ("vllm.router-int64-ids", "fail")):
        note(tmp_path / "whole", step, verdict)
    note(tmp_path / "cut", "clean-1", "pass")
    (tmp_path / "whole" / tool.ROUND_FILE).write_text('{"seconds": 141.4, "cores": 16}')
    text = page(tool, tmp_path, tmp_path / "whole", tmp_path / "cut")
    rounds = [line for line in text.partition("## Seconds of a round")[2].splitlines() if line.startswith("| 0.24.0")]
    assert rounds == ["| 0.24.0 | 16 | 3 | 1 | 0 | 9 | **141** |"]
    assert "## Seconds of a round" not in page(tool, tmp_path, tmp_path / "cut")


def test_each_step_goes_to_the_gpu_with_the_least_to_do_and_none_gets_too_much(tool: Any) -> None:
    placed: list[Any] = []
    for number in range(5):
        step = tool.Step(f"s{number}", "0.24.0", ["run", "-n", "5"])
        gpu = tool.free_gpu(placed, 2, 10)
        if gpu is not None:
            step.gpu = gpu
            placed.append(step)
    assert [step.gpu for step in placed] == [0, 1, 0, 1]


def test_clean_rounds_of_a_release_follow_each_other_on_one_gpu_and_run_beside_each_other_on_two(tool: Any) -> None:
    rounds = [tool.Step(f"clean-{number}", "0.24.0", ["run", "-n", "5"]) for number in (1, 2)]
    assert tool.next_step(rounds[1:], rounds[:1], gpu=0) is None
    assert tool.next_step(rounds[1:], rounds[:1], gpu=1) is rounds[1]


def test_over_two_gpus_the_newest_release_alone_is_run_and_the_page_names_the_rank(tool: Any, tmp_path: Path) -> None:
    words = ["--release", "0.9.0=old", "--release", "0.24.0=new"]
    assert not [step for step in steps(tool, *words) if step.num_gpus > 1]
    ranks = [step for step in steps(tool, *words, "--gpus", "2") if step.num_gpus > 1]
    assert {step.release for step in ranks} == {"0.24.0"} and "ranks-merge" in {step.name for step in ranks}
    case = "vllm-tensor-parallel-context[poisoned=rank-1]"
    note(tmp_path / "new", "clean-1", "pass")
    note(tmp_path / "new", "ranks-merge", "fail", case=case)
    found = FirstNan(writer="forward_mha", tensor="output", rank=1, num_ranks=2, other_ranks=("rank 0: o_proj wrote",))
    report = found.model_dump(mode="json")
    blame = {"key": f"{case}!vllm.merge-ignore-context-count", "blame": {"first_nan": report}}
    place = tmp_path / "new" / "0.24.0" / "ranks-merge" / "run" / "r1" / "blame.jsonl"
    place.write_text(json.dumps(blame) + "\n")
    row = next(line for line in page(tool, tmp_path, tmp_path / "new").splitlines() if line.startswith(f"| `{case}`"))
    assert (
        "vllm.merge-ignore-context-count" in row
        and "rank 1: forward_mha wrote output" in row
        and "rank 0: o_proj" in row
    )


def test_of_a_later_matrix_only_what_differs_from_the_first_is_listed(tool: Any, tmp_path: Path) -> None:
    name = "susceptibility[kernel=merge_attn_states/vllm-cuda,site=context.output,pattern={}]"
    found = {"0.22.1": {"nan": "fail", "inf": "fail"}, "0.24.0": {"nan": "pass", "inf": "fail", "max": "skip"}}
    for release, verdicts in found.items():
        note(tmp_path / "new", "clean-1", "pass", release=release)
        place = tmp_path / "new" / release / "susceptibility" / "run" / "r1"
        place.mkdir(parents=True)
        lines = []
        for pattern, verdict in verdicts.items():
            case = name.format(pattern)
            findings = [{"oracle": "finite", "message": "NaN in live rows of out"}] if verdict == "fail" else []
            lines.append({"key": case, "id": case, "scenario": "susceptibility", "verdict": verdict,
                          "reason": "NaN in live rows of out" if findings else "", "findings": findings})  # fmt: skip
        (place / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = page(tool, tmp_path, tmp_path / "new").partition("## Susceptibility of vLLM 0.24.0's kernels")[2]
    assert "1 of the 2 cells that ran have the outcome of 0.22.1" in text
    assert f"| `{name.format('nan')}` | NaN | clean |" in text
    assert name.format("inf") not in text and name.format("max") not in text


def test_forked_and_spawned_cases_stand_beside_each_other(tool: Any, tmp_path: Path) -> None:
    note(tmp_path / "new", "clean-1", "pass")
    step = next(step for step in steps(tool, "--release", "0.24.0=here") if step.name == "forks")
    cases = step.arguments[1:-4]
    place = tmp_path / "new" / "0.24.0" / "forks" / "run" / "r1"
    place.mkdir(parents=True)
    results = [{"id": case, "verdict": "pass", "reason": "", "seconds": 50.0 + n} for n, case in enumerate(cases)]
    (place / "results.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    text = page(tool, tmp_path, tmp_path / "new").partition("## With and without forks")[2]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 4 and rows[0] == f"| `{cases[0]}` | 0.24.0 | **pass**, 50 s | **pass**, 54 s |"
