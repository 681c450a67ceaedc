"""What a run says of itself: what was judged and where, and what a green covers."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.core.cases import Case, CellOf, Job, PoisonPlan
from harness.core.conditions.table import SPACES, key_of
from harness.core.engine_params import EngineParams
from harness.core.records import CaseResult, Verdict
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.report import markdown, page
from harness.report.case_view import facts
from harness.report.console import console_for
from harness.report.meaning import meaning
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.store.run_folder import RunStore
from harness.store.source import Source
from tests.transcripts import Approved, lines_with, page_text

MACHINE = {"torch": "2.13.0", "cpu": "a CPU", "gpus": [], "harness": "0.3.0"}
DECODE = SPACES["mla_decode"]
SHOWN = {
    key_of(DECODE): (
        DECODE.coded({"tokens": DECODE["tokens"].classes[-1], "heads": "1", "window": "one"}),
        DECODE.coded({"tokens": "1", "heads": "16", "window": "one"}),
    )
}


def kernel_case(name: str, kernel: str = "tiled", **more: Any) -> Case:
    plan = PoisonPlan(sites=("kv.tail",), patterns=("nan", "zeros"))
    return Case(
        **{
            "id": name,
            "scenario": name.partition("[")[0],
            "system": "kernel",
            "op": "mla_decode",
            "params": MlaDecodeParams(kernel=kernel),
            "poison": plan,
            **more,
        }
    )


def served_case(name: str, system: str) -> Case:
    return Case(id=name, scenario=name, system=system, params=EngineParams(), poison=PoisonPlan())


def run_of(
    root: Path,
    cases: Mapping[Case, tuple[Verdict, str]],
    *,
    machine: Mapping[str, Any] = MACHINE,
    device: str = "cpu",
    cell: CellOf | None = None,
    **options: Any,
) -> RunView:
    """A finished run of these cases, each with its verdict and reason."""
    jobs = [Job(key=case.id, case=case, device=device, cell=cell) for case in cases]
    store = RunStore.create(root, jobs, command="mla-harness run", options=options)
    store.note_environment(dict(machine))
    store.note_source(Source(commit="abcdef0123", branch="topic"))
    for job, (verdict, reason) in zip(jobs, cases.values(), strict=True):
        is_good = verdict is Verdict.PASS and job.case.system == "kernel"
        more: dict[str, Any] = {"shown": SHOWN, "filled": {"kv.tail": 64}} if is_good else {}
        store.add(CaseResult.of(job, verdict, reason=reason, **more))
    return RunView(store)


def said(view: RunView) -> dict[str, str]:
    return {line.name: line.sentence for line in meaning(view)}


GOOD = (Verdict.PASS, "")
GREEN = {
    kernel_case("decode[n=1]"): GOOD,
    kernel_case("decode[n=2]"): GOOD,
    kernel_case("decode[n=3]"): (Verdict.SKIP, "no CUDA device on this machine"),
    kernel_case("decode[n=4]"): (Verdict.SKIP, "no CUDA device on this machine"),
    served_case("hybrid", "vllm"): (Verdict.SKIP, "vLLM is not installed (pip install '.[vllm]')"),
}


def printed(view: RunView) -> str:
    stream = io.StringIO()
    print_run(console_for(stream), view)
    return stream.getvalue()


def test_a_green_says_what_it_means_in_the_terminal(tmp_path: Path, approved: Approved) -> None:
    approved(printed(run_of(tmp_path, GREEN)).replace(str(tmp_path), "RUNS"))


def test_page_and_markdown_say_the_same_as_the_terminal(tmp_path: Path) -> None:
    view = run_of(tmp_path, GREEN)
    found = " ".join(page_text(page.render(view)).split())
    told = " ".join(markdown.render(view).replace("\\", "").split())
    for sentence in (*said(view).values(), *view.skips):
        assert sentence.replace("`", "") in found.replace("`", "")
        assert sentence in told


def test_a_red_run_claims_to_cover_nothing(tmp_path: Path) -> None:
    cases = {**GREEN, kernel_case("decode[n=9]"): (Verdict.ERROR, "no reference")}
    assert list(said(run_of(tmp_path, cases))) == ["judged", "on", "poison"]


def test_a_run_that_judged_nothing_says_nothing(tmp_path: Path) -> None:
    skipped = {kernel_case("decode[n=3]"): (Verdict.SKIP, "no GPU")}
    assert meaning(run_of(tmp_path, skipped)) == []


def test_many_kernels_are_counted_and_the_gpu_is_named(tmp_path: Path, approved: Approved) -> None:
    names = ("tiled", "tiled-multiply", "tiled-identity", "triton")
    cases = {kernel_case(f"d[kernel={name}]", name): GOOD for name in names}
    machine = MACHINE | {
        "gpus": [{"name": "H100"}, {"name": "H100"}],
        "engines": {"vllm": "0.33.0"},
    }
    lines = said(run_of(tmp_path, cases, machine=machine, device="cuda"))
    approved(f"{lines['judged']}\n{lines['on']}")
    assert "any GPU" not in lines["not covered"]


def test_a_kernel_that_is_judged_in_a_cell_on_a_gpu_is_said_to_run_there(tmp_path: Path) -> None:
    machine = MACHINE | {"gpus": [{"name": "H100"}]}
    cell = CellOf(server="/socket", device="cuda")
    view = run_of(tmp_path, {kernel_case("d[n=1]"): GOOD}, machine=machine, cell=cell)
    lines = said(view)
    assert lines["on"].startswith("GPU (H100), CPU (a CPU)")
    (job,) = view.jobs.values()
    (result,) = view.results
    assert dict(facts(job, result, machine))["system"] == "kernel on cuda"
    assert "any GPU" not in lines["not covered"]


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (("nan",), "nothing had written (1 kind) held NaN"),
        (
            ("max", "random"),
            "the largest finite values; second runs with random bits (1 case)",
        ),
    ],
)
def test_the_poison_is_told_in_words(tmp_path: Path, patterns: tuple[str, ...], words: str) -> None:
    plan = PoisonPlan(sites=("kv.tail",), patterns=patterns)
    assert words in said(run_of(tmp_path, {kernel_case("d[n=1]", poison=plan): GOOD}))["poison"]


def test_a_run_that_filled_no_memory_says_so(tmp_path: Path) -> None:
    plain = kernel_case("d[n=1]", poison=PoisonPlan())
    assert said(run_of(tmp_path, {plain: GOOD}))["poison"] == "none: no memory was filled"


def test_a_system_whose_every_case_was_skipped_is_not_covered(tmp_path: Path) -> None:
    lines = said(run_of(tmp_path, GREEN))
    assert "a canary served by vLLM" in lines["not covered"]
    cases = {**GREEN, served_case("plain", "vllm"): GOOD}
    assert "a canary served by vLLM" not in said(run_of(tmp_path / "b", cases))["not covered"]


def test_the_engine_is_judged_with_the_kernel_that_a_user_brought(tmp_path: Path) -> None:
    params = EngineParams(decode_kernel="tiled-multiply")
    case = served_case("e[kernel=tiled-multiply]", "engine").model_copy(
        update={"params": params, "named": ("decode_kernel",)}
    )
    told = said(run_of(tmp_path, {case: GOOD}, plugins=["/k/mine.py"]))["judged"]
    assert told == "1 case of the reference engine with mla_decode/tiled-multiply"
    told = said(run_of(tmp_path / "b", {case: GOOD}))["judged"]
    assert told == "1 case of the reference engine"


def test_the_head_names_plug_in_commit_and_command(tmp_path: Path) -> None:
    view = run_of(tmp_path, {kernel_case("d[kernel=tiled]"): GOOD}, plugins=["/k/mine.py"])
    assert dict(page.judged(view)) == {
        "plug-in": "/k/mine.py",
        "commit": "abcdef0 on topic",
        "command": "mla-harness run",
    }


def test_each_reason_of_skips_stands_once_with_its_number_most_cases_first(
    tmp_path: Path, approved: Approved
) -> None:
    view = run_of(tmp_path, GREEN)
    approved(lines_with(printed(view), "skipped "))
    text = page_text(page.render(view))
    assert text.index("2 cases: no CUDA device") < text.index("1 case: vLLM is not installed")
