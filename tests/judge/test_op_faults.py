"""Faults of single kernels: each is caught where it should be, and is gone afterwards whatever
happens.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from torch_poison.patterns import Poison

from harness.core.catalog import FAULTS, ORACLES, SITES
from harness.core.findings import Finding
from harness.core.op_params import KERNEL_PARAMS
from harness.core.records import Case
from harness.core.seams import find_seam, inject
from harness.evidence.records import Evidence
from harness.judge.targets.kernel import KernelTarget

SMALL: dict[str, Any] = {"num_heads": 2, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
BOTH_EMPTY = {"empty_prefix_rows": 3, "empty_suffix_rows": 1}
EMPTY_PREFIX = {"empty_prefix_rows": 2}
PADS = {"context.pad"}
NO_TAIL = set(SITES.names()) - {"kv.tail"}
RAGGED = {"kernel": "torch-ragged"}
PLANAR = {"kv": "indexer_planar", "seq_lens": [64]}
INLINE = {"kv": "indexer_interleaved", "layers": 2}
LAYERS = {"kv": "indexer_planar", "layout": "block_major", "num_heads": 2}
EMPTY = {"kernel": "tiled-identity", "seq_lens": [5, 0, 70], **SMALL}

# fault, op, params that show it, oracle, site in a finding of that oracle, sites to poison
CAUGHT = [
    ("decode.lse-of-first-tile", "mla_decode", SMALL | {"num_heads": 16}, "reference", None, set()),
    (
        "decode.page-of-first-slots",
        "mla_decode",
        {"seq_lens": [70], "page_size": 16, "planned": False, **SMALL},
        "reference",
        None,
        set(),
    ),
    ("merge.ignore-context-count", "merge_attn_states", {}, "finite", None, {"context.output"}),
    ("merge.ignore-context-count", "merge_attn_states", {}, "finite", None, {"context.lse"}),
    ("merge.empty-lse-finite", "context_attention", {}, "reference", None, set()),
    (
        "merge.empty-lse-finite",
        "context_attention",
        {"kernel": "torch-plus-inf"},
        "reference",
        None,
        set(),
    ),
    (
        "kv.tail-masked-by-multiply",
        "mla_decode",
        {"seq_lens": [5, 70], **SMALL},
        "finite",
        None,
        {"kv.tail"},
    ),
    ("decode.zero-length-row-nan", "mla_decode", EMPTY, "finite", "graph.pad_rows", set()),
    (
        "merge.assume-minus-inf",
        "merge_attn_states",
        EMPTY_PREFIX | {"empty_lse": "+inf"},
        "finite",
        None,
        set(),
    ),
    ("merge.both-sides-empty", "merge_attn_states", BOTH_EMPTY, "finite", None, set()),
    (
        "merge.zero-weight-times-stale",
        "merge_attn_states",
        EMPTY_PREFIX,
        "finite",
        None,
        {"context.output"},
    ),
    (
        "merge.prefix-strides-for-suffix",
        "merge_attn_states",
        {"padded": "suffix"},
        "sentinel",
        "context.pad",
        PADS,
    ),
    (
        "merge.prefix-strides-for-suffix",
        "merge_attn_states",
        {"padded": "suffix"},
        "reference",
        None,
        set(),
    ),
    (
        "context.stale-lse-of-empty-rows",
        "context_attention",
        {},
        "finite",
        "context.lse",
        {"context.lse"},
    ),
    ("merge.lse-base-2", "context_attention", RAGGED, "reference", None, set()),
    ("merge.untransposed-lse", "context_attention", RAGGED, "reference", None, set()),
    (
        "router.duplicates-from-nan-rows",
        "route_experts",
        {"num_live": 9},
        "distinct_experts",
        None,
        {"graph.pad_rows"},
    ),
    ("scale.unwritten-fp4-padding", "quantize_blocks", {}, "finite", None, {"scale.blocks"}),
    ("scale.row-groups-mix-rows", "quantize_blocks", {}, "finite", None, {"scale.pad"}),
    ("scale.row-groups-mix-rows", "quantize_blocks", {}, "reference", None, set()),
    (
        "scale.orphan-rows-to-expert-zero",
        "quantize_blocks",
        {"expert_rows": [2, 1]},
        "finite",
        None,
        {"scale.pad"},
    ),
    ("sparse.scales-of-first-layer", "index_logits", LAYERS, "finite", None, {"kv.neighbor"}),
    ("sparse.scales-of-first-layer", "index_logits", LAYERS, "reference", None, set()),
    ("sparse.pages-of-replaced-manager", "index_logits", {}, "reference", None, set()),
    (
        "sparse.width-by-size",
        "index_logits",
        {"num_heads": 2, "page_stride": 2**29},
        "reference",
        None,
        set(),
    ),
    (
        "sparse.topk-from-unwritten",
        "select_topk",
        {},
        "sentinel",
        None,
        {"sparse.logits", "sparse.topk"},
    ),
    (
        "sparse.ties-by-arrival",
        "select_topk",
        {"values": ["zero"], "launches": 2},
        "repeats",
        None,
        set(),
    ),
    (
        "sparse.rows-of-batch-width",
        "select_topk",
        {"seq_lens": [3, 9]},
        "reference",
        None,
        set(),
    ),
    ("sparse.conversion-of-whole-batch", "map_indices", {}, "sentinel", "sparse.topk", set()),
    ("sparse.minus-one-looked-up", "map_indices", {}, "reference", None, set()),
    (
        "records.shuffled-written-flat",
        "write_records",
        {"kv": "indexer_shuffled"},
        "sentinel",
        "kv.free",
        set(),
    ),
    (
        "records.shuffled-written-flat",
        "write_records",
        {"kv": "indexer_shuffled"},
        "finite",
        None,
        {"kv.new"},
    ),
    (
        "records.shuffled-written-flat",
        "read_records",
        {"kv": "indexer_shuffled"},
        "reference",
        None,
        set(),
    ),
    ("records.planar-read-interleaved", "read_records", PLANAR, "reference", None, set()),
    (
        "records.planar-read-interleaved",
        "write_records",
        {"kv": "indexer_planar"},
        "sentinel",
        "kv.free",
        set(),
    ),
    ("records.inline-scales-by-shape", "write_records", INLINE, "sentinel", "kv.free", set()),
    ("records.inline-scales-by-shape", "write_records", INLINE, "finite", None, {"kv.new"}),
    ("records.inline-scales-by-shape", "read_records", INLINE, "reference", None, set()),
    (
        "records.linear-scales-swizzled",
        "write_records",
        {"kv": "nvfp4_linear"},
        "reference",
        None,
        set(),
    ),
    (
        "records.linear-scales-swizzled",
        "read_records",
        {"kv": "nvfp4_linear"},
        "reference",
        None,
        set(),
    ),
]


def findings(op: str, params: dict[str, Any], oracle: str, sites: set[str]) -> list[Finding]:
    values = KERNEL_PARAMS[op].model_validate(params).model_dump(mode="json")
    case = Case(id="case", scenario="s", system="kernel", op=op, params=values, seed=7)
    runs = [
        KernelTarget(case).run(Poison(pattern, frozenset(sites))) for pattern in ("nan", "zeros")
    ]
    return ORACLES.get(oracle).judge(Evidence(case, runs)).findings


@pytest.mark.parametrize(("name", "op", "params", "oracle", "site", "sites"), CAUGHT)
def test_a_fault_is_caught_while_it_is_applied_and_only_then(
    name: str, op: str, params: dict[str, Any], oracle: str, site: str | None, sites: set[str]
) -> None:
    assert findings(op, params, oracle, sites) == []
    with inject(FAULTS.get(name)):
        found = findings(op, params, oracle, sites)
    assert found and (site is None or site in {finding.site for finding in found})
    assert findings(op, params, oracle, sites) == []


@pytest.mark.parametrize(
    ("name", "op", "params", "oracle", "sites"),
    [
        (
            "merge.ignore-context-count",
            "merge_attn_states",
            {"num_with_context": 12},
            "finite",
            None,
        ),
        (
            "kv.tail-masked-by-multiply",
            "mla_decode",
            {"seq_lens": [64, 128], **SMALL},
            "finite",
            None,
        ),
        (
            "kv.tail-masked-by-multiply",
            "mla_decode",
            {"seq_lens": [5, 70], **SMALL},
            "finite",
            NO_TAIL,
        ),
        ("decode.zero-length-row-nan", "mla_decode", {**EMPTY, "kernel": "tiled"}, "finite", None),
        (
            "decode.zero-length-row-nan",
            "mla_decode",
            {**EMPTY, "seq_lens": [5, 70]},
            "finite",
            None,
        ),
        ("merge.assume-minus-inf", "merge_attn_states", {"empty_prefix_rows": 2}, "finite", None),
        ("merge.both-sides-empty", "merge_attn_states", {"empty_prefix_rows": 3}, "finite", None),
        (
            "merge.zero-weight-times-stale",
            "merge_attn_states",
            {"empty_prefix_rows": 2},
            "finite",
            {"context.lse"},
        ),
        # The first merge has gaps on both sides: the failure begins with the second.
        (
            "merge.prefix-strides-for-suffix",
            "merge_attn_states",
            {"padded": "both"},
            "reference",
            None,
        ),
        ("merge.prefix-strides-for-suffix", "merge_attn_states", {}, "reference", None),
        # Isfinite passes for a unit error.
        ("merge.lse-base-2", "context_attention", RAGGED, "finite", None),
        ("merge.untransposed-lse", "context_attention", {}, "reference", None),
        (
            "context.stale-lse-of-empty-rows",
            "context_attention",
            {"context_lens": [9, 1, 3]},
            "reference",
            None,
        ),
        ("router.duplicates-from-nan-rows", "route_experts", {}, "distinct_experts", None),
        (
            "router.duplicates-from-nan-rows",
            "route_experts",
            {"num_live": 9},
            "reference",
            {"graph.pad_rows"},
        ),
        ("scale.unwritten-fp4-padding", "quantize_blocks", {"expert_rows": [128]}, "finite", None),
        (
            "scale.orphan-rows-to-expert-zero",
            "quantize_blocks",
            {"orphan_rows": 0},
            "reference",
            None,
        ),
        # One layer alone: the shape tells the strides.
        (
            "records.inline-scales-by-shape",
            "write_records",
            {"kv": "indexer_interleaved"},
            "sentinel",
            None,
        ),
        (
            "records.shuffled-written-flat",
            "write_records",
            {"kv": "indexer_planar"},
            "sentinel",
            None,
        ),
        (
            "records.linear-scales-swizzled",
            "write_records",
            {"kv": "nvfp4_swizzled"},
            "reference",
            None,
        ),
        (
            "records.planar-read-interleaved",
            "read_records",
            {"kv": "indexer_interleaved"},
            "reference",
            None,
        ),
    ],
)
def test_a_fault_stays_silent_where_its_condition_is_not_met(
    name: str, op: str, params: dict[str, Any], oracle: str, sites: set[str] | None
) -> None:
    with inject(FAULTS.get(name)):
        assert findings(op, params, oracle, set(SITES.names()) if sites is None else sites) == []


NAMES = sorted({row[0] for row in CAUGHT})


@pytest.mark.parametrize("name", NAMES)
def test_injecting_a_fault_twice_raises_and_leaves_the_first_in_place(name: str) -> None:
    place = find_seam(FAULTS.get(name).target)
    original = place.current
    with inject(FAULTS.get(name)):
        replaced = place.current
        with pytest.raises(RuntimeError, match="injected already"), inject(FAULTS.get(name)):
            pass
        assert place.current is replaced is not original
    assert place.current is original


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_taken_out_again_after_an_exception(name: str) -> None:
    place = find_seam(FAULTS.get(name).target)
    original = place.current
    with pytest.raises(KeyError), inject(FAULTS.get(name)):
        assert place.current is not original
        raise KeyError("from within")
    assert place.current is original
    with inject(FAULTS.get(name)):
        assert place.current is not original


def test_a_wrong_base_and_a_wrong_layout_are_told_apart_and_seen_together() -> None:
    """Three faults of vllm-project/vllm#26397 were stacked; each alone, and both that stand in one
    kernel, are seen.
    """
    bases = {}
    for names in (
        ("merge.lse-base-2",),
        ("merge.untransposed-lse",),
        ("merge.lse-base-2", "merge.untransposed-lse"),
    ):
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(inject(FAULTS.get(name)))
            (finding,) = findings(
                "context_attention", RAGGED | {"context_lens": [70, 17, 9]}, "reference", set()
            )
        assert finding.tensor == "lse"
        bases[names] = finding.message
    assert len(set(bases.values())) == 3
