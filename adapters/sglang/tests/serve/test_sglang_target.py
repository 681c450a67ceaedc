"""The SGLang target on a stand-in for SGLang: processes, poison, faults, verdicts.

The real one is run on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch_poison.patterns import Poison

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.cause_codes import Code
from harness.core.errors import HarnessError
from harness.core.files import FIXTURES
from harness.core.records import Verdict
from harness.judge.run_case import run_case
from harness.scenario.expand import expand
from harness.scenario.load import load_scenario, shipped_directory
from mla_harness_adapters.plan import Plan, ServePoison
from mla_harness_adapters.report import REPORT_FILE, Report
from mla_harness_adapters.serving import engine_forks
from mla_harness_sglang.options import engine_options, environ, serve_command
from mla_harness_sglang.params import SglangParams
from mla_harness_sglang.plain_script import script
from mla_harness_sglang.serve.plan import MEMORY, REPORT, SITES, told
from mla_harness_sglang.target import SglangTarget
from tests.transcripts import Approved, lines_with

pytest.importorskip("lm_eval")
FAKE = Path(__file__).parent / "fake"
PAGES_AND_TABLES = ("kv.new", "kv.tail", "kv.free", "kv.null", "block_table.pad", "graph.pad_rows")


def case(
    sites: tuple[str, ...] = (), oracles: tuple[str, ...] = ("answers",), **params: Any
) -> Case:
    settings = SglangParams(
        **{"limit": 4, "epochs": 2, "process": "spawn", "num_slots": 256, **params}
    )
    return Case(
        id="x",
        scenario="x",
        system="sglang",
        params=settings,
        oracles=oracles,
        poison=PoisonPlan(patterns=("nan",), sites=sites),
    )


@pytest.fixture(autouse=True)
def fake_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)


def run(tmp_path: Path, subject: Case, fault: str | None = None) -> Any:
    return run_case(Job(key="x", case=subject, fault=fault, device="cpu", directory=str(tmp_path)))


def test_right_answers_under_poison_pass_and_the_scheduler_says_what_it_filled(
    tmp_path: Path,
) -> None:
    subject = case(
        PAGES_AND_TABLES, ("answers", "streams"), graph="full", compare_eager=True, page_size=16
    )
    result = run(tmp_path, subject)
    assert (result.verdict, result.reason) == (Verdict.PASS, "")
    assert result.looked_at == {"answers": 8, "streams": 4, "crash": 1}
    found = json.loads((tmp_path / "nan" / "asked" / REPORT_FILE).read_text())
    counts = found["ranks"][0]["counts"]
    assert counts["steps"] == 4 and all(counts[site] > 0 for site in PAGES_AND_TABLES)


def test_a_fault_in_the_scheduler_process_is_found(tmp_path: Path) -> None:
    result = run(
        tmp_path, case(("graph.pad_rows",), graph="full"), fault="sglang.padding-slot-given"
    )
    assert result.verdict is Verdict.FAIL
    assert {finding.oracle for finding in result.findings} == {"answers"}
    assert "SGLang's own log line" in result.log


def drafting() -> Case:
    return case(oracles=("answers", "acceptance"), canary="mtp", task="drafts", speculative="mtp")


@pytest.mark.nightly
def test_every_draft_of_a_module_that_knows_the_answers_is_accepted(tmp_path: Path) -> None:
    result = run(tmp_path, drafting())
    assert (result.verdict, result.reason) == (Verdict.PASS, "")
    assert result.looked_at["acceptance"] == 2


@pytest.mark.nightly
def test_a_refused_draft_is_a_finding_though_each_answer_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_SGLANG", "refuses-drafts")
    result = run(tmp_path, drafting())
    (finding,) = result.findings
    assert (result.verdict, finding.oracle) == (Verdict.FAIL, "acceptance")
    assert result.looked_at["acceptance"] == 2
    approved([f"{finding.where}:", finding.message])


@pytest.mark.nightly
def test_an_engine_that_counts_no_drafts_is_an_error_and_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_SGLANG", "counts-nothing")
    result = run(tmp_path, drafting())
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


@pytest.fixture(scope="module")
def imported() -> Iterator[engine_forks]:
    """The imports of all tests that need no process of its own.

    Imports of the real SGLang cannot be forked.
    """
    forks = engine_forks("mla_harness_sglang.serve.scheduler", "SGLang")
    yield forks
    forks.close()


@pytest.fixture
def forks(imported: engine_forks, monkeypatch: pytest.MonkeyPatch) -> engine_forks:
    monkeypatch.setattr(SglangTarget, "_forks", imported)
    monkeypatch.setenv("FAKE_SGLANG_START", "fork")
    return imported


@pytest.mark.nightly
def test_processes_that_are_forks_answer_like_spawned_ones(
    tmp_path: Path, forks: engine_forks
) -> None:
    for fault, verdict in (("", Verdict.PASS), ("sglang.padding-slot-given", Verdict.FAIL)):
        subject = case(("graph.pad_rows",), graph="full", process="fork")
        result = run(tmp_path / verdict.value, subject, fault=fault or None)
        assert result.verdict is verdict, result.reason
    assert forks.server({}, 1.0) is not None


@pytest.mark.nightly
def test_the_first_nan_is_recorded_in_the_scheduler(tmp_path: Path) -> None:
    subject = case(("graph.pad_rows",), graph="full")
    poison = Poison("nan", frozenset({"graph.pad_rows"}))
    found = SglangTarget(subject, fault="sglang.padding-slot-given").first_writer(poison)
    assert (found.writer, found.step, found.phase) == ("Inner", 1, "decode")
    clean = SglangTarget(subject).first_writer(poison)
    assert not clean.writer and not clean.missing_report


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("how", "verdict", "cause"),
    [
        ("wrong", Verdict.FAIL, Code.LIMIT),
        ("die", Verdict.CRASH, Code.DIED),
        ("break", Verdict.CRASH, Code.RAISED),
        ("leak", Verdict.CRASH, Code.RAISED),
        ("refuse", Verdict.SKIP, Code.REFUSED),
        ("refuse-late", Verdict.SKIP, Code.REFUSED),
        ("unknown", Verdict.SKIP, Code.REFUSED),
    ],
)
def test_wrong_answers_deaths_and_refusals(
    how: str,
    verdict: Verdict,
    cause: Code,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forks: engine_forks,
    approved: Approved,
) -> None:
    monkeypatch.setenv("FAKE_SGLANG", how)
    result = run(tmp_path, case(process="spawn" if how == "die" else "fork"))
    assert result.verdict is verdict
    causes = [finding.cause for finding in result.findings] or [result.cause]
    assert causes[0] == cause
    approved(result.reason)


def test_a_server_that_hangs_is_ended_at_its_limit_before_the_worker_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_SGLANG", "hang")
    result = run(tmp_path, case(timeout_seconds=2))
    (finding,) = result.findings
    assert (result.verdict, finding.cause) == (Verdict.CRASH, Code.TIME_LIMIT)
    # How far it came by then depends on the machine.
    approved(result.reason.partition(",")[0])
    assert case(timeout_seconds=2).params.own_timeout == 2 + 60
    assert (
        case(timeout_seconds=2, compare_eager=True, graph="full").params.own_timeout == 2 + 2 + 60
    )


def test_a_fault_whose_code_is_not_there_is_an_error_and_never_a_pass(
    tmp_path: Path, forks: engine_forks, approved: Approved
) -> None:
    result = run(tmp_path, case(process="fork"), fault="sglang.plan-of-capture")
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


def test_sites_that_a_case_lacks_or_its_backend_needs_finite_are_left_out() -> None:
    everything = Poison("nan", frozenset(SITES))

    def sites(**params: Any) -> set[str]:
        plan = SglangTarget(case(**params)).plan(Path("x"), everything)
        assert plan.poison is not None
        return set(SITES) - set(plan.poison.sites)

    assert sites() == {"kv.tail", "graph.pad_rows", "graph.pool"}
    assert sites(graph="full", page_size=64) == set()
    assert sites(graph="full", overlap=True) == {"kv.tail", "block_table.pad"}
    assert sites(backend="flashmla", page_size=64, graph="full") == {
        "kv.new",
        "kv.tail",
        "kv.free",
        "kv.null",
    }


def test_the_canary_of_sparse_attention_takes_the_backend_that_sglang_chooses(
    approved: Approved,
) -> None:
    sparse = SglangParams(canary="dsa", task="recall", backend="default", page_size=64)
    options = engine_options(sparse, "none")
    assert not [name for name in options if "attention_backend" in name]
    assert (
        json.loads(options["json_model_override_args"]) == {"index_topk": 2048}
        and options["context_length"] == 8192
    )
    for wrong in ({"canary": "dsa", "task": "recall"}, {"backend": "default", "page_size": 64}):
        with approved.raises(ValueError, f"{wrong}"):
            SglangParams.model_validate(wrong)


def test_ranks_of_experts_have_a_gpu_each_and_no_custom_all_reduce() -> None:
    params = SglangParams(canary="moe", tensor_parallel=2, expert_parallel=True, quantization="fp8")
    options = engine_options(params, "none")
    assert params.num_gpus == 2
    assert (options["tp_size"], options["ep_size"], options["disable_custom_all_reduce"]) == (
        2,
        2,
        True,
    )
    assert engine_options(SglangParams(canary="moe", tensor_parallel=2), "none")["ep_size"] == 1
    assert "tp_size" not in engine_options(SglangParams(), "none")


def test_ranks_are_skipped_where_there_are_too_few_gpus(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert SglangTarget.why_not(case(tensor_parallel=2)) is None
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    why = SglangTarget.why_not(case(tensor_parallel=2))
    assert why is not None and why.cause == Code.NO_DEVICE
    approved(str(why))


def test_a_scheduler_without_fault_poison_or_report_proves_nothing(
    tmp_path: Path, approved: Approved
) -> None:
    poison = ServePoison(("kv.new", "output"))
    plan = Plan(folder=str(tmp_path), poison=poison, fault="sglang.padding-slot-given")

    def check(plan: Plan, num_ranks: int = 1) -> None:
        Report.of(told(plan)).check(plan, MEMORY, num_ranks, "scheduler")

    with approved.raises(HarnessError, "no report"):
        check(plan)
    state = {"rank": 0, "process": 1, "fault": "", "counts": {"steps": 1, "sweeps": 1}}
    (tmp_path / REPORT.format(rank=0)).write_text(json.dumps(state))
    with approved.raises(HarnessError, "no fault"):
        check(plan)
    with approved.raises(HarnessError, "no poison"):
        check(plan.but(fault=""))
    check(plan.but(fault="", records=True))
    with approved.raises(HarnessError, "one rank of two"):
        check(Plan(folder=str(tmp_path)), num_ranks=2)
    (tmp_path / REPORT.format(rank=0)).write_text(json.dumps(state | {"counts": {}}))
    with approved.raises(HarnessError, "no steps"):
        check(Plan(folder=str(tmp_path)))


def test_options_of_a_release_and_the_models_that_are_not_imported() -> None:
    full = engine_options(SglangParams(graph="full", kv="fp8_e4m3"), "full")
    assert full["cuda_graph_backend_decode"] == "full" and full["kv_cache_dtype"] == "fp8_e4m3"
    assert "cuda_graph_bs_decode" in serve_command(case(graph="full")).replace("-", "_")
    assert environ()["SGLANG_DISABLED_MODEL_ARCHS"] == "llama"
    checks = "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE"
    assert (environ()[checks], environ(is_faulty=True)[checks]) == ("true", "false")
    decode = engine_options(SglangParams(backend="flashmla", page_size=64), "none")
    assert (decode["prefill_attention_backend"], decode["decode_attention_backend"]) == (
        "triton",
        "flashmla",
    )


def test_a_release_before_graphs_had_phases_gets_the_options_that_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mla_harness_adapters.base.installed_version", lambda engine: "0.5.13")
    old = engine_options(SglangParams(graph="full", capture_sizes=(1, 2)), "full")
    assert old["cuda_graph_bs"] == [1, 2] and old["disable_piecewise_cuda_graph"]
    none = engine_options(SglangParams(), "none")
    assert none["disable_cuda_graph"] and "cuda_graph_bs" not in none
    assert not [name for name in old | none if name.startswith("cuda_graph_backend")]


def test_what_a_release_cannot_serve_is_skipped_with_that_reason(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    checked = case(kv_canary="raise")
    monkeypatch.setattr("mla_harness_adapters.base.installed_version", lambda engine: "0.5.13")
    assert SglangTarget.why_not(checked) is None
    monkeypatch.setattr("mla_harness_adapters.base.installed_version", lambda engine: "0.5.12")
    approved(str(SglangTarget.why_not(checked)))


@pytest.mark.parametrize(("version", "columns"), [("0.5.14", 256), ("0.5.15", 1024)])
def test_a_module_has_the_columns_that_the_kernel_of_a_release_takes(
    version: str, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mla_harness_adapters.base.installed_version", lambda engine: version)
    target = SglangTarget(drafting())
    plan = target.plan(tmp_path, Poison("zeros", frozenset()))
    options = target._process(plan, is_eager=False).request.options
    config = json.loads(Path(str(options["model_path"]), "config.json").read_text())
    assert config["hidden_size"] == columns


@pytest.mark.nightly
def test_a_refusal_of_an_earlier_run_in_the_folder_is_not_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: engine_forks
) -> None:
    monkeypatch.setenv("FAKE_SGLANG", "refuse")
    assert run(tmp_path, case(process="fork")).verdict is Verdict.SKIP
    monkeypatch.setenv("FAKE_SGLANG", "break")
    assert run(tmp_path, case(process="fork")).verdict is Verdict.CRASH


def test_the_survey_is_small_compiles_no_backend_and_captures_few_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    cases = expand(load_scenario(shipped_directory() / "sglang" / "sglang-survey.yaml"))
    surveyed = [one.params_as(SglangParams) for one in cases]
    assert len(surveyed) <= 40 and surveyed[0].model_copy(update={"limit": 128}) == SglangParams(
        capture_sizes=surveyed[0].capture_sizes, timeout_seconds=surveyed[0].timeout_seconds
    )
    for params in surveyed:
        options = engine_options(params, params.graph)
        assert (
            not list(params.problems())
            and SglangTarget.why_not(case(**params.model_dump())) is None
        )
        assert "flashinfer" not in options.values() and options["disable_flashinfer_autotune"]
        assert params.graph != "full" or len(options["cuda_graph_bs_decode"]) <= 3


@pytest.mark.nightly
def test_the_plain_script_runs_without_the_project_and_asserts(
    tmp_path: Path, approved: Approved
) -> None:
    text = script(case(graph="full", page_size=64, num_slots=8192), "  # the failing options")
    approved(lines_with(text, "the failing options"), "the marked line")
    assert "harness." not in text
    file = tmp_path / "plain.py"
    file.write_text(text)
    (tmp_path / "sglang.py").write_text(
        "__version__ = '0'\nclass Engine:\n    def __init__(self, **options): assert"
        " options['page_size'] == 64 and options['cuda_graph_bs_decode']\n    def generate(self,"
        " prompt, **more):\n        one = {'text': '#### -1', 'meta_info':"
        " {'output_token_logprobs': [(float('nan'), 1, None)]}}\n        return [one for _ in"
        " prompt]\n    def shutdown(self): pass\n"
    )
    environment = {**os.environ, "FIXTURES": str(FIXTURES), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    approved(lines_with(done.stdout, "right answers"), "what it finds")
