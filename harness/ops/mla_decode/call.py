"""A call of `mla_decode`, beside its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.core.catalog import planner_of
from harness.kernels.call import BoundKernel
from harness.ops.mla_decode import inputs, reference
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.parts.buffers import with_trap
from harness.ops.parts.cache_layouts import KV_DTYPES
from harness.ops.parts.call import (
    Guarded,
    KernelCall,
    Setting,
    attention_rows,
    by_rows,
    invoke,
    keeps,
    out_and_lse,
    prepared,
)
from harness.ops.parts.corrupted import planned_lengths
from harness.ops.parts.judged import Rows
from harness.ops.parts.latents import rank_keyword, rounded_products


def prepare(params: MlaDecodeParams, setting: Setting) -> KernelCall:
    raw = inputs.draw(params, setting.seed)
    poison = replace(
        with_trap(setting, raw.trap_block).poison,
        sites=setting.poison.sites
        # Zeros that the case asks for must stay: the poison would overwrite them.
        - ({"block_table.pad"} if params.table_entries == "zero" else set()),
        # A kernel that declares that it needs valid entries gets none out of range.
        strict=(setting.poison.strict or params.table_entries == "out_of_range")
        and not keeps(setting, setting.spec.needs_valid_table),
    )
    given, kept = prepared(raw, replace(setting, poison=poison))
    num_requests, num_query_tokens, num_heads, _ = given.q.shape

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """out [B, S, H, R] and lse [B, H, S] float32, beside the reference, a row for each query
        token.
        """
        want = reference.expected(
            *(kept.q, kept.kv_cache, kept.block_table, kept.seq_lens),
            scale=kept.scale,
            kv_scale=kept.kv_scale,
            window=params.window,
            products=rounded_products(setting, params.kv),
        )
        out, lse = out_and_lse(outputs)
        return attention_rows(
            setting.spec,
            f".{params.kv}",
            (
                "request"
                if num_query_tokens == 1
                else f"query token (of {num_query_tokens} a request)"
            ),
            "graph.pad_rows",
            (out.flatten(0, 1), None if lse is None else lse.transpose(1, 2).flatten(0, 1)),
            want,
        )

    dims = {"B": num_requests, "S": num_query_tokens, "H": num_heads, "R": params.kv_lora_rank}
    keywords = {"metadata": None} | rank_keyword(setting, params.kv_lora_rank)
    if params.window is not None:
        keywords["window"] = params.window
    call = KernelCall.of(
        "mla_decode", given, kept, dims, (given.q.dtype, torch.float32), observe, **keywords
    )
    call.by_request = [given.q, given.block_table, given.seq_lens]
    call.plan = _plan(
        params, setting, planned_lengths(given.seq_lens, setting.corruption), num_heads
    )
    if "workspace" in setting.spec.takes:
        # Words behind the workspace show a write past its end.
        words = torch.zeros(num_requests + 4, dtype=torch.int32, device=setting.device)
        words[num_requests:] = -1
        before = by_rows(words.cpu().clone())
        call.kwargs["workspace"] = words[:num_requests]
        call.guarded.append(
            Guarded("the workspace", "workspace", before, lambda: by_rows(words.cpu()))
        )
    return call


def _plan(
    params: MlaDecodeParams, setting: Setting, seq_lens: Tensor, num_heads: int
) -> Callable[[bool], Any] | None:
    """The function that makes a plan, with the kernel's planner; None if the case has no plan."""
    planner = planner_of(setting.spec)
    if planner is None or not params.planned:
        return None
    chunked = planner.chunked and setting.spec.chunked
    options = {"kv_itemsize": KV_DTYPES[params.kv].itemsize} if chunked else {}
    keywords = {"num_heads": num_heads, **options}

    def plan(is_captured: bool) -> Any:
        if is_captured:
            return BoundKernel(planner, setting.poison)(seq_lens, **keywords)
        return invoke(planner, setting.poison, (seq_lens,), keywords)

    return plan
