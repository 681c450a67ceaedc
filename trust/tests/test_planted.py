"""Planted kernels: each is red under the cases made for it, and the blame names its memory or
none.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
from typing import Any

import pytest
from torch import Tensor

from harness.core.cases import Job
from harness.core.kernels import KernelSpec
from harness.core.records import CaseResult, Verdict
from harness.judge.run_case import run_case
from harness.scenario.load import load_scenarios
from trust.mutants.trials import Died, in_forks
from trust.planted.__main__ import blame_word
from trust.planted.plant import (
    Planted,
    all_planted,
    blame_of,
    cases_of,
    failures,
    job_of,
    right,
)

CAUGHT_BY = [
    s.name
    for s in load_scenarios(None)
    if s.system == "kernel" and ("limits" in s.tags or s.name.startswith("reject-"))
]


def _first_of_each_op(file: str) -> list[object]:
    """The kernels of a file; all but the first of each op are judged every night."""
    seen: set[str] = set()
    found: list[object] = []
    for one in all_planted(file):
        marks = pytest.mark.nightly if one.spec.op in seen else ()
        seen.add(one.spec.op)
        found.append(pytest.param(one, marks=marks, id=one.name))
    return found


@pytest.mark.first(4)
@pytest.mark.parametrize("one", [*_first_of_each_op("sizes"), *_first_of_each_op("values")])
def test_an_error_at_the_sizes_or_values_of_models_is_red_and_blamed_rightly(one: Planted) -> None:
    job, result = next(failures(cases_of(one, CAUGHT_BY)))
    assert blame_word(one, blame_of(job, result)) in ("right", "rightly none"), result.reason


@pytest.mark.first(2)
@pytest.mark.parametrize("one", _first_of_each_op("public"))
def test_an_error_of_a_public_kernel_is_red_and_blamed_rightly(one: Planted) -> None:
    job, result = next(failures(cases_of(one)))
    assert blame_word(one, blame_of(job, result)) in ("right", "rightly none"), result.reason


def test_a_right_top_k_may_choose_any_of_equals_also_where_all_scores_are_masked() -> None:
    """Its wrong twin in `values.py` differs by rows of -inf alone, and is red there."""
    one = next(one for one in all_planted("unseen_legal") if one.name == "the-latest-of-equals")
    assert not list(failures(cases_of(one, ["reject-topk", "limits-topk", "select-topk"])))


@pytest.mark.nightly
def test_a_blame_says_when_the_rows_are_wrong_whatever_the_memory_holds() -> None:
    """The scale of padding stands beside a live row, and other live rows have each other's."""
    one = next(one for one in all_planted("public") if one.name == "scales-viewed-for-transposed")
    job, result = next(failures(cases_of(one, ["limits-quantize"])))
    blame = blame_of(job, result)
    assert blame.sites == ("scale.pad",)
    assert "reference" in blame.how


def next_page_ahead(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Looks the page behind the last one up, and does not use it (ROCm/aiter#3032)."""
    size = kv_cache.shape[1]
    for b, length in enumerate(seq_lens.tolist()):
        place = b * block_table.shape[1] + -(-length // size)
        int(ctypes.c_int32.from_address(block_table.data_ptr() + 4 * place).value)
    return right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)


def no_page_ahead(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Looks no page up ahead."""
    return right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)


def without_a_trace(job: Job) -> CaseResult:
    """Run a case that may end its process, without a word of Python's on it."""
    faulthandler.disable()
    return run_case(job)


@pytest.mark.nightly
@pytest.mark.parametrize("function", [next_page_ahead, no_page_ahead])
def test_an_entry_looked_up_behind_a_full_table_faults_though_nothing_uses_it(
    function: Any,
) -> None:
    name = function.__name__.replace("_", "-")
    promises: dict[str, Any] = {"takes": ("window",), "checks": "nothing", "is_plugin": True}
    spec = KernelSpec("mla_decode", name, str(function.__doc__), function, **promises)
    one = Planted("tests", spec, frozenset(), is_legal=function is no_page_ahead)
    (case,) = [case for case in cases_of(one, ["limits-decode"]) if "call=full-table" in case.id]
    # The process dies of the read, so it is one of its own.
    ((_, found),) = in_forks([job_of(case)], without_a_trace, 1)
    if one.is_legal:
        assert not isinstance(found, Died) and found.verdict is Verdict.PASS
    else:
        assert isinstance(found, Died) and found.exit_code == -signal.SIGSEGV
