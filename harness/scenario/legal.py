"""What a case must keep to, so that a failure is the kernel's or the engine's and never the case's own."""

from __future__ import annotations

from typing import Any

from harness.core.ops import PAGE_SIZE, latent_rank

Params = dict[str, Any]

FORMATS = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
"""Elements of a block, as in :mod:`harness.kernels.ops.block_formats`, which needs torch."""


def why_illegal(system: str, params: Params) -> str:
    """What is wrong with validated `params` of a case, in a sentence; empty when nothing is."""
    if system == "engine":
        return _engine(params)
    if system == "vllm":
        return _vllm(params)
    if system != "kernel":
        return ""
    check = _OPS.get(params["op"])
    return check(params) if check is not None else ""


def settled(system: str, params: Params) -> Params:
    """`params` with counts that depend on a smaller one brought within it, such as live rows within all rows."""
    op = params.get("op")
    bounds: dict[str, int] = {}
    if op == "merge_attn_states":
        bounds["num_with_context"] = params["num_tokens"]
        bounds["empty_prefix_rows"] = min(params["num_with_context"], params["num_tokens"])
        bounds["empty_suffix_rows"] = bounds["empty_prefix_rows"]
    elif op == "write_kv":
        bounds["num_padded"] = params["num_tokens"] - 1
    elif op == "quantize_fp8":
        bounds["num_live"] = params["num_tokens"]
    elif op == "route_experts" or (system == "engine" and params["num_experts"]):
        bounds["num_experts_per_tok"] = params["num_experts"]
        if params.get("num_live") is not None:
            bounds["num_live"] = params["num_tokens"]
    return params | {name: min(params[name], bound) for name, bound in bounds.items()}


def _vllm(params: Params) -> str:
    num_ranks, rank = params["tensor_parallel"], params["poison_rank"]
    if num_ranks & (num_ranks - 1):
        return f"tensor_parallel {num_ranks} is no power of two, so heads cannot be split"
    if rank is not None and rank >= num_ranks:
        return f"poison_rank {rank} is no rank of {num_ranks}; the last is {num_ranks - 1}"
    return ""


def _rank(params: Params) -> str:
    rank, rope = params["kv_lora_rank"], params["qk_rope_head_dim"]
    if latent_rank(rank + rope) == rank:
        return ""
    return f"kv_lora_rank {rank} is not the largest power of two below kv_lora_rank + qk_rope_head_dim ({rank + rope})"


def _mla_decode(params: Params) -> str:
    lengths, query_len = params["seq_lens"], params["query_len"]
    if not any(lengths):
        return "seq_lens has no live request; give one a length"
    if any(0 < length < query_len for length in lengths):
        return f"seq_lens holds a length below query_len {query_len}; the query tokens are part of a request's length"
    return _rank(params)


def _context_attention(params: Params) -> str:
    queries, contexts = params["query_lens"], params["context_lens"]
    if len(queries) != len(contexts):
        return f"query_lens has {len(queries)} requests and context_lens {len(contexts)}; give each one of both"
    if not queries or min(queries) < 1:
        return "query_lens holds a request without new tokens"
    return "" if any(contexts) else "context_lens has no token; give one request some context"


def _merge_attn_states(params: Params) -> str:
    if params["num_with_context"] > params["num_tokens"]:
        return "num_with_context is more than num_tokens"
    if params["empty_prefix_rows"] > params["num_with_context"]:
        return "empty_prefix_rows is more than num_with_context"
    if params["empty_suffix_rows"] > params["num_with_context"]:
        return "empty_suffix_rows is more than num_with_context"
    return ""


def _write_kv(params: Params) -> str:
    return "num_padded leaves no token to store" if params["num_padded"] >= params["num_tokens"] else ""


def _quantize_fp8(params: Params) -> str:
    return "" if 1 <= params["num_live"] <= params["num_tokens"] else "num_live is not within 1 to num_tokens"


def _route_experts(params: Params) -> str:
    if params["num_experts_per_tok"] > params["num_experts"]:
        return "num_experts_per_tok is more than num_experts"
    if (params["num_live"] or 0) > params["num_tokens"]:
        return "num_live is more than num_tokens"
    return ""


def _quantize_blocks(params: Params) -> str:
    block = FORMATS[params["block_format"]]
    if params["width"] % block:
        return f"width {params['width']} is no multiple of the block of {block}"
    return "" if any(params["expert_rows"]) else "expert_rows has no row; give one expert some"


def _engine(params: Params) -> str:
    if not params["requests"] or not params["layers"]:
        return "requests and layers hold at least one entry each"
    if params["graph"] != "none" and not params["capture_sizes"]:
        return "capture_sizes is empty; a graph has a size"
    if params["qk_rope_head_dim"] % 2:
        return "qk_rope_head_dim is odd; rotary embedding turns pairs"
    state = int("kda" in params["layers"])
    needed = max(-(-(prompt + count - 1) // PAGE_SIZE) for prompt, count in params["requests"]) + state
    if needed > params["num_blocks"] - 2:
        return f"num_blocks {params['num_blocks']} leaves {params['num_blocks'] - 2} blocks, a request needs {needed}"
    if params["num_experts"] % params["expert_ranks"]:
        return f"num_experts {params['num_experts']} is not shared out evenly by {params['expert_ranks']} expert_ranks"
    return _rank(params)


_OPS = {
    "mla_decode": _mla_decode,
    "context_attention": _context_attention,
    "merge_attn_states": _merge_attn_states,
    "write_kv": _write_kv,
    "quantize_fp8": _quantize_fp8,
    "route_experts": _route_experts,
    "quantize_blocks": _quantize_blocks,
}
