"""The kernels under test that an engine calls, bound to the poison of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.catalog import KERNELS
from harness.core.engine_params import ENGINE_KERNELS, EngineParams
from harness.core.params import KvType
from harness.core.seams import seam
from harness.engine.workspace import Workspace
from harness.kernels.call import BoundKernel
from harness.memory.poison.patterns import Poison

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
