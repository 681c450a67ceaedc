"""Prefill by pieces: suffix, context chunks and merges give what one dense attention gives."""

from __future__ import annotations

import pytest
import torch

from harness.core.errors import IllegalAddress
from harness.engine.attention import (
    causal_attention,
    context_chunks,
    gather_context,
    store_live_rows,
    tokens_with_context,
)
from harness.engine.batch import PrefillRequest
from harness.evidence.compare import compare
from harness.evidence.thresholds import bound


def request(
    context_len: int, start: int = 0, end: int = 1, blocks: tuple[int, ...] = (1, 2, 3)
) -> PrefillRequest:
    return PrefillRequest(start, end, context_len, blocks, 0)


def test_chunks_cover_each_context_once_and_shorter_ones_end_earlier() -> None:
    chunks = context_chunks((request(130), request(50), request(0)), 80)
    assert chunks == [
        [range(0, 40), range(0, 40), range(0, 0)],
        [range(40, 80), range(40, 50), range(0, 0)],
        [range(80, 120), range(50, 50), range(0, 0)],
        [range(120, 130), range(50, 50), range(0, 0)],
    ]


@pytest.mark.parametrize(
    ("spans", "tokens"),
    [
        ([(3, 10, 43), (10, 12, 1), (12, 20, 0)], 9),
        ([(3, 10, 43)], 7),
        ([(3, 10, 0), (10, 12, 0)], 0),
    ],
    ids=["some", "all", "none"],
)
def test_tokens_with_context_are_those_of_as_many_prompts_from_the_first_as_have_any(
    spans: list[tuple[int, int, int]], tokens: int
) -> None:
    requests = tuple(PrefillRequest(start, end, context, (1,), 0) for start, end, context in spans)
    assert tokens_with_context(requests) == tokens


def test_without_context_there_are_no_chunks() -> None:
    assert context_chunks((request(0), request(0)), 80) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_chunk_is_gathered_through_the_block_table(dtype: torch.dtype) -> None:
    values = torch.arange(4 * 64 * 2, dtype=torch.float32).view(4, 64, 2) % 16
    cache = values.to(dtype)
    scale = 2.0 if dtype == torch.float8_e4m3fn else None
    chunk = [range(63, 65), range(0, 0), range(1, 2)]
    requests = (request(70, blocks=(2, 1)), request(0), request(5, blocks=(3,)))
    latents, starts = gather_context(cache, requests, chunk, scale)
    expected = torch.stack((values[2, 63], values[1, 0], values[3, 1])) * (scale or 1.0)
    assert torch.equal(latents, expected)
    assert starts.tolist() == [0, 2, 2, 3]


def test_a_page_outside_the_pool_is_an_illegal_address() -> None:
    with pytest.raises(IllegalAddress, match="block_table"):
        gather_context(torch.zeros(4, 64, 2), (request(5, blocks=(-1,)),), [range(5)], None)


def test_new_tokens_see_themselves_and_earlier_ones_of_their_request_only() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(5, 2, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 4)
    out, lse = causal_attention(q, k, v, [(0, 2), (2, 5)], 0.5)
    scores = torch.stack([q[4, h].double() @ k[2:5, h].double().T * 0.5 for h in range(2)])
    values = torch.stack([scores[h].softmax(-1) @ v[2:5, h].double() for h in range(2)])
    both = torch.ones(2, dtype=torch.bool)
    assert compare(out[4], values, both, bound("mla_decode.out.fp32")).mismatch is None
    assert (
        compare(
            lse[:, 4:5], scores.logsumexp(-1, keepdim=True), both, bound("mla_decode.lse.fp32")
        ).mismatch
        is None
    )
    assert torch.equal(out[2], v[2]) and torch.equal(out[0], v[0])


def test_a_nan_of_one_request_stays_in_it() -> None:
    q, k, v = torch.randn(4, 1, 8), torch.randn(4, 1, 8), torch.randn(4, 1, 4)
    v[3] = torch.nan
    out, _ = causal_attention(q, k, v, [(0, 2), (2, 4)], 0.5)
    assert bool(torch.isfinite(out[:2]).all()) and bool(out[3].isnan().all())


def test_a_persistent_output_keeps_rows_of_padding_zero() -> None:
    output = torch.zeros(3, 1, 2, 4)
    out = torch.full((3, 1, 2, 4), torch.nan)
    out[0] = 5.0
    stored = store_live_rows(out, torch.tensor([7, 0, 0]), output)
    assert stored is output
    assert bool((output[0] == 5.0).all()) and not output[1:].any()
