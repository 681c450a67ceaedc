"""A call of `mla_decode_sparse`, beside its reference."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.ops.mla_decode_sparse import inputs, reference
from harness.ops.mla_decode_sparse.params import MlaDecodeSparseParams
from harness.ops.parts.call import KernelCall, Setting, attention_rows, keeps, out_and_lse, prepared
from harness.ops.parts.judged import Rows
from harness.ops.parts.latents import rank_keyword, rounded_products


def prepare(params: MlaDecodeSparseParams, setting: Setting) -> KernelCall:
    strict = setting.poison.strict and not keeps(setting, setting.spec.needs_valid_table)
    raw = inputs.draw(params, setting.seed)
    given, kept = prepared(raw, replace(setting, poison=replace(setting.poison, strict=strict)))
    num_tokens, num_heads, _ = given.q.shape

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """out [T, H, R] and lse [T, H] float32, beside the reference."""
        products = rounded_products(setting, params.kv)
        want = reference.expected(
            kept.q,
            kept.kv_cache,
            kept.indices,
            scale=kept.scale,
            kv_scale=kept.kv_scale,
            products=products,
        )
        return attention_rows(
            setting.spec, f".{params.kv}", "token", "graph.pad_rows", out_and_lse(outputs), want
        )

    dims = {"T": num_tokens, "H": num_heads, "R": params.kv_lora_rank}
    keywords = rank_keyword(setting, params.kv_lora_rank)
    return KernelCall.of(
        "mla_decode_sparse", given, kept, dims, (given.q.dtype, torch.float32), observe, **keywords
    )
