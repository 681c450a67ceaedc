"""What a machine could judge too with one thing more, counted from skipped cases."""

from __future__ import annotations

from pathlib import Path

from harness.core.cases import Case, Job
from harness.core.records import CaseResult, Verdict
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.report import page
from harness.report.gains import gains
from harness.report.run_view import RunView
from harness.store.run_folder import RunStore
from tests.transcripts import Approved, page_text

GPU = {"a CUDA GPU": ""}
VLLM = {"vLLM": "pip install '.[vllm]'"}
LACKS = [{}, VLLM | GPU, VLLM | GPU, VLLM | GPU, GPU, VLLM, VLLM]


def skipped(lacks: list[dict[str, str]], verdict: Verdict = Verdict.SKIP) -> list[CaseResult]:
    return [
        CaseResult(key=f"c{n}", id=f"c{n}", scenario="s", verdict=verdict, lacks=one)
        for n, one in enumerate(lacks)
    ]


def test_one_thing_stands_before_two_and_many_cases_before_few(approved: Approved) -> None:
    found = gains(skipped(LACKS))
    approved("\n".join(f"{gain.sentence}: {gain.commands}" for gain in found))


def test_a_case_that_needs_two_things_counts_for_neither_alone() -> None:
    counts = {gain.things: gain.num_cases for gain in gains(skipped(LACKS))}
    assert (counts["vLLM"], counts["a CUDA GPU"], counts["vLLM and a CUDA GPU"]) == (2, 1, 3)


def test_a_case_that_was_judged_gains_nothing() -> None:
    assert gains(skipped(LACKS, Verdict.PASS)) == []


def test_the_page_says_it_with_the_command(tmp_path: Path) -> None:
    params = MlaDecodeParams(kernel="tiled")
    results = skipped(LACKS)
    cases = [
        Case(id=one.id, scenario="s", system="kernel", op="mla_decode", params=params)
        for one in results
    ]
    store = RunStore.create(tmp_path, [Job(key=c.id, case=c) for c in cases], command="x")
    for result in results:
        store.add(result)
    text = page_text(page.render(RunView(store)))
    assert "2 more cases with vLLM" in text and "pip install '.[vllm]'" in text
