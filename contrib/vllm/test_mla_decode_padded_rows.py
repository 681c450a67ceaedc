# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Rows of padded requests in the Triton MLA decode.

A batch that is padded to a CUDA graph has requests without a key. Stage 2 divides
their accumulator by an exponent sum of 0. The NaN then reaches every request of the
batch through the first scale that is taken over all rows: per-tensor FP8 of the
output (https://github.com/vllm-project/vllm/issues/57017).

Run `pytest tests/kernels/attention/test_mla_decode_padded_rows.py`.
"""

import pytest
import torch

from vllm import _custom_ops as ops
from vllm.platforms import current_platform
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

DEVICE_TYPE = current_platform.device_type
KV_LORA_RANK, HEAD_SIZE, PAGE_SIZE = 512, 576, 64
SM_SCALE = 192**-0.5
# The last two are what a graph of 4 gets for 3 requests and for none.
SEQ_LENS = [(0, 70), (513, 0, 1, 0), (70, 130, 65, 0), (0, 0, 0, 0)]


def make_batch(seq_lens: tuple[int, ...], num_heads: int):
    """Queries, pages in any order and their table. Pages of nobody are NaN."""
    torch.manual_seed(0)
    lens = torch.tensor(seq_lens, dtype=torch.int32)
    columns = max(1, (max(seq_lens) + PAGE_SIZE - 1) // PAGE_SIZE)
    table = torch.randperm(len(lens) * columns).int().view(len(lens), columns) + 1
    cache = torch.randn(table.numel() + 1, PAGE_SIZE, 1, HEAD_SIZE)
    cache[0] = float("nan")
    q = torch.randn(len(lens), num_heads, HEAD_SIZE)
    dtype = torch.bfloat16
    batch = q.to(dtype), cache.to(dtype), table, lens
    return tuple(tensor.to(DEVICE_TYPE) for tensor in batch)


def decode(q, cache, table, lens, num_kv_splits=4):
    """As TritonMLAImpl calls it, into a zeroed output."""
    o = torch.zeros(*q.shape[:2], KV_LORA_RANK, dtype=q.dtype, device=q.device)
    lse = torch.zeros(*q.shape[:2], dtype=torch.float32, device=q.device)
    attn_logits = torch.full(
        (*q.shape[:2], num_kv_splits, KV_LORA_RANK + 1), float("nan"), device=q.device
    )
    one = torch.ones((), device=q.device)
    decode_attention_fwd(
        q=q,
        k_buffer=cache,
        v_buffer=cache[..., :KV_LORA_RANK],
        o=o,
        lse=lse,
        req_to_token=table,
        b_seq_len=lens,
        attn_logits=attn_logits,
        num_kv_splits=num_kv_splits,
        sm_scale=SM_SCALE,
        page_size=PAGE_SIZE,
        k_scale=one,
        v_scale=one,
        is_mla=True,
    )
    return o, lse


def reference(q, cache, table, lens):
    out = torch.zeros(*q.shape[:2], KV_LORA_RANK, device=q.device)
    for i, length in enumerate(lens.tolist()):
        keys = cache[table[i].long()].flatten(0, 2)[:length].float()
        weights = (q[i].float() @ keys.T * SM_SCALE).softmax(-1)
        out[i] = weights @ keys[:, :KV_LORA_RANK]
    return out


@pytest.mark.parametrize("num_heads", [16, 128])
@pytest.mark.parametrize("seq_lens", SEQ_LENS)
def test_padded_rows_are_finite(seq_lens, num_heads):
    batch = make_batch(seq_lens, num_heads)
    o, _ = decode(*batch)
    empty = batch[3] == 0
    assert torch.isfinite(o[empty]).all(), "rows without a key: 0 / 0"
    torch.testing.assert_close(o.float(), reference(*batch), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("seq_lens", SEQ_LENS[:3])
def test_live_rows_do_not_depend_on_padding(seq_lens):
    q, cache, table, lens = make_batch(seq_lens, 16)
    o, lse = decode(q, cache, table, lens)
    live = lens > 0
    o_alone, lse_alone = decode(q[live], cache, table[live], lens[live])
    assert torch.equal(o[live], o_alone)
    assert torch.equal(lse[live], lse_alone)


@pytest.mark.parametrize("seq_lens", SEQ_LENS[:3])
def test_fp8_scale_of_a_padded_batch(seq_lens):
    batch = make_batch(seq_lens, 16)
    o, _ = decode(*batch)
    quantized, scale = ops.scaled_fp8_quant(o.flatten(1))
    assert torch.isfinite(scale).all(), "a padded row is part of the scale of all rows"
    restored = (quantized.float() * scale).view(o.shape)
    live = batch[3] > 0
    # Half a step of e4m3, and the step of its smallest numbers.
    atol = float(scale) * 2**-9
    torch.testing.assert_close(
        restored[live], o[live].float(), rtol=2**-4, atol=atol
    )
