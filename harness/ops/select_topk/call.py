"""A call of `select_topk`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.buffers import give_buffer
from harness.ops.parts.call import KernelCall, Setting, prepared
from harness.ops.parts.judged import Rows
from harness.ops.select_topk import inputs
from harness.ops.select_topk.params import SelectTopkParams
from harness.ops.select_topk.reference import right_choice


def prepare(params: SelectTopkParams, setting: Setting) -> KernelCall:
    """A call that chooses. Rows of the buffer behind the output must not change."""
    given, kept = prepared(inputs.draw(params, setting.seed), setting)
    rows = len(kept.logits)
    num_requests = len(params.seq_lens)
    every = torch.ones(rows, dtype=torch.bool)

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """indices [T, K] int32 in falling order, beside a right choice, which is itself one if it
        can be.
        """
        found = outputs[0].sort(dim=1, descending=True).values
        want = right_choice(kept.logits, kept.seq_lens, outputs[0])
        if not setting.spec.keeps_ties:
            # Another right choice is no other result.
            right = (found == want).all(dim=1, keepdim=True)
            # -2 is never right, so the reference makes the choice itself.
            want = right_choice(kept.logits, kept.seq_lens, torch.full_like(outputs[0], -2))
            found = torch.where(right, want.to(found.dtype), found)
        return [Rows("indices", found, every, want, "", "query token", "sparse.topk")]

    def same(output: Tensor) -> Tensor:
        """[B, S * K]: the set of each row, or the logits of it, if the kernel may choose among
        equal ones.
        """
        if setting.spec.keeps_ties:
            return output.sort(dim=1).values.view(num_requests, -1)
        # A wrong index is found beside the reference. Here it must only not raise.
        columns = output.long().clamp(0, given.logits.shape[1] - 1)
        values = given.logits.gather(1, columns).masked_fill(output < 0, -torch.inf)
        # A zero of either sign is as large as the other.
        return (values + 0.0).sort(dim=1).values.view(num_requests, -1)

    call = KernelCall.of(
        "select_topk", given, kept, {"T": rows, "K": params.topk}, (torch.int32,), observe
    )
    if given.logits.is_contiguous():
        call.by_request = [given.logits.view(num_requests, params.query_len, -1), given.seq_lens]
    else:
        # Rows that lie apart have no view by request, so a graph sees the lengths in another order
        # alone.
        call.by_request = [given.seq_lens]
    call.same = same
    give_buffer(call, setting, given.buffer, kept.buffer, rows)
    return call
