"""The kernels under test that an engine calls, bound to the poison of the run, and the memory that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.core.catalog import KERNELS
from harness.core.engine_params import ENGINE_KERNELS, EngineParams
from harness.core.params import KvType
from harness.core.seams import seam
from harness.kernels.call import BoundKernel
from harness.memory.poison.patterns import Poison

GUARD_WORDS = 16
GUARD = 0x5AFE5AFE
"""The words behind the last counter, which no kernel may write."""


class Workspace:
    """The workspace of one engine.

    counters: [num_requests] int32, one for each request of a decode. scratch: [T, H, D] float32, where the query of a
    decode is put together; it stays dirty.
    """

    def __init__(self, params: EngineParams) -> None:
        self.num_requests = num_counters(params)
        query_len, head_dim = 1 + params.speculative_tokens, params.kv_lora_rank + params.qk_rope_head_dim
        num_tokens = query_len * max(params.max_num_seqs, *params.capture_sizes)
        self.scratch = torch.zeros(num_tokens, params.num_heads, head_dim)
        self._words = torch.zeros(self.num_requests + GUARD_WORDS, dtype=torch.int32)
        self.guard.fill_(GUARD)

    @property
    def guard(self) -> Tensor:
        """The words [GUARD_WORDS] behind the last counter."""
        return self._words[self.num_requests :]

    @seam("graph.workspace-grows", "graph.workspace-in-pool", "workspace.dirty-counters")
    def counters(self, num_requests: int) -> Tensor:
        """The counters for a batch of `num_requests`: the same memory for every batch, used for nothing else.

        Counters that grow with the batch leave graphs with an old address (PR 45487). Counters made in a capture lie in
        the graph's pool (ROCm/aiter#5393). Counters in shared scratch are not zero (PR 25520).
        """
        return self._words[: min(num_requests, self.num_requests)]

    def query(self, nope: Tensor, rope: Tensor) -> Tensor:
        """Concatenate nope [T, H, R] and rope [T, H, E] in the scratch: [T, H, R + E]."""
        return torch.cat((nope, rope), dim=-1, out=self.scratch[: nope.shape[0]])


@seam("graph.buffers-by-request-limit")
def num_counters(params: EngineParams) -> int:
    """The most requests of a batch, padding included: the request limit or the largest graph (PR 41016)."""
    return max(params.max_num_seqs, *params.capture_sizes)


_ITEMSIZE: dict[KvType, int] = {"fp32": 4, "bf16": 2, "fp8_e4m3": 1}


@dataclass(frozen=True, slots=True)
class Kernels:
    """One kernel for each op, the workspace of a decode kernel that needs one, and the options of its planner."""

    mla_decode: BoundKernel
    mla_decode_plan: BoundKernel
    mla_decode_sparse: BoundKernel
    context_attention: BoundKernel
    merge_attn_states: BoundKernel
    write_kv: BoundKernel
    quantize_fp8: BoundKernel
    route_experts: BoundKernel
    quantize_blocks: BoundKernel
    workspace: Workspace | None = None
    plan_options: Mapping[str, Any] = field(default_factory=dict)


def bind(params: EngineParams, poison: Poison) -> Kernels:
    """Load the kernels that `params` names. Raises UnknownNameError for an unregistered kernel."""
    names = {op: getattr(params, field) for field, op in ENGINE_KERNELS.items()}
    if params.quantize == "fp8_per_token":
        names["quantize_fp8"] = "per-token"
    bound = {op: BoundKernel(KERNELS.get(f"{op}/{name}"), poison) for op, name in names.items()}
    decode, plan = bound["mla_decode"].spec, bound["mla_decode_plan"].spec
    # One plan serves all layers, so chunks of pages need caches of one type.
    has_one_type = "window" not in params.layers or params.window_kv in (None, params.kv)
    in_chunks = decode.chunked and plan.chunked and has_one_type
    return Kernels(
        **bound,
        workspace=Workspace(params) if decode.counted else None,
        plan_options={"kv_itemsize": planned_itemsize(params.kv)} if in_chunks else {},
    )


@seam("plan.wrong-element-size")
def planned_itemsize(kv: KvType) -> int:
    """The size in bytes of an element of the cache, for the planner.

    A plan made for bfloat16 does not fit a cache of another type (PR 38719).
    """
    return _ITEMSIZE[kv]
