"""What a kernel declares about itself. No torch here, so that `list` is instant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.system_spec import attribute_at

EmptyRows = Literal["undefined", "identity", "nan"]
EmptyLse = Literal["-inf", "+inf", "undefined"]
Fp8Products = Literal["float32", "bf16", "fp8"]
Bf16Step = Literal["partials", "sums"]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One implementation of one op, with the promises on which kernels legitimately differ.

    - `kv`: the cache types that it reads.
    - `empty_rows`: its output for empty requests; `identity` is output 0, `undefined` promises nothing. `empty_lse`:
      its log-sum-exp for these rows.
    - `needs_finite_tail`: it masks unused KV slots by multiplying, so the owner of the cache must keep them finite.
    - `needs_valid_table`: it looks up table entries of empty requests, so each must be the number of a block.
    - `windowed`: this `mla_decode` has the argument `window`. `live_only`: this `route_experts` has `num_live`, and
      leaves rows past it unwritten. `counted`: this `mla_decode` has `workspace`, words that are zero on entry and on
      return. `chunked`: this `mla_decode` or its planner counts work in chunks of pages; the planner has `kv_itemsize`.
    - `fp8_products`: the type in which an e4m3 cache is multiplied; it decides the tolerance. `float32` and `bf16`
      convert the dequantized cache, `fp8` rounds query and probabilities to e4m3 as well.
    - `bf16_steps`: further values that are rounded to bfloat16: `partials` of split requests before they are merged,
      `sums` of probabilities, each rounded before it is added, so that the log-sum-exp inherits the error.
    - `cuda_twin`: the kernel of the same op that replaces it on CUDA. It reads no device value on the host, so a graph
      can capture it.
    - `requires`: "module:function" of a check, device -> reason why it cannot run, or None.
    """

    op: str
    short_name: str
    summary: str
    impl: str | Callable[..., Any]
    devices: tuple[str, ...] = ("cpu",)
    kv: tuple[str, ...] = ("fp32", "bf16", "fp8_e4m3")
    empty_rows: EmptyRows = "undefined"
    empty_lse: EmptyLse = "undefined"
    needs_finite_tail: bool = False
    needs_valid_table: bool = False
    windowed: bool = False
    chunked: bool = False
    counted: bool = False
    live_only: bool = False
    fp8_products: Fp8Products = "float32"
    bf16_steps: tuple[Bf16Step, ...] = ()
    cuda_twin: str = ""
    requires: str = ""
    origin: str = "built in"

    @property
    def name(self) -> str:
        """`op/short_name`, unique among all kernels."""
        return f"{self.op}/{self.short_name}"

    def why_not(self, device: str) -> str | None:
        """Why this kernel cannot run on `device` here, as one clause; None where it can. Loads no kernel code."""
        if device not in self.devices:
            return f"{self.name} runs on {', '.join(self.devices)}, not on {device}"
        reason: str | None = attribute_at(self.requires)(device) if self.requires else None
        return reason

    def load(self) -> Callable[..., Any]:
        """The kernel function; imports its module on first use."""
        found: Callable[..., Any] = attribute_at(self.impl) if isinstance(self.impl, str) else self.impl
        return found
