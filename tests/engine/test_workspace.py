"""The workspace of a decode kernel: large enough for every batch, at one address, and guarded
behind its end.
"""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.catalog import FAULTS
from harness.core.engine_params import EngineParams
from harness.core.seams import inject
from harness.engine.kernels import GUARD, Workspace, bind
from harness.judge.probes.writes import dirty_workspace

NOBODY = Poison("nan", frozenset())


def params(**changes: object) -> EngineParams:
    return EngineParams.model_validate({"capture_sizes": (2, 4), "max_num_seqs": 3, **changes})


@pytest.mark.parametrize(("running", "captured"), [(3, (2, 4)), (9, (1, 2))])
def test_there_is_a_counter_for_every_request_of_the_largest_batch(
    running: int, captured: tuple[int, ...]
) -> None:
    workspace = Workspace(params(max_num_seqs=running, capture_sizes=captured))
    assert workspace.num_requests == max(running, *captured) == len(workspace.counters(99))
    assert workspace.scratch.shape[0] >= workspace.num_requests


def test_all_batches_count_at_one_address() -> None:
    workspace = Workspace(params())
    assert {workspace.counters(n).data_ptr() for n in (1, 2, 4)} == {
        workspace.counters(3).data_ptr()
    }


def test_a_workspace_that_grows_moves() -> None:
    workspace = Workspace(params())
    with inject(FAULTS.get("graph.workspace-grows")):
        small = workspace.counters(2)
        assert workspace.counters(1).data_ptr() == small.data_ptr()
        assert workspace.counters(4).data_ptr() != small.data_ptr()


def test_only_a_kernel_that_counts_gets_a_workspace() -> None:
    assert bind(params(), NOBODY).workspace is None
    assert bind(params(decode_kernel="tiled-counted"), NOBODY).workspace is not None


def test_dirt_between_two_steps_is_noted_with_its_memory() -> None:
    workspace = Workspace(params())
    assert dirty_workspace(workspace, 4) == dirty_workspace(None, 4) == []
    workspace.counters(4)[2] = 1
    workspace.words[workspace.num_requests] = 0
    guards = dirty_workspace(workspace, 4)
    assert [(guard.site, guard.name) for guard in guards] == [
        ("workspace", "the counters of decode"),
        ("workspace", "the words behind the counters of decode"),
    ]
    assert int(guards[1].before[0]) == GUARD and int(guards[1].after[0]) == 0
    assert [guard.name for guard in dirty_workspace(workspace, 2)] == [
        "the words behind the counters of decode"
    ]


def test_the_query_of_a_decode_is_put_together_in_the_scratch() -> None:
    workspace = Workspace(params())
    heads, rank, rope = params().num_heads, params().kv_lora_rank, params().qk_rope_head_dim
    nope, pe = torch.randn(2, heads, rank), torch.randn(2, heads, rope)
    query = workspace.query(nope, pe)
    assert torch.equal(query, torch.cat((nope, pe), dim=-1))
    assert query.data_ptr() == workspace.scratch.data_ptr()


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"kv": "fp8_e4m3"}, {"kv_itemsize": 1}),
        ({"kv": "fp32"}, {"kv_itemsize": 4}),
        ({"layers": ("window", "mla"), "window_kv": "fp32"}, {}),
        ({"layers": ("window", "mla")}, {"kv_itemsize": 2}),
        ({"plan_kernel": "triton"}, {}),
    ],
)
def test_a_planner_is_told_the_type_that_all_caches_have_where_its_kernel_counts_in_chunks(
    changes: dict[str, object], options: dict[str, int]
) -> None:
    assert bind(params(decode_kernel="tiled-counted", **changes), NOBODY).plan_options == options
    assert bind(params(**changes), NOBODY).plan_options == {}
