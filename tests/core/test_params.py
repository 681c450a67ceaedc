"""Parameters that do not go together make no case, whatever gives them; a run that is stored keeps
its own.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from harness.core.cases import Case
from harness.core.catalog import SYSTEMS
from harness.core.params import STORED
from tests.transcripts import Approved

ILLEGAL: list[tuple[str, str | None, dict[str, Any], str]] = [
    (
        "kernel",
        "mla_decode",
        {"kv_lora_rank": 48},
        "kv_lora_rank 48 is not the largest power of two below",
    ),
    (
        "kernel",
        "mla_decode",
        {"qk_rope_head_dim": 513},
        "kv_lora_rank 512 is not the largest power of two below",
    ),
    ("kernel", "mla_decode", {"seq_lens": ()}, "seq_lens is empty; give at least one length"),
    (
        "kernel",
        "mla_decode",
        {"seq_lens": (5, 5), "graph": "full"},
        "a graph needs two different seq_lens",
    ),
    ("kernel", "mla_decode", {"seq_lens": (3, 9), "query_len": 4}, "a length below query_len 4"),
    (
        "kernel",
        "context_attention",
        {"query_lens": (1, 2), "context_lens": (3,)},
        "2 requests and context_lens 1",
    ),
    (
        "kernel",
        "context_attention",
        {"query_lens": (0,), "context_lens": (3,)},
        "a request without new tokens",
    ),
    (
        "kernel",
        "context_attention",
        {"query_lens": (1,), "context_lens": (0,)},
        "give one request some context",
    ),
    ("kernel", "merge_attn_states", {"num_tokens": 3}, "num_with_context is more than num_tokens"),
    (
        "kernel",
        "merge_attn_states",
        {"empty_prefix_rows": 8},
        "empty_prefix_rows is more than num_with_context",
    ),
    (
        "kernel",
        "merge_attn_states",
        {"empty_suffix_rows": 8},
        "empty_suffix_rows is more than num_with_context",
    ),
    (
        "kernel",
        "write_kv",
        {"num_tokens": 3, "num_padded": 3},
        "num_padded leaves no token to store",
    ),
    (
        "kernel",
        "quantize_fp8",
        {"num_tokens": 3, "num_live": 4},
        "num_live is more than num_tokens",
    ),
    ("kernel", "quantize_fp8", {"num_live": 0}, "greater than or equal to 1"),
    ("kernel", "route_experts", {"num_experts": 3}, "num_experts_per_tok is more than num_experts"),
    ("kernel", "route_experts", {"num_live": 13}, "num_live is more than num_tokens"),
    ("kernel", "quantize_blocks", {"width": 24}, "width 24 is no multiple of the block of 16"),
    (
        "kernel",
        "quantize_blocks",
        {"width": 48, "block_format": "mxfp4"},
        "no multiple of the block of 32",
    ),
    ("kernel", "quantize_blocks", {"expert_rows": (0, 0)}, "give one expert some"),
    ("engine", None, {"layers": ()}, "requests and layers hold at least one entry each"),
    (
        "engine",
        None,
        {"graph": "full", "capture_sizes": ()},
        "capture_sizes is empty; a graph has a size",
    ),
    ("engine", None, {"qk_rope_head_dim": 15}, "qk_rope_head_dim is odd"),
    ("engine", None, {"num_blocks": 4}, "num_blocks 4 leaves 2 blocks, a request needs 3"),
    ("engine", None, {"kv_lora_rank": 24}, "kv_lora_rank 24 is not the largest power of two below"),
    ("engine", None, {"expert_ranks": 3, "num_experts": 4}, "each rank holds an equal share"),
    (
        "vllm",
        None,
        {"tensor_parallel": 3},
        "tensor_parallel 3 is no power of two, so heads cannot be split",
    ),
    (
        "vllm",
        None,
        {"tensor_parallel": 2, "poison_rank": 2},
        "poison_rank 2 is no rank of 2; the last is 1",
    ),
]


@pytest.mark.parametrize(("system", "op", "given", "sentence"), ILLEGAL)
def test_parameters_that_contradict_each_other_make_no_case(
    system: str, op: str | None, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        Case(id="a", scenario="a", system=system, op=op, params=given)
    assert sentence in refused.value.errors()[0]["msg"]


def test_of_an_unknown_system_or_op_there_is_no_case_and_the_error_names_the_nearest(
    approved: Approved,
) -> None:
    for given in [
        {"system": "kernel"},
        {"system": "kernel", "op": "mla_decod"},
        {"system": "engin"},
        {},
    ]:
        with pytest.raises(ValidationError) as refused:
            Case.model_validate({"id": "a", "scenario": "a", **given})
        approved(refused.value.errors()[0]["msg"], str(given))


def test_a_stored_case_that_a_newer_rule_refuses_can_still_be_read(approved: Approved) -> None:
    model = SYSTEMS.get("kernel").model("write_kv")
    old = {
        "id": "a",
        "scenario": "a",
        "system": "kernel",
        "op": "write_kv",
        "params": {"num_tokens": 2},
    }
    with approved.raises(ValidationError):
        Case.model_validate(old)
    case = Case.model_validate(old, context=STORED)
    assert (case.op, case.params) == (
        "write_kv",
        model.model_validate({"num_tokens": 2}, context=STORED),
    )
    assert Case.model_validate_json(case.model_dump_json(), context=STORED) == case


def test_graphs_layouts_and_time_limits_are_those_of_the_parameters_of_these_names() -> None:
    models = {
        spec.model(op) for spec in SYSTEMS for op in (spec.ops() or [None]) if spec.name != "model"
    }
    for model in models:
        plain = model.model_construct()
        assert plain.has_graph is (
            model.model_fields["graph"].default != "none"
            if "graph" in model.model_fields
            else False
        )
        assert (plain.own_timeout is not None) is ("timeout_seconds" in model.model_fields), model
        if "graph" in model.model_fields:
            assert model.model_construct(graph="full").has_graph, model
        assert plain.cache_layout == "contiguous", model
