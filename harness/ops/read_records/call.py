"""A call of `read_records`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.call import KernelCall, Setting, prepared
from harness.ops.parts.judged import Rows
from harness.ops.parts.record_formats import RECORDS, decode, stored
from harness.ops.read_records import inputs
from harness.ops.read_records.params import ReadRecordsParams


def prepare(params: ReadRecordsParams, setting: Setting) -> KernelCall:
    """A call that gathers the records of requests. Every row is judged."""
    given, kept = prepared(inputs.draw(params, setting.seed), setting)
    num_tokens = sum(params.seq_lens)

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """out [T, W] float32, beside the decoded records."""
        want = decode(stored(kept.cache, kept.slots(), params.kv), params.kv, kept.scale)
        bound = "read_records" + (".in_bf16" if setting.spec.fp8_products == "bf16" else "")
        return [
            Rows("out", outputs[0], torch.ones(num_tokens, dtype=torch.bool), want, bound, "token")
        ]

    dims = {"T": num_tokens, "W": RECORDS[params.kv].width}
    return KernelCall.of("read_records", given, kept, dims, (torch.float32,), observe)
