"""A kernel that is made for DeepSeek's sizes and does not say so: one message with what to
declare.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.core.errors import KernelError
from harness.core.kernels import KernelSpec
from harness.core.shapes import ANY
from harness.kernels.call import BoundKernel
from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.write_kv import inputs as write_kv_inputs
from harness.ops.write_kv.params import WriteKvParams
from tests.transcripts import Approved


def made_for_576(q: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if q.shape[-1] != 576:
        raise RuntimeError(f"expanded size 512 must match {q.shape[-1]}\n in a second line")
    return q[..., :512], q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)


def never_right(q: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    raise RuntimeError("no such device")


def message(function: Any, **more: Any) -> str:
    spec = KernelSpec("mla_decode", "mine", "", function, **more)
    given = mla_decode_inputs.draw(
        MlaDecodeParams(kv_lora_rank=32, qk_rope_head_dim=16, num_heads=4), seed=0
    )
    with pytest.raises(KernelError) as raised:
        BoundKernel(spec, None)(
            given.q, given.kv_cache, given.block_table, given.seq_lens, scale=1.0
        )
    return str(raised.value)


def test_a_kernel_that_runs_at_512_and_64_only_is_asked_to_declare_it(approved: Approved) -> None:
    approved(message(made_for_576))


def test_a_kernel_that_fails_at_one_head_is_asked_to_declare_its_heads(approved: Approved) -> None:
    def made_for_16_heads(
        q: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert q.shape[2] == 16
        return made_for_576(q)

    approved(message(made_for_16_heads))


def test_a_kernel_that_raises_everywhere_or_declares_its_shapes_keeps_its_own_message(
    approved: Approved,
) -> None:
    approved(message(never_right))
    approved(message(made_for_576, shapes=ANY))


def test_a_writer_is_asked_too(approved: Approved) -> None:
    def write(kv_c: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        assert kv_c.shape[1] == 512

    given = write_kv_inputs.draw(WriteKvParams(kv_lora_rank=64, qk_rope_head_dim=16), seed=0)
    spec = KernelSpec("write_kv", "mine", "", write)
    with approved.raises(KernelError):
        BoundKernel(spec, None)(
            given.kv_c, given.k_pe, given.kv_cache, given.slot_mapping, kv_scale=None
        )
