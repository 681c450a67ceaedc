"""Dense MLA decoding with an fp8 kv cache (the cases that #204 asks for).

Queries and keys are quantized per tensor, so the kernel and the reference start from the same
numbers. What is left is the rounding of the probabilities to e4m3; the tolerance of each element is
derived from it.

Run `python test_flash_mla_dense_decoding_fp8.py`. It needs `flash_mla_with_kvcache_fp8`, which the
FlashMLA inside vLLM has.
"""

import argparse
import dataclasses
import random
import sys
from typing import List, Optional, Tuple

import torch

try:
    from flash_mla import flash_mla_with_kvcache_fp8, get_mla_metadata_dense_fp8
except ImportError:
    from vllm.v1.attention.ops.flashmla import flash_mla_with_kvcache_fp8, get_mla_metadata_dense_fp8

E4M3_MAX = 448.0
UNUSED_ENTRY = 2147480000
# Hopper adds fp8 products in groups of 32 and cuts each to 2^-13 of the power of two of the
# largest, here 4: half of that is lost on average, always in one direction. 18 groups, over the
# root mean square of 576 products. Seen: 0.0029. For q and k of magnitude 1; it grows with both.
SCORE_OFF = 18 * 32 * 2**-14 * 4 / 24


@dataclasses.dataclass
class TestParam:
    b: int    # Batch size
    s_q: int  # Number of queries for one request
    s_k: int  # Seq len, or mean seq len if varlen == True
    h_q: int = 128    # Number of q heads
    is_varlen: bool = False
    is_causal: bool = True
    have_zero_seqlen_k: bool = False
    scale_q: float = 1.0       # Magnitude of q, so descale_q is not 1
    scale_k: float = 1.0       # Magnitude of k
    nan_past_end: bool = False      # NaN in slots and pages that no request owns
    bad_unused_entries: bool = False  # Block table entries past a request's length point nowhere
    block_size: int = 64
    h_kv: int = 1
    d: int = 576
    dv: int = 512
    seed: int = 0


@dataclasses.dataclass
class TestData:
    cache_seqlens: torch.Tensor  # [b]
    block_table: torch.Tensor    # [b, max_blocks]
    q: torch.Tensor              # [b, s_q, h_q, d] e4m3
    blocked_k: torch.Tensor      # [num_blocks, block_size, h_kv, d] e4m3
    descale_q: torch.Tensor      # [1]
    descale_k: torch.Tensor      # [1]


def score_off(t: TestParam) -> float:
    return SCORE_OFF * t.scale_q * t.scale_k


def quantize(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """x in e4m3 with one scale for the tensor. NaN stays NaN."""
    descale = (x.nan_to_num().abs().max() / E4M3_MAX).clamp(min=1e-12).reshape(1).float()
    return (x / descale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), descale


def generate_test_data(t: TestParam, device: str) -> TestData:
    random.seed(t.seed)
    torch.manual_seed(t.seed)
    lens = [t.s_k] * t.b
    if t.is_varlen:
        lens = [max(int(random.normalvariate(t.s_k, t.s_k / 2)), t.s_q) for _ in lens]
    if t.have_zero_seqlen_k:
        lens = [0 if i % 2 == 0 else length for i, length in enumerate(lens)]
    max_blocks = max(1, -(-max(lens) // t.block_size))
    # Pages of all requests in any order, and some of nobody.
    table = torch.randperm(t.b * max_blocks + 3)[: t.b * max_blocks].to(torch.int32).view(t.b, max_blocks)
    k = torch.randn(t.b * max_blocks + 3, t.block_size, t.h_kv, t.d) * t.scale_k
    owned = torch.zeros(k.shape[:2], dtype=torch.bool)
    for i, length in enumerate(lens):
        for j in range(-(-length // t.block_size)):
            owned[table[i, j], : length - j * t.block_size] = True
    k[~owned] = float("nan") if t.nan_past_end else 0.0
    if t.bad_unused_entries:
        for i, length in enumerate(lens):
            table[i, -(-length // t.block_size) :] = UNUSED_ENTRY
    q, descale_q = quantize(torch.randn(t.b, t.s_q, t.h_q, t.d) * t.scale_q)
    k, descale_k = quantize(k)
    tensors = torch.tensor(lens, dtype=torch.int32), table, q, k, descale_q, descale_k
    return TestData(*(tensor.to(device) for tensor in tensors))


def reference_torch(t: TestParam, data: TestData) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out [b, s_q, h_q, dv], lse [b, h_q, s_q], and how far out may be off.

    A probability p is rounded by at most 2^-4 p, and below the normal numbers of e4m3 by 2^-10 of
    the largest one. The sum that divides them has no such rounding. Roundings of many keys add as
    squares; four standard deviations are allowed, bf16 for the output, and what Hopper's fp8
    products leave of a score (`score_off`).
    """
    device = data.q.device
    out = torch.zeros(t.b, t.s_q, t.h_q, t.dv, device=device)
    lse = torch.full((t.b, t.h_q, t.s_q), float("inf"), device=device)
    off = torch.full_like(out, 1e-6)
    for i, length in enumerate(data.cache_seqlens.tolist()):
        blocks = data.block_table[i, : -(-length // t.block_size)].long()
        k = data.blocked_k.view(torch.uint8)[blocks].view(torch.float8_e4m3fn).float()
        k = k.reshape(-1, t.d)[:length] * data.descale_k
        for s in range(t.s_q):
            seen = length - t.s_q + s + 1 if t.is_causal else length
            if seen <= 0:
                continue
            keys, values = k[:seen], k[:seen, : t.dv]
            scores = (data.q[i, s].float() * data.descale_q) @ keys.T * t.d ** -0.5
            p = scores.softmax(dim=-1)
            out[i, s], lse[i, :, s] = p @ values, scores.logsumexp(dim=-1)
            rounding = torch.maximum(p * 2**-4, p.amax(-1, keepdim=True) * 2**-10).square()
            spread = rounding @ values.square() + score_off(t) ** 2 * (p @ (values.square()))
            off[i, s] += 4 * spread.sqrt() + out[i, s].abs() * 2**-8
    return out, lse, off


@torch.inference_mode()
def test_flash_mla_fp8(t: TestParam, device: str) -> Optional[str]:
    """None, or what is wrong."""
    data = generate_test_data(t, device)
    metadata, num_splits = get_mla_metadata_dense_fp8(data.cache_seqlens, t.s_q * t.h_q // t.h_kv, t.h_kv)
    out, lse = flash_mla_with_kvcache_fp8(
        data.q, data.blocked_k, data.block_table, data.cache_seqlens, t.dv, metadata, num_splits,
        causal=t.is_causal, descale_q=data.descale_q, descale_k=data.descale_k,
    )
    out_ref, lse_ref, off = reference_torch(t, data)
    live = torch.isfinite(lse_ref)
    live_out = live.transpose(1, 2)
    for name, got in (("out", out.float()[live_out]), ("lse", lse[live])):
        if not torch.isfinite(got).all():
            return f"{name}: {int((~torch.isfinite(got)).sum())} of {got.numel()} elements of live rows are not finite"
    if not torch.isfinite(out).all():
        return "out: rows without a key are not finite"
    share = ((out.float() - out_ref).abs() / off)[live_out]
    if share.numel() and share.max() > 1:
        return f"out: {float(share.max()):.2f} of the tolerance"
    if not torch.allclose(lse[live], lse_ref[live], rtol=1e-4, atol=score_off(t)):
        return f"lse: off by {float((lse - lse_ref)[live].abs().max()):.2e}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="short requests and few heads only")
    args = parser.parse_args()
    correctness_cases = [
        TestParam(b, s_q, s_k, h_q=h_q, is_varlen=is_varlen, is_causal=is_causal)
        for b in ([2] if args.small else [1, 6, 64])
        for s_q in [1, 2]
        for s_k in ([20, 140] if args.small else [20, 140, 4096])
        for h_q in ([16] if args.small else [16, 64, 128])
        for is_varlen in [False, True]
        for is_causal in [False, True]
    ]
    corner_cases = [
        TestParam(6, 1, 140, h_q=16, is_varlen=True, scale_q=scale_q, scale_k=scale_k)
        for scale_q in [0.01, 4.0]
        for scale_k in [0.01, 4.0]
    ]
    # What may end the process comes last.
    corner_cases += [TestParam(6, 1, 140, h_q=16, is_varlen=True, nan_past_end=True)]
    corner_cases += [TestParam(6, 1, 140, h_q=16, is_varlen=True, have_zero_seqlen_k=True)]
    corner_cases += [TestParam(6, 1, 140, h_q=16, is_varlen=True, bad_unused_entries=True)]
    failures: List[str] = []
    testcases = correctness_cases + corner_cases
    for t in testcases:
        try:
            wrong = test_flash_mla_fp8(t, args.device)
            if args.device == "cuda":
                torch.cuda.synchronize()
        except RuntimeError as error:
            wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        if wrong:
            failures.append(wrong)
            print(f"FAIL {t}: {wrong}")
    print(f"fp8 dense decode: {len(testcases) - len(failures)} of {len(testcases)} cases pass")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
