from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import OUT_OF_RANGE, Poison, bits_view, sentinel_bits

from harness.core.cause_codes import Code
from harness.evidence.records import Run
from harness.evidence.sentinel import Guard
from harness.evidence.sentinel import sentinel as judge


def poisoned(tensor: torch.Tensor, site: str) -> torch.Tensor:
    return Poison("nan", frozenset({site})).fill_(tensor, site)


def test_written_rows_are_silent_and_counted(observe, evidence):
    judgement = judge(evidence(Run("nan", [observe()])))
    assert judgement.findings == []
    assert judgement.looked_at == 3 * 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_live_row_that_nobody_wrote_fires_and_names_the_site(observe, evidence, expected, dtype):
    tensor = expected.to(dtype)
    poisoned(tensor[1], "context.output")
    finding = judge(evidence(Run("nan", [observe(tensor)]))).findings[0]
    assert (finding.site, finding.where) == ("context.output", "request 1; first at [1, 0, 0]")
    assert "sentinel of context.output" in (finding.bits or "")


def test_a_dead_row_that_nobody_wrote_is_silent(observe, evidence, expected):
    tensor = expected.bfloat16()
    poisoned(tensor[3], "output")
    assert judge(evidence(Run("nan", [observe(tensor)]))).findings == []


def test_two_sites_are_two_findings(observe, evidence, expected):
    tensor = expected.bfloat16()
    poisoned(tensor[0], "output")
    poisoned(tensor[1], "workspace")
    assert {f.site for f in judge(evidence(Run("nan", [observe(tensor)]))).findings} == {
        "output",
        "workspace",
    }


def test_a_computed_nan_in_bfloat16_is_left_to_finite(observe, evidence, expected):
    tensor = expected.bfloat16()
    tensor[1] = float("nan")
    assert judge(evidence(Run("nan", [observe(tensor)]))).findings == []


def test_an_fp8_nan_proves_nothing_here_and_is_not_counted_as_looked_at(
    observe, evidence, expected
):
    tensor = expected.to(torch.float8_e4m3fn)
    bits_view(tensor)[1] = 0xFF
    judgement = judge(evidence(Run("nan", [observe(tensor)])))
    assert (judgement.findings, judgement.looked_at) == ([], 0)
    assert judge(evidence(Run("nan", [observe(tensor), observe()]))).looked_at == 3 * 16


def test_an_index_that_only_the_poison_writes_fires_unless_it_is_the_right_answer(
    observe, evidence
):
    ids = torch.arange(8, dtype=torch.int32).reshape(4, 2)
    ids[1, 1] = OUT_OF_RANGE
    wanted = torch.arange(8).reshape(4, 2)
    finding = judge(
        evidence(Run("nan", [observe(ids, expected=wanted, site="router.ids")]))
    ).findings[0]
    assert finding.site == "router.ids"
    assert judge(evidence(Run("nan", [observe(ids, expected=ids.long())]))).findings == []


def test_a_minus_one_without_a_run_over_zeros_is_left_to_the_reference(observe, evidence):
    """A kernel may write it by itself, and then no memory is to blame."""
    ids = torch.arange(8, dtype=torch.int32).reshape(4, 2)
    ids[1, 1] = -1
    wanted = torch.arange(8).reshape(4, 2)
    assert judge(evidence(Run("nan", [observe(ids, expected=wanted)]))).findings == []
    # Without a reference nothing else would see it.
    assert judge(evidence(Run("nan", [observe(ids, expected=None)]))).findings


def test_an_index_that_the_kernel_writes_over_any_memory_is_no_poison(observe, evidence, approved):
    """A wrong -1 of the kernel itself is for `reference` to judge.

    One that the poison leaves is found beside it.
    """
    over_nan = torch.arange(8, dtype=torch.int32).reshape(4, 2)
    over_nan[1, 1] = -1
    over_zeros, wanted = over_nan.clone(), torch.arange(8).reshape(4, 2)
    runs = (
        Run("nan", [observe(over_nan, expected=wanted)]),
        Run("zeros", [observe(over_zeros, expected=wanted)]),
    )
    assert judge(evidence(*runs)).findings == []
    over_nan[2, 0], over_zeros[2, 0] = -1, 0
    (finding,) = judge(evidence(*runs)).findings
    assert (finding.where, finding.cause) == ("request 2; first at [2, 0]", Code.POISON_INDEX)
    approved(finding.message)


def test_guarded_memory_that_is_untouched_is_silent_even_when_it_is_nan(evidence):
    before = torch.empty(64, 8)
    bits_view(before).fill_(sentinel_bits(torch.float32, "kv.null"))
    judgement = judge(
        evidence(Run("nan", [Guard("null block", "kv.null", before, before.clone())]))
    )
    assert judgement.findings == []
    assert judgement.looked_at == 64 * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_guarded_memory_that_was_written_fires(evidence, dtype):
    before = torch.zeros(64, 8).to(dtype)
    after = before.clone()
    bits_view(after)[5, 2] = 7
    guard = Guard("null block", "kv.null", before, after)
    finding = judge(evidence(Run("nan", [guard]))).findings[0]
    assert (finding.site, finding.tensor, finding.where) == (
        "kv.null",
        "null block",
        "row 5; first at [5, 2]",
    )
    assert "was 0x00" in (finding.bits or "")


def test_a_guard_that_changed_its_sign_of_zero_fires(evidence):
    guard = Guard("null block", "kv.null", torch.zeros(2, 2), -torch.zeros(2, 2))
    assert len(judge(evidence(Run("nan", [guard]))).findings) == 1
