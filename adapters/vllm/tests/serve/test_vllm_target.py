"""The vLLM target on a stand-in for vLLM: processes, logs, verdicts.

The real one is run on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from torch_poison.patterns import Poison

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.cause_codes import Code
from harness.core.errors import HarnessError, KernelError
from harness.core.files import FIXTURES
from harness.core.records import Verdict
from harness.judge.run_case import run_case
from mla_harness_adapters.plan import Plan, ServePoison
from mla_harness_adapters.report import REPORT_FILE, ProcessReport, Report
from mla_harness_adapters.serving import engine_forks, last_words
from mla_harness_vllm.options import OPTION_ERRORS, environ, llm_options, serve_command
from mla_harness_vllm.params import VllmParams
from mla_harness_vllm.serve import refused_drafts
from mla_harness_vllm.serve.settings import MEMORY, ROUTING_VARIABLE, STRATEGY
from mla_harness_vllm.target import VllmTarget
from tests.transcripts import Approved, lines_with

pytest.importorskip("lm_eval")
FAKE = Path(__file__).parent / "fake"


def case(**params: Any) -> Case:
    settings = VllmParams(limit=4, epochs=2, **params)
    return Case(
        id="x",
        scenario="x",
        system="vllm",
        params=settings,
        oracles=("answers", "streams"),
        poison=PoisonPlan(patterns=("nan",), sites=()),
    )


@pytest.fixture(autouse=True)
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)


def run(tmp_path: Path, subject: Case, fault: str | None = None) -> Any:
    return run_case(Job(key="x", case=subject, fault=fault, device="cpu", directory=str(tmp_path)))


def test_a_serving_process_that_answers_right_passes_with_and_without_graphs(
    tmp_path: Path,
) -> None:
    result = run(tmp_path, case(graph="full", compare_eager=True))
    assert (result.verdict, result.reason) == (Verdict.PASS, "")
    assert result.accuracy is not None and [epoch.accuracy for epoch in result.accuracy.epochs] == [
        1.0,
        1.0,
    ]
    assert result.looked_at == {"answers": 8, "streams": 4, "crash": 1}


def test_wrong_answers_fail_and_carry_vllms_own_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "wrong")
    result = run(tmp_path, case(graph="full", compare_eager=True))
    assert result.verdict is Verdict.FAIL
    assert {finding.oracle for finding in result.findings} == {"answers", "streams"}
    assert "vLLM's own log line" in result.log


@pytest.mark.parametrize(("how", "cause"), [("raise", Code.RAISED), ("die", Code.DIED)])
def test_a_serving_process_that_dies_is_a_crash_with_its_last_words(
    how: str, cause: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", how)
    result = run(tmp_path, case(graph="none").model_copy(update={"oracles": ("answers",)}))
    assert (result.verdict, result.findings[0].cause) == (Verdict.CRASH, cause)
    assert "vLLM's own log line" in result.log
    approved(result.reason)


def test_a_fault_that_the_release_has_as_released_is_skipped_with_that_reason(
    tmp_path: Path,
) -> None:
    result = run(tmp_path, case(), fault="vllm.skip-zero-new-blocks")
    assert (result.verdict, result.cause) == (Verdict.SKIP, Code.AS_RELEASED)


def test_a_fault_whose_code_is_not_there_is_an_error_and_never_a_pass(
    tmp_path: Path, approved: Approved
) -> None:
    result = run(tmp_path, case(), fault="vllm.fresh-plan-each-step")
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


def test_pages_that_the_backend_is_promised_finite_are_not_poisoned() -> None:
    everything = Poison("nan", frozenset({"kv.new", "kv.tail", "output"}))

    def sites(**params: Any) -> set[str]:
        plan = VllmTarget(case(**params)).plan(Path("x"), everything)
        assert plan.poison is not None
        return set(plan.poison.sites)

    assert sites(backend="FLASHMLA") == {"output"}
    assert sites(backend="FLASHMLA", canary="hybrid") == {"output", "kv.new"}
    assert sites(backend="TRITON_MLA") == {"output", "kv.new", "kv.tail"}


def test_memory_and_graphs_are_stated_to_vllm() -> None:
    options = llm_options(VllmParams(graph="full", num_blocks=96, kv="fp8_e4m3"), "full")
    assert options["num_gpu_blocks_override"] == 96
    assert options["kv_cache_dtype"] == "fp8"
    assert options["compilation_config"]["cudagraph_mode"] == "FULL"
    assert llm_options(VllmParams(), "none")["enforce_eager"] is True


def test_the_canary_of_sparse_attention_has_its_own_backends_lengths_and_cache(
    approved: Approved,
) -> None:
    params = VllmParams(
        canary="dsa", task="recall", backend="FLASHMLA_SPARSE", kv="fp8_e4m3", index_topk=2048
    )
    options = llm_options(params, "none")
    assert (options["kv_cache_dtype"], options["max_model_len"]) == ("fp8_ds_mla", 8192)
    assert options["hf_overrides"] == {"index_topk": 2048}
    for wrong in ({"canary": "dsa", "task": "recall"}, {"backend": "FLASHMLA_SPARSE"}):
        with approved.raises(ValueError, f"{wrong}"):
            VllmParams.model_validate(wrong)


def drafting() -> Case:
    subject = case(canary="mtp", task="drafts", speculative="mtp")
    return subject.model_copy(update={"oracles": ("answers", "acceptance")})


@pytest.mark.nightly
def test_every_draft_of_a_module_that_knows_the_answers_is_accepted(
    tmp_path: Path, approved: Approved
) -> None:
    result = run(tmp_path, drafting())
    assert (result.verdict, result.reason) == (Verdict.PASS, "")
    assert result.looked_at == {"answers": 8, "acceptance": 2, "crash": 1}
    options = llm_options(VllmParams(canary="mtp", task="drafts", speculative="mtp"), "none")
    assert options["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 3}
    by_eagle = VllmParams(canary="mtp", task="drafts", speculative="eagle")
    assert llm_options(by_eagle, "none")["speculative_config"] == {
        "method": "eagle",
        "num_speculative_tokens": 3,
        "model": str(FIXTURES / "canary-eagle"),
    }
    with approved.raises(ValueError):
        VllmParams(speculative="mtp")


def test_a_canary_is_asked_what_it_has_learned(approved: Approved) -> None:
    with approved.raises(ValueError):
        VllmParams(canary="mtp")
    with approved.raises(ValueError):
        VllmParams(canary="dsa", task="drafts")


def test_a_refused_draft_is_a_finding_though_each_answer_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "refuses-drafts")
    result = run(tmp_path, drafting())
    assert result.verdict is Verdict.FAIL
    assert result.accuracy is not None and [epoch.accuracy for epoch in result.accuracy.epochs] == [
        1.0,
        1.0,
    ]
    (finding,) = result.findings
    assert finding.oracle == "acceptance"
    approved([f"{finding.where}:", finding.message])


@pytest.mark.parametrize(("before", "counted"), [(0, []), (1, [3])])
def test_placeholders_before_the_first_token_are_no_drafts(
    monkeypatch: pytest.MonkeyPatch, before: int, counted: list[int]
) -> None:
    found: list[int] = []

    class Scheduler:
        requests: ClassVar[dict[str, Any]] = {"7": SimpleNamespace(num_output_tokens=before)}

        def make_spec_decoding_stats(
            self, stats: str, *, num_draft_tokens: int, **more: Any
        ) -> str:
            found.append(num_draft_tokens)
            return stats

    monkeypatch.setitem(
        sys.modules, "vllm.v1.core.sched.scheduler", SimpleNamespace(Scheduler=Scheduler)
    )
    monkeypatch.setattr(refused_drafts, "REFUSED", [])
    refused_drafts.install()
    given = {"num_draft_tokens": 3, "num_accepted_tokens": 0, "request_id": "7"}
    assert Scheduler().make_spec_decoding_stats("stats", **given) == "stats"
    assert found == counted
    assert len(refused_drafts.REFUSED) == len(counted)


def test_an_engine_that_counts_no_drafts_is_an_error_and_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "counts-nothing")
    result = run(tmp_path, drafting())
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


def test_a_poison_that_filled_nothing_is_an_error_and_no_pass(
    tmp_path: Path, approved: Approved
) -> None:
    subject = case(canary="hybrid").model_copy(update={"oracles": ("answers",)})
    subject = subject.model_copy(
        update={"poison": PoisonPlan(patterns=("nan",), sites=("kv.new",))}
    )
    result = run(tmp_path, subject)
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


def test_a_backend_of_another_gpu_is_skipped_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    result = run(tmp_path, case(backend="FLASHINFER_MLA"))
    assert (result.verdict, result.cause) == (Verdict.SKIP, Code.NO_DEVICE)
    approved(result.reason)


@pytest.mark.parametrize(
    ("version", "params"),
    [
        ("0.21.0", {"backend": "TRITON_MLA", "graph": "full"}),
        ("0.22.1", {"canary": "moe", "quantization": "fp8_per_tensor"}),
    ],
    ids=["full-graphs", "fp8-experts"],
)
def test_what_a_release_cannot_serve_is_skipped_with_that_reason(
    version: str,
    params: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    monkeypatch.setattr("mla_harness_adapters.base.installed_version", lambda engine: version)
    result = run(tmp_path, case(**params))
    assert result.verdict is Verdict.SKIP
    approved(result.reason)


def test_the_simulator_and_the_experts_kernel_are_stated_to_vllm() -> None:
    params = VllmParams(
        canary="moe", routing="simulated", quantization="fp8_per_tensor", graph="piecewise"
    )
    options = llm_options(params, "piecewise")
    assert options["moe_backend"] == "triton" and options["quantization"] == "fp8_per_tensor"
    assert (
        options["compilation_config"]["mode"] == 3
        and options["compilation_config"]["backend"] == "eager"
    )
    natural = Poison("natural", frozenset())
    plan = VllmTarget(case(canary="moe", routing="simulated")).plan(Path("x"), natural)
    assert environ(params, plan)[ROUTING_VARIABLE] == STRATEGY
    assert ROUTING_VARIABLE not in environ(VllmParams(), Plan(folder="x"))


LOG = """
WARNING 11-21 19:40:00 [interface.py:243] Failed to import from vllm._C: ModuleNotFoundError("No module named 'x'")
(Worker_TP1 pid=7) ERROR 11-21 19:40:01 [multiproc_executor.py:870] WorkerProc failed to start.
(Worker_TP1 pid=7) ERROR 11-21 19:40:01 [multiproc_executor.py:870] Traceback (most recent call last):
(Worker_TP1 pid=7) ERROR 11-21 19:40:01 [multiproc_executor.py:870] torch.AcceleratorError: CUDA error: invalid device
(Worker_TP0 pid=6) RuntimeError: the other rank is gone
"""  # noqa: E501


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            LOG + "Exception: WorkerProc initialization failed due to an exception: see above\n",
            "invalid device",
        ),
        (
            LOG.replace("(Worker_TP1 pid=7) ", "")
            + "Exception: WorkerProc initialization failed: x\n",
            "invalid device",
        ),
        (LOG + "TimeoutError: RPC call to execute_model timed out.\n", "invalid device"),
        (LOG + "ValueError: a head too many\n", "ValueError: a head too many"),
        ("loading\nTimeoutError: RPC call to execute_model timed out.\n", "timed out"),
        ("loading\n", "loading"),
        ("", "it printed nothing"),
    ],
)
def test_the_cause_is_that_of_the_worker_which_failed_first(log: str, words: str) -> None:
    assert words in last_words(log)


def worker(
    rank: int, fault: str = "", routing: str = "", sweeps: int = 9, blocks: int = 0
) -> ProcessReport:
    """What a worker says of itself whose free memory was swept, and little else filled."""
    counts = {"steps": 9, "sweeps": sweeps, "blocks": blocks}
    return ProcessReport(rank=rank, process=100 + rank, fault=fault, routing=routing, counts=counts)


def checked(workers: list[ProcessReport], **plan: Any) -> None:
    report = Report.of(one.model_dump() for one in workers)
    report.check(Plan(folder="x", **plan), MEMORY, 2, "worker")


def test_context_rows_that_were_asked_for_and_never_filled_are_an_error(
    approved: Approved,
) -> None:
    checked([worker(0), worker(1)], poison=ServePoison(("output",)))
    with approved.raises(HarnessError):
        checked([worker(0), worker(1)], poison=ServePoison(("output", "context.output")))


def test_a_rank_on_which_nothing_was_filled_is_an_error_though_another_filled(
    approved: Approved,
) -> None:
    with approved.raises(HarnessError):
        checked([worker(0), worker(1, sweeps=0)], poison=ServePoison(("output",)))


def test_a_poison_of_one_rank_is_filled_there_and_nowhere_else(approved: Approved) -> None:
    checked([worker(0, sweeps=0), worker(1)], poison=ServePoison(("output",), rank=1))
    with approved.raises(HarnessError):
        checked([worker(0), worker(1)], poison=ServePoison(("output",), rank=1))


def test_a_rank_that_is_missing_or_lacks_the_fault_or_the_routing_is_an_error(
    approved: Approved,
) -> None:
    with approved.raises(HarnessError):
        checked([worker(0)])
    with approved.raises(HarnessError):
        checked([worker(1), worker(1)])
    with approved.raises(HarnessError):
        checked([worker(0, fault="x"), worker(1)], fault="x")
    checked([worker(0, routing=STRATEGY), worker(1, routing=STRATEGY)], routing=STRATEGY)
    with approved.raises(HarnessError):
        checked([worker(0, routing=STRATEGY), worker(1)], routing=STRATEGY)


def test_what_workers_filled_is_added_up_and_kept_by_rank(tmp_path: Path) -> None:
    report = Report.of(one.model_dump() for one in (worker(1, blocks=3), worker(0)))
    report.keep(tmp_path)
    stored = json.loads((tmp_path / REPORT_FILE).read_text())
    assert stored["counts"] == {"steps": 18, "sweeps": 18, "blocks": 3}
    assert [(one["rank"], one["counts"]["blocks"]) for one in stored["ranks"]] == [(0, 0), (1, 3)]


@pytest.mark.nightly
def test_delayed_copies_of_which_none_was_watched_prove_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, case(streams="delayed").model_copy(update={"oracles": ("answers",)}))
    assert (result.verdict, result.cause) == (
        Verdict.ERROR,
        Code.BLIND,
    ) and "ordered" in result.reason


def test_options_that_vllm_refuses_are_a_skip_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "refuse")
    result = run(tmp_path, case(graph="full"))
    assert (result.verdict, result.cause) == (Verdict.SKIP, Code.REFUSED)
    approved(result.reason)


def test_a_gpu_that_others_hold_is_a_crash_and_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "no-room")
    result = run(tmp_path, case(graph="full"))
    assert (result.verdict, result.findings[0].cause) == (Verdict.CRASH, Code.RAISED)
    approved(result.reason)
    assert OPTION_ERRORS.of_log(KernelError("ValueError: Free memory on device cuda:0")) is None


@pytest.mark.first(1)
@pytest.mark.parametrize("process", ["fork", "spawn"])
def test_a_fork_and_a_new_process_give_the_same_answers(process: str, tmp_path: Path) -> None:
    result = run(
        tmp_path, case(graph="none", process=process).model_copy(update={"oracles": ("answers",)})
    )
    assert result.accuracy is not None and result.verdict is Verdict.PASS


@pytest.mark.nightly
def test_a_release_that_cannot_be_forked_is_imported_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    approved: Approved,
) -> None:
    def no_server(*_: Any, **__: Any) -> Any:
        raise HarnessError("importing initialized CUDA")

    monkeypatch.setattr("harness.run.fork_server.ForkServer", no_server)
    monkeypatch.setattr(
        VllmTarget, "_forks", engine_forks("mla_harness_vllm.serve.imports:import_all", "vLLM")
    )
    result = run(tmp_path, case(graph="none").model_copy(update={"oracles": ("answers",)}))
    assert result.verdict is Verdict.PASS
    approved(lines_with(capsys.readouterr().err, "importing initialized CUDA"))


@pytest.mark.nightly
def test_a_module_that_touches_cuda_is_left_to_the_forks(
    tmp_path: Path, approved: Approved
) -> None:
    (tmp_path / "probing.py").write_text(
        "import torch\ntry:\n    torch.cuda.init()\nexcept Exception:\n    pass\n"
    )
    program = (
        "import sys\nfrom mla_harness_vllm.serve import imports\nimports.MODULES = ('probing',"
        " 'json')\nimports.import_all()\nimport torch\nassert 'probing' not in sys.modules and"
        " 'json' in sys.modules and not torch.cuda.is_initialized()\nassert 'imports' not in"
        " torch.cuda._lazy_init.__module__\n"
    )
    path = os.pathsep.join((str(tmp_path), str(FAKE), str(Path(__file__).parents[4])))
    environ_ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ_, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    approved(lines_with(done.stderr, "probing"))


@pytest.mark.nightly
def test_the_fork_server_registers_the_models_of_the_canaries(
    tmp_path: Path, approved: Approved
) -> None:
    """Their inspection in a new process took a minute of each first case on a busy machine."""
    folder = tmp_path / "vllm" / "model_executor" / "models"
    folder.mkdir(parents=True)
    (folder / "registry.py").write_text(
        "class Lazy:\n"
        "    def load_model_cls(self):\n"
        "        return Model\n"
        "class Model: ...\n"
        "class ModelRegistry:\n"
        "    models = {'DeepseekV2ForCausalLM': Lazy()}\n"
        "    @classmethod\n"
        "    def register_model(cls, name, model):\n"
        "        cls.models[name] = model\n"
    )
    program = (
        "from mla_harness_vllm.serve.imports import import_all; import_all()\n"
        "from vllm.model_executor.models.registry import Model, ModelRegistry\n"
        "assert ModelRegistry.models == {'DeepseekV2ForCausalLM': Model}\n"
    )
    environ_ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(tmp_path), str(Path(__file__).parents[4]))),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ_, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    approved(lines_with(done.stderr, "KimiLinearForCausalLM"))


def test_a_served_vllm_takes_a_script_and_ends_with_the_case(
    tmp_path: Path, approved: Approved
) -> None:
    result = run(tmp_path, script_case("cache-reuse"))
    assert result.verdict is Verdict.PASS and result.looked_at["sequences"] > 100
    approved(result.reason)


@pytest.mark.nightly
def test_a_reload_is_compared_with_a_second_server_that_has_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, script_case("reload")).verdict is Verdict.PASS
    monkeypatch.setenv("FAKE_VLLM", "reload-keeps-half")
    result = run(tmp_path, script_case("reload"))
    assert (
        result.verdict is Verdict.FAIL and result.findings[0].where == "step 4 (with other weights)"
    )
    assert {finding.oracle for finding in result.findings} == {"sequences"}


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("behaviour", "verdict"),
    [
        ("no-prefix-cache", Verdict.SKIP),
        ("hash-without-past", Verdict.FAIL),
        ("refuses", Verdict.SKIP),
        ("dies-at-start", Verdict.CRASH),
    ],
)
def test_a_script_that_shows_nothing_is_a_skip_and_a_server_that_ends_a_crash(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    behaviour: str,
    verdict: Verdict,
    approved: Approved,
) -> None:
    monkeypatch.setenv("FAKE_VLLM", behaviour)
    result = run(tmp_path, script_case("cache-reuse"))
    assert result.verdict is verdict
    approved(result.reason)


def test_the_command_of_a_case_with_a_script_is_the_server_that_it_asks(
    approved: Approved,
) -> None:
    command = serve_command(script_case("sleep", speculative="ngram"))
    assert "vllm serve " in command and "--enable-sleep-mode" in command and "ngram" in command
    # vLLM's server has no --no-disable-log-stats.
    drafting = {"canary": "mtp", "task": "drafts", "speculative": "mtp"}
    assert "log-stats" not in serve_command(script_case("lengths", **drafting))
    with approved.raises(ValueError):
        script_case("sleep", graph="full", compare_eager=True)


def script_case(script: str, **params: Any) -> Case:
    settings = VllmParams(script=script, prefix_caching=True, **params)
    plan = PoisonPlan(patterns=("zeros",), sites=())
    return Case(
        id="x", scenario="x", system="vllm", params=settings, oracles=("sequences",), poison=plan
    )
