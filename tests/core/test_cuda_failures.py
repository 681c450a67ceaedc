"""Which exceptions tell of the device, what is kept of their words, and what they are called
after.
"""

from __future__ import annotations

import pytest
import torch

from harness.core import cuda_failures
from harness.core.cases import Case, Job
from harness.core.records import Verdict
from harness.judge import run_case
from harness.judge.targets.kernel import KernelTarget
from tests.transcripts import Approved

ILLEGAL = """CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
"""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(ILLEGAL),
        RuntimeError("Triton Error [CUDA]: device-side assert triggered"),
        RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4096.00 GiB."),
    ],
)
def test_an_error_of_the_device_is_told_from_ours(error: Exception) -> None:
    assert cuda_failures.is_device_failure(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("shape [3] is invalid"), ValueError("CUDA error"), KeyError("x")]
)
def test_our_own_error_is_none_of_the_device(error: Exception) -> None:
    assert not cuda_failures.is_device_failure(error)


def test_the_advice_on_debugging_is_left_out(approved: Approved) -> None:
    approved(cuda_failures.in_one_line(RuntimeError(ILLEGAL)))
    assert cuda_failures.in_one_line(RuntimeError()) == "RuntimeError"


def test_a_process_that_used_no_gpu_is_not_spent() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, whose context another test may have used")
    assert not cuda_failures.is_spent()
    cuda_failures.free_memory()


def test_a_finding_of_a_device_names_its_case(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    def broken(self: object, poison: object) -> None:
        raise RuntimeError(ILLEGAL)

    monkeypatch.setattr(KernelTarget, "run", broken)
    monkeypatch.setattr(run_case, "why_not", lambda case, device, fault=None: None)
    case = Case(
        id="merge-kernel[kernel=torch]",
        scenario="merge-kernel",
        system="kernel",
        op="merge_attn_states",
        params={"kernel": "torch"},
    )
    result = run_case.run_case(Job(key=case.id, case=case, device="cuda"))
    assert result.verdict is Verdict.CRASH
    (finding,) = result.findings
    approved(finding.message)
    assert finding.message.count(case.id) == 1 and "LAUNCH_BLOCKING" not in finding.message
