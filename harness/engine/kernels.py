"""The kernels under test that an engine calls, bound to the poison of the run."""

from __future__ import annotations

from dataclasses import dataclass

from harness.catalog import KERNELS
from harness.kernels.call import BoundKernel
from harness.poison.patterns import Poison
from harness.scenario.params import ENGINE_KERNEL_FIELDS, EngineParams


@dataclass(frozen=True, slots=True)
class Kernels:
    """One kernel for each op; an attribute has the op's name."""

    mla_decode: BoundKernel
    mla_decode_plan: BoundKernel
    context_attention: BoundKernel
    merge_attn_states: BoundKernel
    write_kv: BoundKernel
    quantize_fp8: BoundKernel
    route_experts: BoundKernel


def bind(params: EngineParams, poison: Poison) -> Kernels:
    """Load the kernels that `params` names. Raises UnknownNameError for one that is not registered."""
    names = {op: getattr(params, field) for op, field in ENGINE_KERNEL_FIELDS.items()}
    if params.quantize == "fp8_per_token":
        names["quantize_fp8"] = "per-token"
    return Kernels(**{op: BoundKernel(KERNELS.get(f"{op}/{name}"), poison) for op, name in names.items()})
