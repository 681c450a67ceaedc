"""One call of `quantize_blocks`: its poisoned inputs, and what there is to judge afterwards."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.params import QuantizeBlocksParams
from harness.judge.run_records import Observed
from harness.judge.targets.kernel_call import KernelCall, Setting, guards, prepared, shapes_of
from harness.kernels.ops import block_inputs, block_reference
from harness.kernels.ops.block_formats import FORMATS, decoded_scales, decoded_values, num_scale_rows


def quantize_blocks(params: QuantizeBlocksParams, setting: Setting) -> KernelCall:
    """The call that `params` and the seed stand for. Codes are judged as the numbers that they stand for."""
    raw = block_inputs.quantize_blocks(params, setting.seed)
    given, kept = prepared(raw, raw.unowned, setting)
    form = FORMATS[params.block_format]
    dims = {
        "T": len(given.x),
        "C": params.width // form.codes_per_byte,
        "S": num_scale_rows(list(params.expert_rows)),
        "G": params.width // form.block,
    }

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = block_reference.quantize_blocks(kept.x, kept.expert_offsets, block_format=params.block_format)
        values, scales = decoded_values(outputs[0], form), decoded_scales(outputs[1], form)
        # Rows of padding are promised as well: code 0.
        every = torch.ones(len(scales), dtype=torch.bool)
        return [
            Observed("values", values, want.live, want.values, "quantize_blocks", "row"),
            Observed("scales", scales, every, want.scales, "quantize_blocks", "scale row"),
        ]

    return KernelCall(
        args=(given.x, given.expert_offsets),
        kwargs={"block_format": params.block_format},
        shapes=shapes_of("quantize_blocks", dims),
        dtypes=(torch.uint8, torch.uint8),
        guarded=guards(given, kept, ("x", "expert_offsets")),
        observe=observe,
    )
