"""A case over two ranks on a stand-in for vLLM, whose workers are real processes that sum over
gloo.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.cause_codes import Code
from harness.core.errors import HarnessError, InputError, KernelError
from harness.core.records import Blame, FirstNan, Verdict
from harness.diagnose.session import recorded_job
from harness.judge.run_case import run_case
from harness.report.wording import first_nan_lines
from harness.run import child
from harness.scenario.variant import changed
from mla_harness_adapters.plan import Plan, ServePoison
from mla_harness_adapters.report import first_nan_of_ranks
from mla_harness_adapters.serving import STARTED, ServingProcess, last_words, waits_for
from mla_harness_vllm.options import environ, llm_options
from mla_harness_vllm.params import VllmParams
from mla_harness_vllm.ranks import NO_MULTICAST, known_to_hang, rank_environ
from mla_harness_vllm.serve import plugin
from mla_harness_vllm.serve.settings import parse_poison
from mla_harness_vllm.target import VllmTarget
from tests.transcripts import Approved
from tests.waiting import end_limits_when, wait_until_gone

pytest.importorskip("lm_eval")
FAKE = Path(__file__).parent / "fake"
FAULT = "vllm.merge-ignore-context-count"
SITES = ("context.output", "context.lse")

HANGING = "adapters.vllm.tests.serve.hanging_start"


def case(**params: Any) -> Case:
    settings = VllmParams(limit=4, epochs=1, **{"tensor_parallel": 2, **params})
    plan = PoisonPlan(patterns=("nan",), sites=SITES)
    return Case(
        id="x", scenario="x", system="vllm", params=settings, oracles=("answers",), poison=plan
    )


@pytest.fixture(autouse=True)
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)


def job(tmp_path: Path, fault: str | None = FAULT, **params: Any) -> Job:
    return Job(key="x", case=case(**params), fault=fault, device="cpu", directory=str(tmp_path))


def ranks(tmp_path: Path) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads((tmp_path / "nan/asked/poison.json").read_text())[
        "ranks"
    ]
    return told


@pytest.mark.nightly
def test_poison_and_fault_reach_every_worker_process(tmp_path: Path) -> None:
    result = run_case(job(tmp_path))
    assert (result.verdict, result.findings[0].oracle) == (Verdict.FAIL, "answers"), result.reason
    told = ranks(tmp_path)
    assert [(one["rank"], one["fault"]) for one in told] == [(0, FAULT), (1, FAULT)]
    assert all(one["counts"]["context_rows"] == 3 for one in told)
    assert len({one["process"] for one in told}) == 2


@pytest.mark.nightly
def test_without_the_fault_both_ranks_pass_under_the_same_poison(tmp_path: Path) -> None:
    result = run_case(job(tmp_path, fault=None))
    assert (result.verdict, result.reason) == (Verdict.PASS, "")
    assert [one["fault"] for one in ranks(tmp_path)] == ["", ""]


@pytest.mark.nightly
def test_a_worker_that_lacks_the_fault_makes_the_case_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "lacking")
    result = run_case(job(tmp_path))
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


@pytest.mark.nightly
def test_the_recorder_names_the_rank_on_which_a_nan_began(
    tmp_path: Path, approved: Approved
) -> None:
    failing = job(tmp_path, poison_rank=1, max_num_seqs=4)
    assert run_case(failing).verdict is Verdict.FAIL
    assert [one["counts"]["context_rows"] for one in ranks(tmp_path)] == [0, 3]
    result = run_case(recorded_job(failing, Blame()))
    found = result.first_nan
    assert found is not None, result.reason
    assert (found.rank, found.writer, found.step) == (1, "layers.0.0.forward_mha", 0)
    said = "\n".join(first_nan_lines(Blame(first_nan=found)))
    # What sums make of a NaN's bits is the processor's.
    approved(re.sub(r"bits \S+", "bits BITS", said))


def test_options_that_a_rank_refuses_at_the_start_are_a_skip_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "rank-refuses")
    result = run_case(job(tmp_path, fault=None))
    assert (result.verdict, result.cause) == (Verdict.SKIP, Code.REFUSED)
    approved(result.reason)


@pytest.mark.nightly
def test_a_vllm_that_dies_before_its_recorders_told_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "rank-dies")
    result = run_case(recorded_job(job(tmp_path), Blame()))
    assert result.first_nan is not None, result.reason
    assert not result.first_nan.writer
    # Which of the ranks' last words come behind depends on the machine.
    approved(result.first_nan.statement.partition(" with ")[0])


@pytest.mark.parametrize(
    "how", ["start-hangs", pytest.param("ranks-hang", marks=pytest.mark.nightly)]
)
def test_ranks_that_hang_are_ended_at_the_limit_and_their_last_lines_are_named(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", how)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    pids = tmp_path / "pids"
    pids.mkdir()
    monkeypatch.setenv("FAKE_PIDS", str(pids))
    end_limits_when(monkeypatch, child, lambda: len(list(pids.iterdir())) == 2)
    result = run_case(job(tmp_path, fault=None, timeout_seconds=250))
    (finding,) = result.findings
    assert (result.verdict, finding.cause) == (Verdict.CRASH, Code.TIME_LIMIT)
    # Either rank may print first.
    approved(set(re.split(r"; (?:last lines: )?| \| ", result.reason)))
    hung = [int(path.name) for path in pids.iterdir()]
    assert len(hung) == 2
    for pid in hung:
        wait_until_gone(pid)


def test_a_start_that_hangs_is_ended_at_its_limit_with_the_rank_and_the_setting_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    log, subject = tmp_path / "vllm.log", case(timeout_seconds=3)
    end_limits_when(monkeypatch, child, lambda: log.exists() and log.read_text().count("\n") >= 2)
    settings = {**NO_MULTICAST, "VLLM_ALLREDUCE_USE_FLASHINFER": "1"}
    with approved.raises(KernelError) as raised:
        process = ServingProcess(HANGING, subject.poison, settings)
        VllmTarget(subject).reply_of(process, tmp_path)
    assert raised.value.cause is Code.TIME_LIMIT and "no end after 3 s" in str(raised.value)


def test_the_rank_that_was_silent_first_stands_in_front_and_one_without_a_line_is_counted(
    approved: Approved,
) -> None:
    log = (
        "(Worker_TP1 pid=2) INFO 11-25 14:20:01 [a.py:1] reading\n(Worker_TP0 pid=1)"
        " waiting\n(Worker_TP1 pid=2) \n"
    )
    approved([waits_for(log, 2), waits_for(log, 3), waits_for(f"{STARTED} 3 s\nasking\n", 1)])


def test_a_rank_whose_line_begins_within_the_line_of_another_has_its_own() -> None:
    log = (
        "(Worker_TP1 pid=2) INFO 11-25 14:20:01 [a.py:1] reading(Worker_TP0 pid=1) INFO 11-25"
        " 14:20:01 [a.py:2] RuntimeError: no memory\n\n"
    )
    assert waits_for(log, 2).endswith("Worker_TP1: reading | Worker_TP0: RuntimeError: no memory")
    assert last_words(log) == "RuntimeError: no memory"


def test_variables_that_wait_for_multicast_are_named_for_several_ranks_alone(
    approved: Approved,
) -> None:
    ours = rank_environ(2, (), {})
    assert known_to_hang(2, ours) == known_to_hang(1, {}) == ""
    ours["VLLM_ALLREDUCE_USE_FLASHINFER"] = "1"
    approved(known_to_hang(2, ours))


@pytest.mark.nightly
def test_workers_that_do_not_answer_for_themselves_make_the_case_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "mute")
    result = run_case(job(tmp_path, fault=None))
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


@pytest.mark.parametrize(
    ("params", "num_gpus"),
    [
        pytest.param({}, 1, id="too-few-gpus"),
        pytest.param({"tensor_parallel": 8, "canary": "moe"}, 8, id="attention-heads"),
        pytest.param({"tensor_parallel": 8, "canary": "hybrid"}, 8, id="linear-attention-heads"),
    ],
)
def test_what_cannot_be_split_here_is_skipped_with_that_reason(
    params: dict[str, Any],
    num_gpus: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)
    result = run_case(job(tmp_path, **params))
    assert result.verdict is Verdict.SKIP
    approved(result.reason)


def test_ranks_are_stated_to_vllm_and_one_gpu_is_served_as_before() -> None:
    options = llm_options(VllmParams(tensor_parallel=2), "none")
    assert (options["tensor_parallel_size"], options["distributed_executor_backend"]) == (2, "mp")
    assert options["disable_custom_all_reduce"] is True
    module, _, name = options["worker_extension_cls"].rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)
    assert not {"tensor_parallel_size", "worker_extension_cls"} & set(
        llm_options(VllmParams(), "none")
    )
    assert rank_environ(1, (), {}) == {}


def test_stages_and_context_ranks_are_stated_and_each_rank_has_a_gpu() -> None:
    params = VllmParams(tensor_parallel=4, decode_context_parallel=2, pipeline_parallel=2)
    options = llm_options(params, "none")
    assert (options["decode_context_parallel_size"], options["pipeline_parallel_size"]) == (2, 2)
    assert params.num_gpus == 8
    assert llm_options(VllmParams(pipeline_parallel=2), "none")["tensor_parallel_size"] == 1


def test_workers_inherit_what_they_are_to_do_and_multicast_stays_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", raising=False)
    poison = ServePoison(("output",), rank=1)
    plan = Plan(folder="/ranks", poison=poison, fault=FAULT, records=True)
    made = environ(VllmParams(tensor_parallel=2), plan)
    assert made["MLA_HARNESS_POISON"] == "output:nan@1" and made["MLA_HARNESS_FAULT"] == FAULT
    assert made["MLA_HARNESS_FIRST_NAN"] == "/ranks"
    assert "NCCL_NVLS_ENABLE" not in made, "the user has chosen"
    assert made["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert made["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"
    assert made["VLLM_ALLREDUCE_USE_FLASHINFER"] == "0"


@pytest.mark.parametrize(
    ("seen", "shown"),
    [("", "1,3"), ("4,5,6,7", "5,7"), ("GPU-a, GPU-b,GPU-c,GPU-d", "GPU-b,GPU-d")],
)
def test_workers_see_the_gpus_that_are_held_for_them(seen: str, shown: str) -> None:
    assert rank_environ(2, (1, 3), {"CUDA_VISIBLE_DEVICES": seen})["CUDA_VISIBLE_DEVICES"] == shown
    assert "CUDA_VISIBLE_DEVICES" not in rank_environ(2, (), {"CUDA_VISIBLE_DEVICES": seen})


def report(rank: int, writer: str, step: int = 3, after: tuple[str, ...] = ()) -> FirstNan:
    return FirstNan(
        rank=rank, writer=writer, tensor="output", step=step, phase="decode", after=after
    )


def test_the_earliest_step_is_first_whatever_the_rank() -> None:
    assert FirstNan.of_ranks([report(0, "a", 5), report(1, "z", 4)]).rank == 1


def test_within_a_step_the_rank_is_first_that_saw_the_others_writer_only_later(
    approved: Approved,
) -> None:
    found = FirstNan.of_ranks(
        [report(0, "o_proj"), report(1, "attention", after=("mlp output", "o_proj output"))]
    )
    assert (found.rank, found.num_ranks) == (1, 2)
    approved([found.statement, *found.other_ranks])
    again = FirstNan.of_ranks(
        [report(0, "attention", after=("o_proj output",)), report(1, "o_proj")]
    )
    assert (again.rank, again.writer) == (0, "attention")


def test_of_ranks_that_wrote_alike_the_lower_one_is_named_and_the_other_kept() -> None:
    found = FirstNan.of_ranks([report(1, "attention"), report(0, "attention")])
    assert found.rank == 0 and found.other_ranks == (
        report(1, "attention").model_copy(update={"num_ranks": 2}).statement,
    )


def test_a_rank_that_saw_nothing_is_told_beside_the_one_that_did(approved: Approved) -> None:
    found = FirstNan.of_ranks([FirstNan(rank=0), report(1, "attention")])
    assert found.rank == 1
    approved(found.other_ranks)
    assert not FirstNan.of_ranks([FirstNan(rank=0), FirstNan(rank=1)]).writer


def test_a_rank_without_a_recorder_is_an_error_and_one_that_died_is_told(
    tmp_path: Path, approved: Approved
) -> None:
    (tmp_path / "first-nan-rank0.json").write_text(report(0, "attention").model_dump_json())
    with approved.raises(HarnessError):
        first_nan_of_ranks(tmp_path, 2, "vLLM")
    found = first_nan_of_ranks(tmp_path, 2, "vLLM", "vLLM's process died (SIGABRT)")
    assert found.rank == 0
    approved(found.statement)


def test_a_rank_survives_the_settings_own_text() -> None:
    assert parse_poison("all:max@3").rank == 3
    poison = ServePoison(("kv.new",), "max", 0)
    assert parse_poison(poison.text()) == poison and poison.is_for(0) and not poison.is_for(1)


def test_a_rank_or_a_number_of_ranks_that_cannot_be_is_refused(approved: Approved) -> None:
    for change in ("poison_rank=2", "tensor_parallel=3", "decode_context_parallel=4"):
        with approved.raises(InputError):
            changed(case(), change)


def test_a_fault_that_is_none_is_refused_by_the_plug_in(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("MLA_HARNESS_FAULT", "vllm.router-int64")
    monkeypatch.setattr(plugin, "INSTALLED", {})
    # Afterwards no other test finds a vLLM that is imported.
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.22.1"))
    with approved.raises(InputError):
        plugin.activate()
