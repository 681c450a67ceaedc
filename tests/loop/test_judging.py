"""Verdicts as a library: right and wrong kernels, one after the other, with one judge."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.diagnose.run_jobs import MOST_CAUSES, MOST_FAILURES
from harness.loop.judging import Judge
from tests.transcripts import Approved

RIGHT = """
import torch

def merge(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    count = len(prefix_out) if num_tokens_with_context is None else num_tokens_with_context
    out, lse = suffix_out.clone(), suffix_lse.clone()
    parts = torch.stack((prefix_lse[:, :count], suffix_lse[:, :count]))
    # Some kernels write +inf for an empty row.
    parts = parts.masked_fill(parts.isposinf(), float("-inf"))
    both = parts.logsumexp(0)
    weights = (parts - both).exp().nan_to_num(0.0).transpose(1, 2)[..., None]
    values = torch.stack((prefix_out[:count].float(), suffix_out[:count].float()))
    values = torch.where(weights == 0, 0.0, values)
    out[:count] = (weights * values).sum(0).to(out.dtype)
    lse[:, :count] = both
    return out, lse

def suffix_alone(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    return suffix_out.clone(), suffix_lse.clone()

def doubled(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    given = prefix_out, prefix_lse, suffix_out, suffix_lse
    out, lse = merge(*given, num_tokens_with_context=num_tokens_with_context)
    return 2 * out, lse

def broken(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    return prefix_out.not_there

def hangs(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    while True:
        pass
"""
OP = "merge_attn_states"


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(seed=3) as made:
        yield made


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kernels") / "attempt.py"
    made.write_text(RIGHT)
    return made


def test_a_kernel_that_ignores_an_input_fails_with_the_call_that_shows_it(
    judge: Judge, file: Path
) -> None:
    verdict = judge.judge(f"{file}:suffix_alone", OP)
    assert verdict.verdict == "fail" and not verdict.is_right
    assert verdict.causes[0].params["op"] == OP
    json.dumps(verdict.json())


def test_a_wrong_kernel_is_judged_by_eight_failures(judge: Judge, file: Path) -> None:
    """One cause in each call: a loop that writes kernels learns nothing from the other calls."""
    verdict = judge.judge(f"{file}:doubled", OP)
    assert verdict.verdict == "fail" and not verdict.is_complete
    assert len(verdict.causes) < MOST_CAUSES and verdict.num_judged < 2 * MOST_FAILURES


def test_a_kernel_that_raises_is_a_crash(judge: Judge, file: Path) -> None:
    verdict = judge.judge(f"{file}:broken", OP)
    assert verdict.verdict == "crash" and "not_there" in verdict.causes[0].message


def test_a_kernel_that_hangs_is_judged_by_one_call(file: Path) -> None:
    with Judge(seed=3, call_seconds=0.5) as judge:
        verdict = judge.judge(f"{file}:hangs", OP)
    assert (verdict.verdict, verdict.num_judged, verdict.is_complete) == ("crash", 1, False)
    assert verdict.causes[0].cause == Code.TIME_LIMIT


def test_verdicts_leave_no_kernel_and_no_file_open(judge: Judge, file: Path) -> None:
    judge.judge(f"{file}:merge", OP, seconds=0.0)
    # What an earlier test left is closed now, not while this one counts.
    gc.collect()
    names, files = len(KERNELS.names()), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        judge.judge(f"{file}:merge", OP, seconds=0.0)
    assert (len(KERNELS.names()), len(os.listdir("/proc/self/fd"))) == (names, files)


def test_a_verdict_that_ended_early_says_so_and_what_it_covers(judge: Judge, file: Path) -> None:
    verdict = judge.judge(f"{file}:merge", OP, seconds=0.0)
    assert not verdict.is_complete and verdict.num_judged + verdict.num_skipped == 1


@pytest.mark.nightly
def test_a_right_kernel_passes_all_pairs(judge: Judge, file: Path, approved: Approved) -> None:
    verdict = judge.judge(f"{file}:merge", OP)
    assert verdict.is_right and verdict.is_complete
    approved(verdict.covered)


def test_a_function_without_a_file_is_refused_with_what_to_do(
    judge: Judge, approved: Approved
) -> None:
    with approved.raises(InputError):
        judge.judge(lambda x: x, OP)
