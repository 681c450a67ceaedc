"""One call of `mla_decode_sparse`: its poisoned inputs, and what there is to judge afterwards."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.core.params import MlaDecodeSparseParams
from harness.judge.run_records import Observed
from harness.judge.targets.kernel_call import KernelCall, Setting, attention_rows, guards, keeps, prepared, shapes_of
from harness.kernels.ops import reference, sparse_inputs


def mla_decode_sparse(params: MlaDecodeSparseParams, setting: Setting) -> KernelCall:
    """The call that `params` and the seed stand for."""
    raw = sparse_inputs.mla_decode_sparse(params, setting.seed)
    poison = replace(
        setting.poison, strict=setting.poison.strict and not keeps(setting, setting.spec.needs_valid_table)
    )
    given, kept = prepared(raw, raw.unowned, replace(setting, poison=poison))
    num_tokens, num_heads, _ = given.q.shape

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.mla_decode_sparse(
            kept.q, kept.kv_cache, kept.indices, scale=kept.scale, kv_scale=kept.kv_scale
        )
        return attention_rows(setting.spec, f".{params.kv}", "token", "graph.pad_rows", (outputs[0], outputs[1]), want)

    return KernelCall(
        args=(given.q, given.kv_cache, given.indices),
        kwargs={"scale": given.scale, "kv_scale": given.kv_scale},
        shapes=shapes_of("mla_decode_sparse", {"T": num_tokens, "H": num_heads, "R": params.kv_lora_rank}),
        dtypes=(given.q.dtype, torch.float32),
        guarded=guards(given, kept, ("q", "kv_cache", "indices")),
        observe=observe,
    )
