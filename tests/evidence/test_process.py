"""Oracle `process`: what makes a verdict worthless is a finding, and any other change a remark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import KERNELS, ORACLES, most_telling_first
from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.kernels import KernelSpec
from harness.core.records import CaseResult, Verdict
from harness.evidence import compare
from harness.evidence.records import Evidence, Run
from harness.judge import outcome
from harness.judge import run_case as run_case_module
from harness.judge.run_case import run_case
from harness.kernels.process_state import ProcessChange
from harness.ops.merge_attn_states import reference as merge_attn_states_reference
from tests.transcripts import Approved

REPLACED = ProcessChange(
    "mla_decode/mine", "replaced torch.empty", is_failure=True, is_restored=True
)
REMARK = ProcessChange(
    "mla_decode/mine", "set the default dtype to torch.float64", is_failure=False, is_restored=True
)
THREAD = ProcessChange(
    "mla_decode/mine", "left running: thread 'spin'", is_failure=False, is_restored=False
)


def test_a_failure_is_a_finding_and_any_other_change_a_remark(approved: Approved) -> None:
    case = Case(id="c", scenario="s", system="kernel", op="write_kv")
    runs = [Run("nan", [REPLACED, REMARK]), Run("zeros", [REPLACED, THREAD])]
    judgement = ORACLES.get("process").judge(Evidence(case, runs))
    (finding,) = judgement.findings
    assert (finding.oracle, finding.cause, finding.kernel) == (
        "process",
        Code.REPLACED,
        "mla_decode/mine",
    )
    approved(finding.message)
    approved(judgement.notes)
    assert judgement.looked_at == 2


def test_it_explains_more_than_wrong_numbers_and_less_than_a_crash() -> None:
    found = most_telling_first(
        Finding(oracle=name) for name in ("reference", "sentinel", "process", "crash")
    )
    assert [one.oracle for one in found] == ["crash", "process", "sentinel", "reference"]


def result_of(change: Callable[[], Any], *, right: bool = True) -> CaseResult:
    """A case of a merge that calls `change` at its end, and returns noise unless it is `right`."""

    def merge(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        out, lse = KERNELS.get("merge_attn_states/torch").load()(*args, **kwargs)
        change()
        return (out, lse) if right else (torch.randn_like(out), torch.randn_like(lse))

    spec = KernelSpec("merge_attn_states", "mine", "", merge, is_plugin=True)
    params = {
        "kernel": "mine",
        "num_tokens": 6,
        "num_with_context": 4,
        "num_heads": 2,
        "v_head_dim": 16,
    }
    more: dict[str, Any] = {
        "oracles": ("finite", "sentinel", "reference"),
        "poison": PoisonPlan(patterns=("nan",)),
    }
    case = Case(
        id="mine", scenario="s", system="kernel", op="merge_attn_states", params=params, **more
    )
    with KERNELS.scoped(spec):
        return run_case(Job(key="k", case=case))


def agree(*args: Any, **kwargs: Any) -> compare.Comparison:
    return compare.Comparison(1)


def replace_comparator() -> None:
    compare.compare = agree


def replace_reference() -> None:

    merge_attn_states_reference.expected = lambda *args, **kwargs: None  # type: ignore[assignment]


def replace_result() -> None:
    passed = CaseResult(key="k", id="mine", scenario="s", verdict=Verdict.PASS)
    outcome.Outcome.result_of = lambda self, job, seconds: passed  # type: ignore[method-assign]


def replace_judge() -> None:
    run_case_module.verdict = lambda job: outcome.Outcome(Verdict.PASS)


@pytest.mark.parametrize(
    ("cheat", "names"),
    [
        (replace_comparator, "harness.evidence.compare.compare"),
        (replace_reference, "harness.ops.merge_attn_states.reference.expected"),
        (replace_result, "harness.judge.outcome.Outcome.result_of"),
        (replace_judge, "harness.judge.run_case.verdict"),
    ],
)
def test_a_kernel_that_replaces_what_judges_it_fails(cheat: Callable[[], None], names: str) -> None:
    result = result_of(cheat, right=False)
    assert result.verdict in (Verdict.FAIL, Verdict.CRASH), result
    (finding,) = (one for one in result.findings if one.oracle == "process")
    assert names in finding.message
    # The harness is whole again, so another kernel with noise is seen as well.
    after = result_of(lambda: None, right=False)
    assert {finding.oracle for finding in after.findings} == {"reference"}


def test_a_pass_with_a_remark_has_a_code_of_its_own(approved: Approved) -> None:
    result = result_of(lambda: torch.set_default_dtype(torch.float64))
    assert (result.verdict, result.cause) == (Verdict.PASS, Code.RESTORED)
    approved(result.reason)
    assert result_of(lambda: None).cause == ""


def test_a_failure_says_what_else_was_changed(approved: Approved) -> None:
    result = result_of(lambda: torch.set_default_dtype(torch.float64), right=False)
    assert result.verdict is Verdict.FAIL and result.findings[0].oracle == "reference"
    approved(result.reason)
