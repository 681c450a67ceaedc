"""Whether a decode gets a plan of its planner."""

from __future__ import annotations

from harness.core.catalog import planner_of
from harness.core.kernels import KernelSpec
from harness.ops.mla_decode.params import MlaDecodeParams


def has_plan(spec: KernelSpec, params: MlaDecodeParams) -> bool:
    """Whether a decode kernel is given a plan of its planner."""
    return params.planned and planner_of(spec) is not None
