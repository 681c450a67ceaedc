"""The Triton kernels on a GPU: every poison, the float64 reference, and real CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import KERNELS, ORACLES, SITES
from harness.core.op_params import KERNEL_PARAMS
from harness.evidence.records import Evidence
from harness.judge.targets.kernel import KernelTarget

REASON = KERNELS.get("mla_decode/triton").why_not("cuda")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]


@pytest.mark.parametrize("kv", ["fp32", "bf16", "fp8_e4m3"])
@pytest.mark.parametrize("query_len", [1, 4])
@pytest.mark.parametrize("num_heads", [3, 16, 40])
def test_decode_is_right_and_clean_on_the_gpu(kv: str, query_len: int, num_heads: int) -> None:
    seq_lens = [0, query_len, 63, 64, 65, 130, 1000]
    _judge("mla_decode", kv=kv, seq_lens=seq_lens, query_len=query_len, num_heads=num_heads)


@pytest.mark.parametrize("op", ["merge_attn_states", "write_kv", "quantize_fp8"])
def test_the_other_kernels_are_right_and_clean_on_the_gpu(op: str) -> None:
    _judge(op)


def test_a_captured_decode_follows_new_lengths_queries_and_tables_bit_for_bit() -> None:
    from harness.ops.mla_decode.kernels.triton import mla_decode

    device = torch.device("cuda")
    cache = torch.randn(160, 64, 576, device=device, dtype=torch.bfloat16)
    q = torch.randn(8, 1, 16, 576, device=device, dtype=torch.bfloat16)
    table = torch.randperm(160, device=device).view(8, 20).to(torch.int32)
    seq_lens = torch.full((8,), 1000, dtype=torch.int32, device=device)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        return mla_decode(q, cache, table, seq_lens, scale=0.1)

    graph, captured = _capture(step)
    answers = []
    for lengths in ([1000] * 8, [1, 0, 64, 65, 999, 500, 0, 3], [700] * 8):
        seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        q.normal_()
        table.copy_(table.flatten()[torch.randperm(160, device=device)].view_as(table))
        graph.replay()
        replayed = [tensor.clone() for tensor in captured]
        for got, want in zip(replayed, step(), strict=True):
            assert torch.equal(got, want)
        answers.append(replayed[0])
    assert not torch.equal(answers[0], answers[2])


def test_a_captured_quantizer_follows_the_number_of_live_rows() -> None:
    from harness.ops.quantize_fp8.kernels.triton import quantize_fp8

    x = torch.randn(32, 256, device="cuda")
    num_live = torch.tensor([32], dtype=torch.int32, device="cuda")
    graph, (_, scale) = _capture(lambda: quantize_fp8(x, num_live=num_live))
    x[20:] = float("nan")
    graph.replay()
    assert bool(scale.isnan().all())
    num_live.fill_(20)
    graph.replay()
    assert scale.item() == pytest.approx(float(x[:20].abs().max()) / 448, rel=1e-6)


def _judge(op: str, **params: Any) -> None:
    values = (
        KERNEL_PARAMS[op].model_validate({"kernel": "triton", **params}).model_dump(mode="json")
    )
    case = Case(id=f"test[{op}]", scenario="test", system="kernel", op=op, params=values, seed=11)
    sites = frozenset(SITES.names())
    target = KernelTarget(case, device="cuda")
    evidence = Evidence(
        case, [target.run(Poison(pattern, sites)) for pattern in ("nan", "zeros", "max")]
    )
    for name in ("crash", "finite", "sentinel", "reference", "non_interference"):
        judgement = ORACLES.get(name).judge(evidence)
        assert judgement.looked_at > 0 and not judgement.findings, (name, judgement.findings)


def _capture(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    return graph, outputs
