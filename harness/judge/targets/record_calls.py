"""The calls of `write_records` and `read_records`: bytes of a writer are decoded, and rows of a reader judged, by the
reference of the format."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.op_params import ReadRecordsParams, WriteRecordsParams
from harness.core.ops import PAGE_SIZE
from harness.judge.oracles.compare import SLACK_OF_ELEMENT
from harness.judge.run_records import Observed
from harness.judge.targets.kernel_call import Guarded, KernelCall, Setting, prepared
from harness.kernels.ops import record_inputs
from harness.kernels.ops.inputs import NULL_BLOCK
from harness.kernels.ops.record_formats import RECORDS, decode, places, rounding, stored


def write_records(params: WriteRecordsParams, setting: Setting) -> KernelCall:
    """A call that stores rows. No byte of another record, layer or block may change."""
    given, kept = prepared(record_inputs.write_records(params, setting.seed), setting)
    is_live, form = kept.slot_mapping >= 0, RECORDS[params.kv]
    slots = kept.slot_mapping[is_live]
    its_own = torch.zeros(kept.storage.flatten(2).shape, dtype=torch.bool)
    its_own[(slots // PAGE_SIZE)[:, None], -1, places(params.kv, PAGE_SIZE)[slots % PAGE_SIZE]] = True
    its_own[NULL_BLOCK] = True

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """The cache [blocks, page, bytes] of the call, decoded at its slots; there are no outputs."""
        rows = decode(stored(given.cache.cpu(), slots, params.kv), params.kv, kept.scale)
        want, live = kept.x[: len(is_live)][is_live].double(), torch.ones(len(slots), dtype=torch.bool)
        slack = rounding(want, params.kv, kept.scale)
        bound, exact = f"write_records.{params.kv.partition('_')[0]}", form.quantized
        halves = (("quantized", slice(0, exact), bound), ("exact", slice(exact, None), "write_records.exact"))
        return [
            Observed(
                f"{name} part of the records",
                rows[:, part],
                live,
                want[:, part],
                bound,
                "token",
                slack=None if slack is None else slack / SLACK_OF_ELEMENT,
            )
            for name, part, bound in halves
            if rows[:, part].shape[1]
        ]

    def rest(storage: Tensor) -> Tensor:
        return storage.cpu().flatten(2).masked_fill(its_own, 0).flatten(1)

    call = KernelCall.of("write_records", given, kept, {}, (), observe)
    call.guarded += [
        Guarded("cache null block", "kv.null", kept.storage[NULL_BLOCK], lambda: given.storage[NULL_BLOCK]),
        Guarded("records of others", "kv.free", rest(kept.storage), lambda: rest(given.storage), "block {}".format),
    ]
    return call


def read_records(params: ReadRecordsParams, setting: Setting) -> KernelCall:
    """A call that gathers the records of requests. Every row is judged."""
    given, kept = prepared(record_inputs.read_records(params, setting.seed), setting)
    num_tokens = sum(params.seq_lens)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """out [T, W] float32, beside the decoded records."""
        want = decode(stored(kept.cache, kept.slots(), params.kv), params.kv, kept.scale)
        bound = "read_records" + (".in_bf16" if setting.spec.fp8_products == "bf16" else "")
        return [Observed("out", outputs[0], torch.ones(num_tokens, dtype=torch.bool), want, bound, "token")]

    dims = {"T": num_tokens, "W": RECORDS[params.kv].width}
    return KernelCall.of("read_records", given, kept, dims, (torch.float32,), observe)
