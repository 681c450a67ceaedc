"""The float64 references look at live memory only, and repair nothing."""

from __future__ import annotations

import math

import pytest
import torch

from harness.core.ops import latent_rank
from harness.ops.merge_attn_states import reference as merge_attn_states_reference
from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.mla_decode import reference as mla_decode_reference
from harness.ops.mla_decode.inputs import MlaDecodeInputs
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.parts import attention as reference
from harness.ops.quantize_fp8 import inputs as quantize_fp8_inputs
from harness.ops.quantize_fp8 import reference as quantize_fp8_reference
from harness.ops.quantize_fp8.params import QuantizeFp8Params
from harness.ops.route_experts import reference as route_experts_reference

SMALL = MlaDecodeParams(
    kv="fp32", seq_lens=(70, 0, 5), query_len=2, num_heads=3, kv_lora_rank=32, qk_rope_head_dim=16
)


def decode(given: MlaDecodeInputs) -> reference.WantedAttention:
    return mla_decode_reference.expected(
        given.q,
        given.kv_cache,
        given.block_table,
        given.seq_lens,
        scale=given.scale,
        kv_scale=given.kv_scale,
    )


@pytest.mark.parametrize(("rank", "rope"), [(512, 64), (32, 16), (64, 64), (64, 16), (512, 16)])
def test_the_rank_is_found_from_the_width_of_a_latent(rank: int, rope: int) -> None:
    assert latent_rank(rank + rope) == rank


@pytest.mark.parametrize("kv", ["fp32", "bf16", "fp8_e4m3"])
def test_decode_reference_ignores_every_byte_that_nobody_owns(kv: str) -> None:
    params = SMALL.model_copy(update={"kv": kv})
    clean = decode(mla_decode_inputs.draw(params, seed=1))
    dirty = mla_decode_inputs.draw(params, seed=1)
    for part in dirty.unowned:
        part.memory.view(torch.uint8).fill_(0xFF)
    poisoned = decode(dirty)
    assert torch.equal(clean.defined, poisoned.defined)
    assert torch.equal(clean.out[clean.defined], poisoned.out[clean.defined])
    assert bool(clean.out[clean.defined].isfinite().all())


def test_decode_reference_keeps_a_nan_of_live_memory() -> None:
    given = mla_decode_inputs.draw(SMALL, seed=1)
    given.kv_cache[int(given.block_table[0, 1]), 3, 0] = math.nan
    assert bool(decode(given).out[:2].isnan().any())
    assert not bool(decode(given).out[4:].isnan().any())


def test_decode_reference_agrees_with_attention_written_in_one_line() -> None:
    given = mla_decode_inputs.draw(SMALL, seed=2)
    keys = reference.gather_latents(given.kv_cache, given.block_table[2], 5).double()
    weights = (given.q[2, 1].double() @ keys.T * given.scale).softmax(-1)
    assert torch.equal(decode(given).out[5], weights @ keys[:, :32])


def test_rows_without_keys_are_undefined_and_nan() -> None:
    result = decode(mla_decode_inputs.draw(SMALL, seed=1))
    assert result.defined.tolist() == [True, True, False, False, True, True]
    assert bool(result.out[2:4].isnan().all())
    assert bool(result.lse[2:4].isnan().all())


def test_a_query_token_before_the_first_key_is_undefined() -> None:
    given = mla_decode_inputs.draw(SMALL.model_copy(update={"seq_lens": (1,)}), seed=1)
    assert decode(given).defined.tolist() == [False, True]


def test_merge_reference_reads_no_empty_side() -> None:
    out = torch.full((1, 1, 2), math.nan)
    empty = torch.full((1, 1), math.inf)
    suffix, suffix_lse = torch.ones(1, 1, 2), torch.zeros(1, 1)
    merged = merge_attn_states_reference.expected(out, empty, suffix, suffix_lse)
    assert torch.equal(merged.out, suffix.double())
    assert torch.equal(merged.lse, suffix_lse.double())
    both = merge_attn_states_reference.expected(out, empty, out, -empty)
    assert torch.equal(both.out, torch.zeros(1, 1, 2, dtype=torch.float64))
    assert both.lse.item() == -math.inf


def test_merge_reference_equals_attention_over_both_halves() -> None:
    scores, values = torch.randn(9, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    halves = [
        (
            (scores[part].softmax(0) @ values[part])[None, None],
            scores[part].logsumexp(0)[None, None],
        )
        for part in (slice(4), slice(4, 9))
    ]
    merged = merge_attn_states_reference.expected(*halves[0], *halves[1])
    assert float((merged.out[0, 0] - scores.softmax(0) @ values).abs().max()) < 1e-14
    assert abs(float(merged.lse[0, 0] - scores.logsumexp(0))) < 1e-14


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_quantize_reference_ignores_padded_rows(blocks: int) -> None:
    given = quantize_fp8_inputs.draw(QuantizeFp8Params(), seed=3)
    clean = quantize_fp8_reference.expected(given.x, given.num_live, blocks=blocks)
    assert clean.scale.shape == ((len(given.x), blocks) if blocks else (1,))
    given.x[given.num_live :] = math.nan
    dirty = quantize_fp8_reference.expected(given.x, given.num_live, blocks=blocks)
    live = clean.live
    assert torch.equal(clean.scaled[live], dirty.scaled[live])
    assert bool(clean.scaled[~live].isnan().all())
    assert float(clean.scaled[live].abs().max()) == pytest.approx(448.0)


def test_routed_weights_sum_to_one_and_ids_ascend() -> None:
    routed = route_experts_reference.expected(torch.randn(5, 8), 3)
    assert bool((routed.ids[:, 1:] > routed.ids[:, :-1]).all())
    assert float((routed.weights.sum(1) - 1).abs().max()) < 1e-12
