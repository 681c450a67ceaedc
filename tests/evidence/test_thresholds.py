from __future__ import annotations

import dataclasses

import pytest
import torch

from harness.core.errors import UnknownNameError
from harness.evidence.compare import compare
from harness.evidence.thresholds import BOUNDS, bound
from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.mla_decode import reference as mla_decode_reference
from harness.ops.mla_decode.inputs import MlaDecodeInputs
from harness.ops.mla_decode.params import MlaDecodeParams

KV = ("fp32", "bf16", "fp8_e4m3")
DECODES = ("mla_decode", "mla_decode_sparse")
NEEDED = [
    *(f"mla_decode.{output}.{kv}" for output in ("out", "lse") for kv in KV),
    *(
        f"{op}.{output}.fp8_e4m3.in_{products}"
        for op in DECODES
        for output in ("out", "lse")
        for products in ("bf16", "fp8")
    ),
    *(f"{op}.{name}" for op in DECODES for name in ("out.bf16.partials", "lse.bf16.sums")),
    *(
        f"{op}.{output}"
        for op in ("context_attention", "merge_attn_states")
        for output in ("out", "lse")
    ),
    *(f"write_kv.{kv}" for kv in KV),
    "quantize_fp8",
    "quantize_fp8.scale",
    "route_experts.weights",
    *(f"engine.logits.{kv}{activations}" for kv in KV for activations in ("", ".fp8act")),
]


@pytest.mark.parametrize("name", NEEDED)
def test_every_output_has_a_bound(name):
    assert bound(name).name == name


@pytest.mark.parametrize("entry", BOUNDS, ids=lambda entry: entry.name)
def test_every_bound_says_why_and_stays_far_below_what_zeros_give(entry):
    assert len(entry.summary) > 15
    assert 0 <= entry.relative_l2 <= 0.25
    assert 0 <= entry.floor <= 0.6
    assert entry.ulps * torch.finfo(entry.dtype).eps < 0.2


def test_an_unknown_bound_is_refused_with_the_nearest_name(approved):
    with approved.raises(UnknownNameError):
        bound("mla_decode.out.bf61")


def e4m3(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def decode_in(
    products: str, given: MlaDecodeInputs, keep: slice = slice(None)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode over an e4m3 cache, one query token a request, with the roundings of a kernel that
    multiplies so.
    """
    assert given.kv_scale is not None
    q, unit = given.q.float(), 1.0
    if products == "fp8":
        unit = float(q.abs().amax()) / 448
        q = e4m3(q / unit)
    outs, lses = [], []
    for b, length in enumerate(given.seq_lens.tolist()):
        pages = given.block_table[b, : -(-length // 64)].long()
        rows = (
            given.kv_cache.view(torch.uint8)[pages]
            .view(torch.float8_e4m3fn)
            .flatten(0, 1)[:length][keep]
            .float()
        )
        k, after = (
            (rows, given.kv_scale)
            if products == "fp8"
            else ((rows * given.kv_scale).bfloat16().float(), 1.0)
        )
        scores = torch.einsum("shd,nd->shn", q[b], k) * given.scale * unit * after
        p = (scores - scores.amax(-1, keepdim=True)).exp()
        rounded = e4m3(p) if products == "fp8" else p.bfloat16().float()
        out = torch.einsum("shn,nd->shd", rounded, k[:, :512]) / p.sum(-1, keepdim=True) * after
        outs.append(out.bfloat16())
        lses.append(scores.logsumexp(-1))
    return torch.cat(outs), torch.cat(lses)


def judged(products: str, seed: int, keep: slice = slice(None)) -> tuple[bool, bool]:
    """Whether out and lse stay within the bounds of such a kernel."""
    given = mla_decode_inputs.draw(MlaDecodeParams(kv="fp8_e4m3"), seed)
    want = mla_decode_reference.expected(
        given.q,
        given.kv_cache,
        given.block_table,
        given.seq_lens,
        scale=given.scale,
        kv_scale=given.kv_scale,
    )
    live = torch.ones(len(want.out), dtype=torch.bool)
    found = [
        compare(got, expected, live, bound(f"mla_decode.{output}.fp8_e4m3.in_{products}")).mismatch
        is None
        for output, got, expected in zip(
            ("out", "lse"), decode_in(products, given, keep), want, strict=False
        )
    ]
    return found[0], found[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("products", ["bf16", "fp8"])
def test_a_kernel_that_rounds_as_its_bound_says_is_within_it(products, seed):
    assert judged(products, seed) == (True, True)


@pytest.mark.parametrize("products", ["bf16", "fp8"])
def test_a_lost_page_is_beyond_the_bounds_of_an_fp8_cache(products):
    assert judged(products, 0, keep=slice(0, 64))[0] is False


def test_an_fp8_query_is_beyond_the_bound_of_a_bfloat16_one():
    given = mla_decode_inputs.draw(MlaDecodeParams(kv="fp8_e4m3"), 0)
    want = mla_decode_reference.expected(
        given.q,
        given.kv_cache,
        given.block_table,
        given.seq_lens,
        scale=given.scale,
        kv_scale=given.kv_scale,
    )
    out = decode_in("fp8", given)[0]
    live = torch.ones(len(out), dtype=torch.bool)
    assert (
        compare(out, want.out, live, bound("mla_decode.out.fp8_e4m3.in_bf16")).mismatch is not None
    )


def decode_split(given: MlaDecodeInputs, piece: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode over a bf16 cache in pieces of keys: probabilities are added, and partial outputs
    kept, in bfloat16.
    """
    outs, lses = [], []
    for b, length in enumerate(given.seq_lens.tolist()):
        pages = given.block_table[b, : -(-length // 64)].long()
        rows = given.kv_cache[pages].flatten(0, 1)[:length].float()
        partial_outs, partial_lses = [], []
        for keys in rows.split(piece):
            scores = torch.einsum("shd,nd->shn", given.q[b].float(), keys) * given.scale
            most = scores.amax(-1, keepdim=True)
            p = (scores - most).exp().bfloat16().float()
            partial_lses.append(p.sum(-1).log() + most[..., 0])
            partial_outs.append(
                (torch.einsum("shn,nd->shd", p, keys[:, :512]) / p.sum(-1, keepdim=True)).bfloat16()
            )
        lse = torch.stack(partial_lses).logsumexp(0)
        weights = (torch.stack(partial_lses) - lse).exp()[..., None]
        outs.append((torch.stack(partial_outs).float() * weights).sum(0).bfloat16())
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


@pytest.mark.parametrize("seed", range(4))
def test_a_kernel_that_splits_and_sums_in_bfloat16_is_within_its_own_bounds_and_beyond_the_stricter_ones(  # noqa: E501
    seed,
):
    given = mla_decode_inputs.draw(MlaDecodeParams(kv="bf16"), seed)
    want = mla_decode_reference.expected(
        given.q, given.kv_cache, given.block_table, given.seq_lens, scale=given.scale
    )
    out, lse = decode_split(given)
    live = torch.ones(len(out), dtype=torch.bool)
    assert compare(out, want.out, live, bound("mla_decode.out.bf16.partials")).mismatch is None
    assert compare(lse, want.lse, live, bound("mla_decode.lse.bf16.sums")).mismatch is None
    assert compare(lse, want.lse, live, bound("mla_decode.lse.bf16")).mismatch is not None


def test_a_lost_page_is_beyond_the_bounds_of_bfloat16_partials_and_sums():
    given = mla_decode_inputs.draw(MlaDecodeParams(kv="bf16"), 0)
    want = mla_decode_reference.expected(
        given.q, given.kv_cache, given.block_table, given.seq_lens, scale=given.scale
    )
    fewer = decode_split(dataclasses.replace(given, seq_lens=(given.seq_lens - 64).clamp(min=1)))
    live = torch.ones(len(want.out), dtype=torch.bool)
    assert (
        compare(fewer[0], want.out, live, bound("mla_decode.out.bf16.partials")).mismatch
        is not None
    )
    assert compare(fewer[1], want.lse, live, bound("mla_decode.lse.bf16.sums")).mismatch is not None


def test_rows_of_one_head_that_lie_on_few_keys_need_the_bound_of_products_in_fp8() -> None:
    generator = torch.Generator().manual_seed(0)

    def e4m3(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()

    q, k = (
        2 * torch.randn(4000, 576, generator=generator),
        e4m3(torch.randn(4000, 5, 576, generator=generator)),
    )
    unit = q.abs().amax(1, keepdim=True) / 448
    scores, rounded = ((k @ x[:, :, None])[..., 0] * 576**-0.5 for x in (q, e4m3(q / unit) * unit))
    weights = (rounded - rounded.amax(1, keepdim=True)).exp()
    out, right = (
        w[:, None] @ k[..., :512]
        for w in (e4m3(weights) / weights.sum(1, keepdim=True), scores.softmax(1))
    )
    errors = ((out - right).norm(dim=2) / right.norm(dim=2)).flatten()
    worst = float(errors.max())
    assert 0.1 < worst < 0.8 * bound("mla_decode.out.fp8_e4m3.in_fp8").relative_l2
