"""`run_case` with targets that do as they are told: each way a case can end."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_poison.errors import PoisonError
from torch_poison.patterns import Poison

from harness.core.cases import Case, CellOf, Job, PoisonPlan
from harness.core.catalog import FAULTS, KERNELS
from harness.core.cause_codes import Code, WhyNot
from harness.core.errors import CaptureError, IllegalAddress, KernelError, NoRoomError
from harness.core.extras import PACKAGES
from harness.core.faults import FaultSpec
from harness.core.kernels import KernelSpec
from harness.core.records import Verdict
from harness.core.seams import seam
from harness.evidence.observed import Observed
from harness.evidence.records import Run
from harness.judge import verdict as verdict_of
from harness.judge.run_case import look, run_case
from harness.judge.target import Target
from harness.kernels.call import note_launch

ALL_NAN = torch.full((3, 8), float("nan"))


def answer() -> torch.Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def observed(tensor: torch.Tensor | None = None) -> Observed:
    want = answer()
    got = want.float() if tensor is None else tensor
    return Observed("out", got, torch.ones(3, dtype=torch.bool), want, "mla_decode.out.fp32")


class StubTarget(Target):
    """Calls `behave`; remembers every poison it was given."""

    behave: Callable[[Poison], Run] = staticmethod(lambda poison: Run(poison.pattern, [observed()]))
    seen: list[Poison]
    made: list[tuple[Case, str]]

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        type(self).made.append((case, device))

    def run(self, poison: Poison) -> Run:
        type(self).seen.append(poison)
        return type(self).behave(poison)


class StubEngine(StubTarget):
    """An engine that answers rightly."""

    seen: list[Poison] = []  # noqa: RUF012
    made: list[tuple[Case, str]] = []  # noqa: RUF012


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[StubTarget]:
    class Fresh(StubTarget):
        seen: list[Poison] = []  # noqa: RUF012
        made: list[tuple[Case, str]] = []  # noqa: RUF012

    monkeypatch.setattr("harness.judge.targets.kernel.KernelTarget", Fresh)
    return Fresh


def job(**changes: object) -> Job:
    case = {
        "id": "decode[kv=fp32]",
        "scenario": "decode",
        "system": "kernel",
        "op": "mla_decode",
        "params": {"kernel": "tiled", "kv": "fp32"},
        "poison": PoisonPlan(patterns=("nan", "zeros"), sites=("kv.tail", "output")),
        "oracles": ("finite", "sentinel", "reference", "non_interference"),
        "seed": 7,
    }
    own = {key: value for key, value in changes.items() if key in Job.model_fields}
    case |= {key: value for key, value in changes.items() if key not in own}
    return Job(**({"key": "k", "case": Case(**case)} | own))  # type: ignore[arg-type]


def test_a_right_answer_passes_and_every_oracle_says_how_much_it_saw(stub):
    result = run_case(job())
    assert (result.verdict, result.findings, result.reason) == (Verdict.PASS, (), "")
    assert result.looked_at == {
        "finite": 48,
        "sentinel": 48,
        "reference": 48,
        "non_interference": 24,
        "crash": 2,
    }
    assert (result.key, result.id, result.scenario) == ("k", "decode[kv=fp32]", "decode")
    assert result.seconds > 0


def test_a_look_says_whether_a_case_can_run_and_runs_nothing(stub, monkeypatch):
    assert look(job()).verdict is Verdict.NOT_RUN and stub.seen == []
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    skipped = look(job(device="cuda"))
    assert (skipped.verdict, skipped.lacks) == (Verdict.SKIP, {"a CUDA GPU": ""})


def test_a_case_says_all_that_it_lacks_here(stub, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    missing = WhyNot("x is not installed", Code.NOT_INSTALLED, "x", "pip install x")
    monkeypatch.setattr(KernelSpec, "why_not", lambda self, device: missing)
    assert run_case(job()).lacks == {"x": "pip install x"}
    assert run_case(job(device="cuda")).lacks == {"a CUDA GPU": "", "x": "pip install x"}


def test_a_verdict_under_the_interpreter_leaves_out_calls_that_take_minutes(stub, monkeypatch):
    many = {
        "op": "write_kv",
        "params": {"kernel": "torch", "num_tokens": 8192},
        "oracles": ("finite",),
        "poison": PoisonPlan(patterns=("nan",)),
    }
    few = many | {"params": {"kernel": "torch", "num_tokens": 4096}}
    cell = CellOf(server="/no/server")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    left_out = run_case(job(cell=cell, **many))
    assert (left_out.verdict, left_out.reason) == (
        Verdict.SKIP,
        "TRITON_INTERPRET=1 is set, and a call of 8,192 tokens takes minutes there: judge the"
        " kernel on a GPU too",
    )
    # A run takes its time, smaller calls are made, and compiled kernels have no such limit.
    assert run_case(job(**many)).verdict is Verdict.PASS
    assert run_case(job(cell=cell, **few)).verdict is Verdict.PASS
    monkeypatch.delenv("TRITON_INTERPRET")
    assert run_case(job(cell=cell, **many)).verdict is Verdict.PASS


def raising(error: Exception) -> Any:
    """A `behave` that ends so."""

    def behave(poison: Poison) -> Run:
        raise error

    return staticmethod(behave)


def returning(tensor: torch.Tensor) -> Any:
    """A `behave` with this output, whatever the poison."""
    return staticmethod(lambda poison: Run(poison.pattern, [observed(tensor)]))


def calling(*kernels: str) -> Any:
    """A `behave` that calls kernels, by their names."""

    def behave(poison: Poison) -> Run:
        for kernel in kernels:
            note_launch(kernel)
        return Run(poison.pattern, [observed()])

    return staticmethod(behave)


@pytest.mark.parametrize(
    ("named", "called", "reason"),
    [
        (("kernel",), ("write_kv/torch",), "never called: mla_decode/tiled"),
        (("kernel",), (), "never called: mla_decode/tiled"),
        (("kernel",), ("mla_decode/tiled",), None),
        ((), (), None),
    ],
)
def test_a_case_that_never_calls_the_kernel_of_its_name_is_a_skip(stub, named, called, reason):
    note_launch("mla_decode/tiled")  # By a case before.
    stub.behave = calling(*called)
    result = run_case(job(named=named))
    assert (result.verdict, result.reason) == (
        (Verdict.SKIP, reason) if reason else (Verdict.PASS, "")
    )


def test_a_kernel_that_one_of_the_runs_called_was_judged(stub):
    stub.behave = staticmethod(
        lambda poison: calling(*["mla_decode/tiled"] * (poison.pattern == "zeros"))(poison)
    )
    assert run_case(job(named=("kernel",))).verdict is Verdict.PASS


def test_a_result_says_how_often_the_main_run_launched_each_kernel(stub):
    stub.behave = calling("mla_decode/tiled", "mla_decode_plan/tiled", "mla_decode/tiled")
    assert run_case(job()).launched == {"mla_decode/tiled": 2, "mla_decode_plan/tiled": 1}


def test_a_failure_stays_a_failure_if_the_kernel_was_never_called(stub):
    stub.behave = returning(ALL_NAN)
    assert run_case(job(named=("kernel",))).verdict is Verdict.FAIL


@pytest.mark.parametrize("is_there", [False, True])
def test_a_case_that_needs_a_package_of_an_extra_is_a_skip_where_it_is_not_installed(
    stub, monkeypatch, is_there
):
    stub.behave = raising(ModuleNotFoundError("No module named 'absent.part'", name="absent.part"))
    monkeypatch.setitem(PACKAGES, "absent", ("absent-package", "accuracy"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if is_there else None)
    result = run_case(job())
    # A module that a package lost is no matter of an extra.
    expected = (Verdict.ERROR, "ModuleNotFoundError: No module named 'absent.part'")
    if not is_there:
        expected = (Verdict.SKIP, "absent-package not installed: pip install '.[accuracy]'")
    assert (result.verdict, result.reason) == expected


def test_one_run_for_each_pattern_on_the_sites_of_the_case(stub):
    run_case(job())
    assert [poison.pattern for poison in stub.seen] == ["nan", "zeros"]
    assert all(poison.sites == {"kv.tail", "output"} and poison.seed == 7 for poison in stub.seen)


def test_the_sites_of_a_job_replace_those_of_its_case(stub):
    run_case(job(sites=()))
    run_case(job(sites=("kv.tail",)))
    assert [poison.sites for poison in stub.seen[::2]] == [frozenset(), frozenset({"kv.tail"})]


def test_the_target_is_told_the_device(stub):
    run_case(job())
    assert stub.made[0][1] == "cpu"


def test_a_wrong_answer_fails_with_the_findings_of_all_oracles_that_saw_it(stub):
    stub.behave = returning(ALL_NAN)
    result = run_case(job())
    assert result.verdict is Verdict.FAIL
    assert {finding.oracle for finding in result.findings} == {
        "finite",
        "reference",
        "non_interference",
    }
    assert result.reason == result.findings[0].message


def test_an_answer_that_depends_on_the_poison_fails_by_non_interference(stub):
    def behave(poison: Poison) -> Run:
        return Run(
            poison.pattern, [observed(answer().float() * (1 + (poison.pattern == "zeros") * 1e-6))]
        )

    stub.behave = staticmethod(behave)
    result = run_case(job())
    assert result.verdict is Verdict.FAIL
    assert [finding.oracle for finding in result.findings] == ["non_interference"]


@pytest.mark.parametrize(
    "error",
    [IllegalAddress("block_table: index -1"), KernelError("mine raised"), CaptureError("item")],
)
@pytest.mark.parametrize("raised", [True, False])
def test_a_run_that_the_kernel_ended_is_a_crash_and_no_other_oracle_is_asked(stub, error, raised):
    stub.behave = (
        raising(error) if raised else staticmethod(lambda poison: Run(poison.pattern, error=error))
    )
    result = run_case(job())
    assert result.verdict is Verdict.CRASH
    assert [finding.oracle for finding in result.findings] == ["crash"]
    assert result.looked_at == {"crash": 1}
    assert len(stub.seen) == 1


def test_an_exception_of_the_harness_is_an_error_with_the_end_of_the_traceback(stub):
    stub.behave = raising(RuntimeError("slipped\nand fell"))
    result = run_case(job())
    assert result.verdict is Verdict.ERROR
    assert result.reason == "RuntimeError: slipped"
    assert "in behave" in result.log
    assert result.findings == ()


def test_a_refusal_of_the_poison_is_an_error_in_one_line_without_a_traceback(stub, approved):
    stub.behave = raising(PoisonError("fence: the system refused to protect a page (errno 12)"))
    result = run_case(job())
    assert result.verdict is Verdict.ERROR
    approved(result.reason)
    assert result.log == ""


def test_a_full_disk_is_no_result_of_the_case(stub, approved):
    stub.behave = raising(OSError(errno.ENOSPC, "No space left on device", "scratch/run.pt"))
    with approved.raises(NoRoomError):
        run_case(job())


@pytest.mark.parametrize("oracle", ["finite", "reference", "non_interference", "replay", "address"])
def test_an_oracle_that_looked_at_nothing_makes_the_case_an_error(stub, oracle):
    stub.behave = staticmethod(lambda poison: Run(poison.pattern))
    result = run_case(job(oracles=(oracle,)))
    assert result.verdict is Verdict.ERROR
    assert f"{oracle} judged no element" in result.reason


def test_a_drawn_case_that_shows_less_with_a_plugin_is_a_skip_and_no_error(stub, approved):
    plugged = job(oracles=("finite", "replay"), params={"kernel": "mine", "kv": "fp32"})
    for is_plugin, verdict in ((False, Verdict.ERROR), (True, Verdict.SKIP)):
        with KERNELS.scoped(
            KernelSpec("mla_decode", "mine", "", "nowhere:f", kv=("fp32",), is_plugin=is_plugin)
        ):
            result = run_case(plugged)
        assert result.verdict is verdict
        approved(result.reason)


def test_a_case_whose_runs_have_no_live_row_is_an_error(stub):
    def behave(poison: Poison) -> Run:
        seen = observed()
        seen.live[:] = False
        return Run(poison.pattern, [seen])

    stub.behave = staticmethod(behave)
    assert run_case(job()).verdict is Verdict.ERROR


def test_findings_outweigh_an_oracle_that_looked_at_nothing(stub):
    stub.behave = returning(torch.zeros(3, 8))
    result = run_case(job(oracles=("replay", "reference")))
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cuda"}, "CUDA"),
        ({"params": {"kernel": "only-bf16", "kv": "fp32"}}, "reads a cache of bf16, not of fp32"),
        ({"params": {"kernel": "gpu-only", "kv": "fp32"}}, "runs on cuda, not on cpu"),
    ],
)
def test_a_case_that_cannot_run_here_is_skipped_with_the_reason(stub, monkeypatch, changes, reason):
    KERNELS.add(KernelSpec("mla_decode", "only-bf16", "", "nowhere:f", kv=("bf16",)))
    KERNELS.add(KernelSpec("mla_decode", "gpu-only", "", "nowhere:f", devices=("cuda",)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run_case(job(**changes))
    assert result.verdict is Verdict.SKIP
    assert reason in result.reason
    assert stub.seen == []


def test_an_unknown_kernel_is_an_error_that_names_the_nearest(stub, approved):
    result = run_case(job(params={"kernel": "tield"}))
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


@seam()
def right() -> str:
    return "right"


def wrong() -> str:
    return "wrong"


def test_a_fault_is_in_place_during_the_runs_and_gone_afterwards(stub):
    here = right.__module__
    spec = FaultSpec("stub.fault", "vllm-project/vllm#1", "", f"{here}:right", f"{here}:wrong")
    during: list[str] = []

    def behave(poison: Poison) -> Run:
        during.append(right())
        raise IllegalAddress("x")

    stub.behave = staticmethod(behave)
    with FAULTS.scoped(spec):
        result = run_case(job(fault="stub.fault"))
    assert (result.verdict, result.fault) == (Verdict.CRASH, "stub.fault")
    assert during == ["wrong"]
    assert right() == "right"


def test_a_case_that_the_engine_cannot_serve_is_skipped_with_the_reason():
    result = run_case(job(system="engine", op=None, params={"amax_rows": "batch"}))
    assert result.verdict is Verdict.SKIP
    assert result.cause == Code.UNSUPPORTED and "mla_decode/tiled" in result.reason


def test_an_unknown_fault_is_an_error(stub):
    assert "unknown fault 'nonsense'" in run_case(job(fault="nonsense")).reason


def test_a_fault_whose_code_no_run_came_to_is_said_to_have_shown_nothing(stub):
    result = run_case(job(fault="index.page-offset-32-bit"))
    assert (result.verdict, result.cause) == (Verdict.PASS, Code.NOT_REACHED)


def test_on_cuda_it_is_skipped_where_the_engine_runs_other_kernels(stub, monkeypatch, approved):
    monkeypatch.setattr("harness.judge.targets.engine.EngineTarget", StubEngine)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    params = {"decode_kernel": "triton", "plan_kernel": "triton"}
    case = {"system": "engine", "op": None, "params": params}
    result = run_case(job(**case, device="cuda", fault="plan.split-count-of-capture"))
    assert result.verdict is Verdict.SKIP
    approved(result.reason)
    assert "mla_decode_plan/triton" in result.reason


@pytest.mark.parametrize(
    "error", [KernelError("x raised RuntimeError: CUDA error"), RuntimeError("CUDA error: lost")]
)
def test_a_bad_index_that_a_check_found_is_named_rather_than_the_fault_it_led_to(
    stub, monkeypatch, error
):
    stub.behave = raising(error)
    monkeypatch.setattr(
        verdict_of, "bad_index", lambda: IllegalAddress("outside", tensor="block_table")
    )
    monkeypatch.setattr(verdict_of, "is_device_failure", lambda raised: True)
    result = run_case(job())
    assert result.verdict is Verdict.CRASH and result.findings[0].site == "block_table.pad"


def test_a_result_says_which_sites_its_first_run_filled_with_how_many_bytes():
    params = {
        "kernel": "tiled",
        "seq_lens": (5, 70),
        "num_heads": 2,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
    }
    poison = PoisonPlan(patterns=("nan", "zeros"), sites=("kv.tail", "output"))
    oracles = ("finite", "reference")
    case = Case(
        id="c",
        scenario="c",
        system="kernel",
        op="mla_decode",
        params=params,
        poison=poison,
        oracles=oracles,
    )
    filled = run_case(Job(key="c", case=case)).filled
    assert set(filled) == {"kv.tail", "output"}, (
        "sites that are not poisoned get zeros and are not counted"
    )
    # The kernel is called once with other values before.
    assert filled["output"] == 2 * (2 * 2 * 16 * 2), "two requests, two heads, rank 16, bfloat16"
