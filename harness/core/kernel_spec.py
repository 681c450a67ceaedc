"""What a kernel declares about itself, and how its code is found. No torch, so that `list` is instant."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

EmptyRows = Literal["undefined", "identity", "nan"]
EmptyLse = Literal["-inf", "+inf", "undefined"]
Fp8Products = Literal["float32", "bf16", "fp8"]
Bf16Step = Literal["partials", "sums"]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One implementation of one op, with the promises on which kernels legitimately differ.

    `kv` lists the cache types it reads. `empty_rows` says what it leaves in output rows of empty requests:
    `identity` is output 0, `undefined` promises nothing. `empty_lse` is its log-sum-exp for such rows.
    `needs_finite_tail` is declared by kernels that mask unused KV slots by multiplying: they stay right only while
    whoever owns the cache keeps those slots finite. `needs_valid_table` is declared by
    kernels that look up table entries of empty requests: there an entry may be wrong, but must be a block. `windowed`
    says that an `mla_decode` takes `window`, so that sliding-window layers can run on it; `live_only` that a
    `route_experts` takes `num_live`, and leaves rows past it unwritten. `chunked` says of an `mla_decode` and of its
    planner that they can count pieces of work in chunks of pages, for which the planner takes `kv_itemsize`; `counted`
    that an `mla_decode` takes `workspace`, words that are zero on entry and on return.
    `fp8_products` says what an e4m3 cache is multiplied in, and so how far from the reference a right kernel may be:
    `float32` on the dequantized cache, `bf16` on the dequantized cache rounded once more, `fp8` on e4m3 alone, so that
    query and probabilities are rounded to it as well. `bf16_steps` says what else is rounded to bfloat16 on the way:
    `partials` of split requests before they are merged, `sums` of probabilities, each rounded before it is added, which
    the log-sum-exp inherits. `cuda_twin` is the kernel of the same op that the engine runs in
    its place on CUDA: one that reads no device value on the host, as a captured graph cannot. `requires` is
    "module:function" of a check with more to say than `devices`: device -> why not, or None.
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
        reason: str | None = _attribute(self.requires)(device) if self.requires else None
        return reason

    def load(self) -> Callable[..., Any]:
        """The kernel function; imports its module on first use."""
        if not isinstance(self.impl, str):
            return self.impl
        return _attribute(self.impl)


def _attribute(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
