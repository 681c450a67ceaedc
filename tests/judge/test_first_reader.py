"""The first launch that reads memory of a site: found where a bug reads it, and nowhere else."""

from __future__ import annotations

import pytest

from harness.core.cases import AskFirstNan, Job
from harness.core.catalog import SITES
from harness.core.records import FirstNan
from harness.judge.run_case import run_case
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select

SMALL = "requests=[[2,3],[3,2]],capture_sizes=[3],hidden_size=16,vocab_size=32,num_blocks=6"
PADDED = f"cudagraph-padding[zero_fill_output=empty,quantize_kernel=amax]@{SMALL}"
MIXED = "mixed-context[kv=bf16,context_kernel=minus-inf,context_chunk=32]@requests=[[50,1],[3,2]],num_blocks=6"  # noqa: E501
HYBRID = "kv-cache-full[kv=bf16,free_list=fifo]@requests=[[5,3],[9,2]],epochs=1,num_blocks=8"


def first_nan(case_id: str, fault: str | None, *sites: str) -> FirstNan:
    (case,) = select(load_scenarios(None), [case_id])
    found = run_case(
        Job(key=case.id, case=case, fault=fault, ask=AskFirstNan(sites=sites))
    ).first_nan
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("case_id", "fault", "site", "reader", "at"),
    [
        (PADDED, "router.int64-ids", "router.ids", "apply_experts", "ids, step 0"),
        (
            MIXED,
            "merge.ignore-context-count",
            "context.output",
            "merge_attn_states/torch",
            "out, step 1",
        ),
        (HYBRID, "kv.skip-zero-new-blocks", "kv.new", "mla_decode/tiled-multiply", "out, step 1"),
    ],
)
def test_the_first_launch_that_reads_the_memory_of_a_bug_is_named(
    case_id, fault, site, reader, at
) -> None:
    found = first_nan(case_id, fault, site)
    assert (found.reader, found.reader_at) == (reader, at)


@pytest.mark.parametrize("case_id", [PADDED, MIXED, HYBRID])
def test_without_a_bug_no_launch_reads_unwritten_memory(case_id: str) -> None:
    assert first_nan(case_id, None, *SITES.names()).reader == ""
