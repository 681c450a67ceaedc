"""A call of `index_logits`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.index_logits import inputs, reference
from harness.ops.index_logits.params import IndexLogitsParams
from harness.ops.parts.buffers import with_trap
from harness.ops.parts.call import KernelCall, Setting, prepared
from harness.ops.parts.judged import Rows


def prepare(params: IndexLogitsParams, setting: Setting) -> KernelCall:
    """A call that scores keys. Columns past a row's last key are not judged."""
    raw = inputs.draw(params, setting.seed)
    given, kept = prepared(raw, with_trap(setting, raw.trap_block))
    want, defined = reference.expected(kept)
    rows = defined.any(dim=1)
    # Tensor cores of Hopper add products of e4m3 in about 14 bits (DeepSeek-V3, section 3.3.2), so
    # kernels that multiply in fp8 have a bound of their own.
    bound = f"index_logits.{params.kv}" + (".in_fp8" if setting.spec.fp8_products == "fp8" else "")

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """logits [T, L] float32 beside the reference, undefined columns as 0 in both."""
        logits = outputs[0].masked_fill(~defined, 0.0)
        return [Rows("logits", logits, rows, want, bound, "query token")]

    dims = {"T": len(want), "L": want.shape[1]}
    return KernelCall.of("index_logits", given, kept, dims, (torch.float32,), observe)
