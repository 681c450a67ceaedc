"""One call of each op: its poisoned inputs, the shapes it must return, and what there is to judge afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.core.catalog import KERNELS
from harness.core.ops import PAGE_SIZE
from harness.core.params import (
    ContextAttentionParams,
    KernelParams,
    MergeAttnStatesParams,
    MlaDecodeParams,
    QuantizeFp8Params,
    RouteExpertsParams,
    WriteKvParams,
)
from harness.judge.run_records import ChosenExperts, Observed
from harness.judge.targets.block_calls import quantize_blocks
from harness.judge.targets.kernel_call import (
    Counters,
    Guarded,
    KernelCall,
    Setting,
    attention_rows,
    by_rows,
    guards,
    keeps,
    prepared,
    shapes_of,
)
from harness.judge.targets.kernel_outputs import invoke
from harness.judge.targets.sparse_calls import mla_decode_sparse
from harness.kernels.ops import inputs as op_inputs
from harness.kernels.ops import reference


def build(op: str, params: KernelParams, setting: Setting) -> KernelCall:
    """The call of `op` that `params` and the seed stand for. Runs the kernel's planner, if the case wants a plan."""
    return _BUILDERS[op](params, setting)


def _mla_decode(params: MlaDecodeParams, setting: Setting) -> KernelCall:
    raw = op_inputs.mla_decode(params, setting.seed)
    poison = replace(
        setting.poison,
        traps={**setting.poison.traps, "block_table.pad": raw.trap_block},
        strict=setting.poison.strict and not keeps(setting, setting.spec.needs_valid_table),
    )
    given, kept = prepared(raw, raw.unowned, replace(setting, poison=poison))
    num_requests, num_query_tokens, num_heads, _ = given.q.shape
    dims = {"B": num_requests, "S": num_query_tokens, "H": num_heads, "R": params.kv_lora_rank}
    counters = Counters.of(setting, num_requests)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.mla_decode(
            kept.q, kept.kv_cache, kept.block_table, kept.seq_lens,
            scale=kept.scale, kv_scale=kept.kv_scale, window=params.window,
        )  # fmt: skip
        rows = num_requests * num_query_tokens
        out, lse = outputs
        return attention_rows(
            setting.spec,
            f".{params.kv}",
            "request" if num_query_tokens == 1 else f"query token (of {num_query_tokens} a request)",
            "graph.pad_rows",
            (out.reshape(rows, *out.shape[2:]), lse.transpose(1, 2).reshape(rows, num_heads)),
            reference.Attention(
                want.out.reshape(rows, *out.shape[2:]),
                want.lse.transpose(1, 2).reshape(rows, num_heads),
                want.defined.reshape(rows),
            ),
        )

    return KernelCall(
        args=(given.q, given.kv_cache, given.block_table, given.seq_lens),
        kwargs={
            "scale": given.scale,
            "kv_scale": given.kv_scale,
            "metadata": _plan(params, setting, given.seq_lens, num_heads),
            **({} if params.window is None else {"window": params.window}),
            **counters.argument,
        },
        shapes=shapes_of("mla_decode", dims),
        dtypes=(given.q.dtype, torch.float32),
        guarded=[*guards(given, kept, ("q", "kv_cache", "block_table", "seq_lens")), *counters.guarded],
        observe=observe,
    )


def _plan(params: MlaDecodeParams, setting: Setting, seq_lens: Tensor, num_heads: int) -> Any:
    """The metadata of the kernel's own planner: the one of its name, or the built-in one for built-in kernels."""
    if not params.planned:
        return None
    name = f"mla_decode_plan/{setting.spec.short_name}"
    if name not in KERNELS:
        if setting.spec.origin != "built in":
            return None
        name = "mla_decode_plan/tiled"
    planner = KERNELS.get(name)
    chunked = planner.chunked and setting.spec.chunked
    options = {"kv_itemsize": op_inputs.KV_DTYPES[params.kv].itemsize} if chunked else {}
    return invoke(planner, setting.poison, (seq_lens,), {"num_heads": num_heads, **options})


def _context_attention(params: ContextAttentionParams, setting: Setting) -> KernelCall:
    given, kept = prepared(op_inputs.context_attention(params, setting.seed), [], setting)
    dims = {"T": given.q.shape[0], "H": params.num_heads, "V": params.v_head_dim}

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.context_attention(
            kept.q, kept.k, kept.v, kept.query_start_loc, kept.chunk_start_loc, scale=kept.scale
        )
        rows = reference.Attention(want.out, want.lse.T, want.defined)
        return attention_rows(setting.spec, "", "token", "context.output", (outputs[0], outputs[1].T), rows)

    return KernelCall(
        args=(given.q, given.k, given.v, given.query_start_loc, given.chunk_start_loc),
        kwargs={"scale": given.scale},
        shapes=shapes_of("context_attention", dims),
        dtypes=(given.q.dtype, torch.float32),
        guarded=guards(given, kept, ("q", "k", "v", "query_start_loc", "chunk_start_loc")),
        observe=observe,
    )


def _merge_attn_states(params: MergeAttnStatesParams, setting: Setting) -> KernelCall:
    raw = op_inputs.merge_attn_states(params, setting.seed)
    given, kept = prepared(raw, raw.unowned, setting)
    dims = {"T": params.num_tokens, "H": params.num_heads, "V": params.v_head_dim}
    names = ("prefix_out", "prefix_lse", "suffix_out", "suffix_lse")

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.merge_attn_states(
            *(getattr(kept, name) for name in names), num_tokens_with_context=kept.num_tokens_with_context
        )
        out, lse = outputs
        return [
            Observed("out", out, want.defined, want.out, "merge_attn_states.out", "token"),
            Observed("lse", lse.T, want.defined, want.lse.T, "merge_attn_states.lse", "token"),
        ]

    return KernelCall(
        args=tuple(getattr(given, name) for name in names),
        kwargs={"num_tokens_with_context": given.num_tokens_with_context},
        shapes=shapes_of("merge_attn_states", dims),
        dtypes=(given.prefix_out.dtype, torch.float32),
        guarded=guards(given, kept, names),
        observe=observe,
    )


def _write_kv(params: WriteKvParams, setting: Setting) -> KernelCall:
    raw = op_inputs.write_kv(params, setting.seed)
    given, kept = prepared(raw, raw.unowned, setting)
    slots = kept.slot_mapping[kept.slot_mapping >= 0]
    others = torch.ones(given.kv_cache.shape[0] * PAGE_SIZE, dtype=torch.bool, device=slots.device)
    others[slots] = False
    others[:PAGE_SIZE] = False

    def slots_of(cache: Tensor, which: Tensor) -> Tensor:
        # As bytes, because older torch cannot index fp8.
        raw_bytes = cache.cpu().view(torch.uint8).reshape(others.shape[0], -1)
        return raw_bytes[which].view(cache.dtype)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.stored_latents(kept.kv_c, kept.k_pe, given.kv_cache.dtype, kept.kv_scale)
        live = torch.ones(slots.shape[0], dtype=torch.bool, device=slots.device)
        stored = slots_of(given.kv_cache, slots)
        return [Observed("kv_cache", stored, live, want[: slots.shape[0]], f"write_kv.{params.kv}", "token")]

    null = slice(op_inputs.NULL_BLOCK, op_inputs.NULL_BLOCK + 1)
    guarded = [
        Guarded("kv_cache null block", "kv.null", kept.kv_cache[null], lambda: given.kv_cache[null]),
        Guarded(
            "kv_cache slots of others",
            "kv.free",
            slots_of(kept.kv_cache, others),
            lambda: slots_of(given.kv_cache, others),
        ),
    ]
    return KernelCall(
        args=(given.kv_c, given.k_pe, given.kv_cache, given.slot_mapping),
        kwargs={"kv_scale": given.kv_scale},
        shapes=(),
        dtypes=(),
        guarded=[*guarded, *guards(given, kept, ("kv_c", "k_pe", "slot_mapping"))],
        observe=observe,
    )


def _quantize_fp8(params: QuantizeFp8Params, setting: Setting) -> KernelCall:
    raw = op_inputs.quantize_fp8(params, setting.seed)
    given, kept = prepared(raw, raw.unowned, setting)
    dims = {"T": params.num_tokens, "K": params.width}
    x8_shapes, scale_shapes = shapes_of("quantize_fp8", dims)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        x8, scale = outputs
        per_token = scale.ndim == 2
        want = reference.quantize_fp8(kept.x, kept.num_live, per_token=per_token)
        whole = torch.ones(1, dtype=torch.bool, device=scale.device)
        return [
            Observed("x8", x8, want.live, want.scaled, "quantize_fp8", "token"),
            Observed(
                "scale",
                by_rows(scale),
                want.live if per_token else whole,
                by_rows(want.scale),
                "quantize_fp8.scale",
                "scale",
            ),
        ]

    return KernelCall(
        args=(given.x,),
        kwargs={"num_live": given.num_live},
        # One scale a row is as good: it is what keeps rows apart, and the scenarios use it as a control.
        shapes=(x8_shapes, (*scale_shapes, (params.num_tokens, 1))),
        dtypes=(torch.float8_e4m3fn, torch.float32),
        guarded=guards(given, kept, ("x",)),
        observe=observe,
    )


def _route_experts(params: RouteExpertsParams, setting: Setting) -> KernelCall:
    raw = op_inputs.route_experts(params, setting.seed)
    given, kept = prepared(raw, raw.unowned, setting)
    dims = {"T": params.num_tokens, "k": params.num_experts_per_tok}
    live = torch.arange(params.num_tokens) < given.num_live
    # A kernel that is told how many tokens are live promises nothing of the others; one that is not routes them all.
    promised = live if setting.spec.live_only else torch.ones_like(live)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.route_experts(kept.logits, kept.num_experts_per_tok)
        # The order of a token's experts is the kernel's own; both outputs are put in the order of the ids.
        order = outputs[0].argsort(dim=1)
        ids, weights = (output.gather(1, order) for output in outputs)
        return [
            Observed("ids", ids, live, want.ids, "", "token", "router.ids"),
            Observed("weights", weights, live, want.weights, "route_experts.weights", "token", "router.weights"),
        ]

    return KernelCall(
        args=(given.logits,),
        kwargs={
            "num_experts_per_tok": given.num_experts_per_tok,
            **({"num_live": given.num_live} if setting.spec.live_only else {}),
        },
        shapes=shapes_of("route_experts", dims),
        dtypes=(torch.int32, torch.float32),
        guarded=guards(given, kept, ("logits",)),
        observe=observe,
        chosen=lambda outputs: [ChosenExperts("ids", outputs[0][promised], params.num_experts)],
    )


_BUILDERS: dict[str, Callable[[Any, Setting], KernelCall]] = {
    "mla_decode": _mla_decode,
    "mla_decode_sparse": mla_decode_sparse,
    "context_attention": _context_attention,
    "merge_attn_states": _merge_attn_states,
    "write_kv": _write_kv,
    "quantize_fp8": _quantize_fp8,
    "route_experts": _route_experts,
    "quantize_blocks": quantize_blocks,
}
