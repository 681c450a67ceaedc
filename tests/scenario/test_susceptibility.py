"""`mla-harness run susceptibility`: a case for each kernel, site and pattern, and the table of
`report --pivot`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.report import pivot_of as pivot
from harness.core.cases import Job
from harness.core.catalog import KERNELS
from harness.core.errors import InputError
from harness.core.ops import OPS
from harness.core.records import Verdict
from harness.judge.run_case import run_case
from harness.scenario.override import KernelOverride
from harness.scenario.selection import select
from harness.scenario.susceptibility import case_of, cases, selected
from harness.store.run_folder import RunStore


@pytest.mark.nightly
def test_the_id_of_a_cell_makes_its_case_again() -> None:
    for case in cases(list(KERNELS)):
        assert case_of(case.id) == case


@pytest.mark.parametrize(
    "identity",
    [
        "susceptibility[kernel=mla_decode/nobody,kv=bf16,site=kv.tail,pattern=nan]",
        "susceptibility[kernel=mla_decode/tiled,kv=bf16,site=router.ids,pattern=nan]",
        "susceptibility[kernel=mla_decode/tiled,kv=bf16,site=kv.tail,pattern=zeros]",
        "susceptibility[kernel=mla_decode/tiled,kv=bf16,tokens=3,site=kv.tail,pattern=nan]",
        "susceptibility[kernel=write_kv/torch,kv=bf16,tokens=4,site=kv.free,pattern=nan]",
    ],
)
def test_an_id_of_no_cell_names_no_case(identity: str) -> None:
    assert case_of(identity) is None and selected(identity, None) == []


def test_every_op_but_the_planner_has_cells() -> None:
    assert {case.op for case in select([], ["susceptibility"])} == {op.name for op in OPS} - {
        "mla_decode_plan"
    }


def test_with_a_kernel_its_cells_are_selected_with_several_query_tokens_too() -> None:
    found = select([], ["susceptibility"], override=KernelOverride.named("tiled-multiply"))
    assert {case.kernels()["kernel"] for case in found} == {"mla_decode/tiled-multiply"}
    several = [case for case in found if "tokens=4" in case.id]
    assert {case.poison.sites for case in several} == {("kv.tail",), ("kv.free",), ("kv.null",)}


def test_the_table_shows_a_kernel_that_multiplies_unwritten_slots(tmp_path: Path) -> None:
    name = "susceptibility[kernel=mla_decode/{},kv=bf16,tokens=4,site=kv.tail,pattern={}]"
    pairs = [
        (kernel, pattern) for kernel in ("tiled-multiply", "tiled") for pattern in ("nan", "max")
    ]
    jobs = [
        Job(key=case.id, case=case)
        for kernel, pattern in pairs
        if (case := case_of(name.format(kernel, pattern)))
    ]
    store = RunStore.create(tmp_path, jobs, command="test")
    for job in jobs:
        store.add(run_case(job))
    titles, rows = pivot(store, "kernel,query_len/site,pattern")
    assert titles == ["kernel", "query_len", "kv.tail nan", "kv.tail max"]
    assert rows == [
        ["mla_decode/tiled-multiply", "4", "fail finite", "pass"],
        ["mla_decode/tiled", "4", "pass", "pass"],
    ]
    assert pivot(store, "kv/pattern")[1] == [["bf16", "1 fail finite, 1 pass", "2 pass"]]
    for wrong, words in (("kernl/site", "did you mean 'kernel'"), ("kernel", "ROWS/COLUMNS")):
        with pytest.raises(InputError, match=words):
            pivot(store, wrong)


def test_a_sparse_kernel_that_loads_what_is_not_there_is_seen_and_one_that_does_not_is_clean() -> (
    None
):
    case = case_of(
        "susceptibility[kernel=mla_decode_sparse/gather,kv=bf16,site=kv.null,pattern=nan]"
    )
    assert case is not None
    for fault, verdict in ((None, Verdict.PASS), ("sparse.invalid-index-clamped", Verdict.FAIL)):
        assert run_case(Job(key="k", case=case, fault=fault)).verdict is verdict
