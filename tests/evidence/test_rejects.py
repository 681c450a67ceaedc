"""Oracle `rejects`: right or a clear error; anything else is a finding, unless the contract
promises nothing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.core.catalog import ORACLES
from harness.core.cause_codes import Code
from harness.core.corruptions import Corruption
from harness.core.errors import IllegalAddress, KernelError, Refused
from harness.evidence.corrupted import CorruptedCall
from harness.evidence.records import Run
from harness.evidence.sentinel import Guard

from .conftest import MakeEvidence, MakeObserved  # type: ignore[import-not-found]

LENGTH = Corruption("length-past-table", "seq_lens", "element", names=("seq_lens", "cache_seqlens"))


def raised(message: str) -> KernelError:
    error = KernelError("the kernel raised", cause=Code.RAISED)
    error.__cause__ = RuntimeError(message)
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (raised("cache_seqlens must be at most 64"), Code.CLEAN_ERROR),
        (IllegalAddress("seq_lens: index 9 at [0] is outside [0, 4)"), Code.CLEAN_ERROR),
        (Refused("the library refuses seq_lens"), Code.CLEAN_ERROR),
        (raised("index 9 is out of bounds for dimension 0 with size 4"), Code.UNCLEAR_ERROR),
        (raised("my_seq_lens_2 is odd"), Code.UNCLEAR_ERROR),
        (KernelError("returned seq_lens of shape [0]", cause=Code.BAD_OUTPUT), Code.SILENT_GARBAGE),
        (KernelError("CUDA error: device-side assert", cause=Code.DEVICE), Code.FAULT),
        (None, Code.SILENT_GARBAGE),
    ],
)
@pytest.mark.parametrize("is_defined", [True, False])
def test_a_call_without_a_right_result_must_end_in_an_error_that_names_the_argument(
    error: KernelError | None, cause: Code, is_defined: bool, evidence: MakeEvidence
) -> None:
    call = CorruptedCall(LENGTH, is_defined, Run("nan"), error)
    judgement = ORACLES.get("rejects").judge(evidence(Run("nan", [call])))
    is_clean = cause is Code.CLEAN_ERROR
    assert (judgement.cause, judgement.looked_at) == (cause, 1)
    assert [finding.cause for finding in judgement.findings] == (
        [] if is_clean or not is_defined else [cause]
    )
    assert call.crash is (error if is_defined and cause is Code.FAULT else None)
    assert any("undefined by contract" in note for note in judgement.notes) == (
        not is_clean and not is_defined
    )


def test_a_result_is_right_if_it_agrees_with_the_reference_and_writes_nothing_else(
    evidence: MakeEvidence, observe: MakeObserved, expected: torch.Tensor
) -> None:
    def found(seen: Run) -> str:
        call = CorruptedCall(replace(LENGTH, right=True), True, seen)
        return ORACLES.get("rejects").judge(evidence(Run("nan", [call]))).cause

    other = expected.float() + (torch.arange(4) == 1)[:, None, None]
    kept = torch.zeros(2, 3)
    assert found(Run("nan", [observe()])) == Code.CORRECT
    assert found(Run("nan", [observe(other)])) == Code.SILENT_GARBAGE
    written = Guard("seq_lens", None, kept, kept + 1)
    assert found(Run("nan", [observe(), written])) == Code.SILENT_GARBAGE


def test_the_worst_of_several_calls_decides(evidence: MakeEvidence) -> None:
    errors = (raised("seq_lens is bad"), raised("oops"), raised("seq_lens is worse"))
    calls = [CorruptedCall(LENGTH, True, Run("nan"), error) for error in errors]
    judgement = ORACLES.get("rejects").judge(evidence(Run("nan", list(calls))))
    assert judgement.cause == Code.UNCLEAR_ERROR and judgement.notes == [
        "2 clean_error, 1 unclear_error"
    ]
    assert ORACLES.get("rejects").judge(evidence(Run("nan"))).looked_at == 0
