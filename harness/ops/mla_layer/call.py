"""A call of `mla_layer`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.mla_layer import inputs, reference
from harness.ops.mla_layer.params import MlaLayerParams
from harness.ops.parts.call import KernelCall, Setting, prepared
from harness.ops.parts.judged import Rows


def prepare(params: MlaLayerParams, setting: Setting) -> KernelCall:
    given, kept = prepared(inputs.draw(params, setting.seed), setting)

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """out [B, S, U] float32, beside the reference, a row for each token."""
        want = reference.expected(kept)
        is_live = torch.arange(want.shape[1]) < kept.seq_lens[:, None]
        out = outputs[0].flatten(0, 1)
        return [Rows("out", out, is_live.flatten(), want.flatten(0, 1), "mla_layer", "token")]

    dims = {"B": given.hidden.shape[0], "S": given.hidden.shape[1], "U": given.hidden.shape[2]}
    return KernelCall.of("mla_layer", given, kept, dims, (torch.float32,), observe)
