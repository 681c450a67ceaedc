"""A call of `write_kv`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.parts import inputs as op_inputs
from harness.ops.parts.call import Guarded, KernelCall, Setting, prepared
from harness.ops.parts.judged import Rows
from harness.ops.write_kv import inputs, reference
from harness.ops.write_kv.params import WriteKvParams


def prepare(params: WriteKvParams, setting: Setting) -> KernelCall:
    given, kept = prepared(inputs.draw(params, setting.seed), setting)
    is_live = kept.slot_mapping >= 0
    slots = kept.slot_mapping[is_live]
    others = torch.ones(given.kv_cache.shape[0] * PAGE_SIZE, dtype=torch.bool, device=slots.device)
    others[slots] = False
    # The null block has a guard of its own below, with its own site.
    others[:PAGE_SIZE] = False

    def slots_of(cache: Tensor, which: Tensor) -> Tensor:
        """The rows of a cache [blocks, page, width] at the slots `which`, as [slots, width] of its
        dtype.
        """
        return cache.cpu().reshape(others.shape[0], -1)[which]

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """The cache [blocks, page, R + rope] of the call, in the slots that it must write; there
        are no outputs.
        """
        want = reference.expected(kept.kv_c, kept.k_pe, given.kv_cache.dtype, kept.kv_scale)
        live = torch.ones(slots.shape[0], dtype=torch.bool, device=slots.device)
        stored = slots_of(given.kv_cache, slots)
        want = want[: len(is_live)][is_live]
        return [Rows("kv_cache", stored, live, want, f"write_kv.{params.kv}", "token")]

    null = slice(op_inputs.NULL_BLOCK, op_inputs.NULL_BLOCK + 1)
    before = slots_of(kept.kv_cache, others)
    numbers = others.nonzero().flatten().tolist()

    def slot_name(row: int) -> str:
        return f"slot {numbers[row] % PAGE_SIZE} of page {numbers[row] // PAGE_SIZE}"

    call = KernelCall.of("write_kv", given, kept, {}, (), observe)
    call.guarded += [
        Guarded(
            "kv_cache null block", "kv.null", kept.kv_cache[null], lambda: given.kv_cache[null]
        ),
        Guarded(
            "kv_cache slots of others",
            "kv.free",
            before,
            lambda: slots_of(given.kv_cache, others),
            slot_name,
        ),
    ]
    return call
