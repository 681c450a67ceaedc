"""A call of `write_records`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.parts.call import Guarded, KernelCall, Setting, prepared
from harness.ops.parts.inputs import NULL_BLOCK
from harness.ops.parts.judged import SLACK_OF_ELEMENT, Rows
from harness.ops.parts.record_formats import RECORDS, decode, places, rounding, stored
from harness.ops.write_records import inputs
from harness.ops.write_records.params import WriteRecordsParams


def prepare(params: WriteRecordsParams, setting: Setting) -> KernelCall:
    """A call that stores rows. No byte of another record, layer or block may change."""
    given, kept = prepared(inputs.draw(params, setting.seed), setting)
    is_live = kept.slot_mapping >= 0
    form = RECORDS[params.kv]
    slots = kept.slot_mapping[is_live]
    its_own = torch.zeros(kept.storage.flatten(2).shape, dtype=torch.bool)
    its_own[(slots // PAGE_SIZE)[:, None], -1, places(params.kv, PAGE_SIZE)[slots % PAGE_SIZE]] = (
        True
    )
    its_own[NULL_BLOCK] = True

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """The cache [blocks, page, bytes] of the call, decoded at its slots; there are no
        outputs.
        """
        rows = decode(stored(given.cache.cpu(), slots, params.kv), params.kv, kept.scale)
        want = kept.x[: len(is_live)][is_live].double()
        live = torch.ones(len(slots), dtype=torch.bool)
        slack = rounding(want, params.kv, kept.scale)
        bound = f"write_records.{params.kv.partition('_')[0]}"
        exact = form.quantized
        halves = (
            ("quantized", slice(0, exact), bound),
            ("exact", slice(exact, None), "write_records.exact"),
        )
        return [
            Rows(
                f"{name} part of the records",
                rows[:, part],
                live,
                want[:, part],
                bound,
                "token",
                # `rounding` is the most that a record can be off. The judge multiplies a slack by
                # this factor.
                slack=None if slack is None else slack / SLACK_OF_ELEMENT,
            )
            for name, part, bound in halves
            if rows[:, part].shape[1]
        ]

    def rest(storage: Tensor) -> Tensor:
        return storage.cpu().flatten(2).masked_fill(its_own, 0).flatten(1)

    call = KernelCall.of("write_records", given, kept, {}, (), observe)
    call.guarded += [
        Guarded(
            "cache null block",
            "kv.null",
            kept.storage[NULL_BLOCK],
            lambda: given.storage[NULL_BLOCK],
        ),
        Guarded(
            "records of others",
            "kv.free",
            rest(kept.storage),
            lambda: rest(given.storage),
            "block {}".format,
        ),
    ]
    return call
