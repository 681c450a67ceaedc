"""FlashInfer's MLA wrapper as it is declared, and what it is handed: checked with a stand-in for its module."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from harness.core.ops import OPS
from harness.engines.flashinfer import mla as flashinfer_mla
from harness.engines.flashinfer.tables import KERNELS
from harness.kernels.ops import reference
from harness.kernels.plugins import check_signature


class Wrapper:
    """Answers with dense attention over the pages that the plan names."""

    made: list[Any] = []  # noqa: RUF012

    def __init__(self, workspace: torch.Tensor, backend: str) -> None:
        self.backend, self.workspace = backend, workspace
        Wrapper.made.append(self)

    def plan(self, *given: Any) -> None:
        (self.starts, self.offsets, self.pages, self.lens, self.heads, rank, rope, self.page, self.causal,
         self.scale, *_) = given  # fmt: skip
        assert (rank, rope) == (512, 64) and self.causal

    def run(
        self, nope: torch.Tensor, rope: torch.Tensor, ckv: torch.Tensor, kpe: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert options == {"return_lse": True, "return_lse_base_on_e": True}
        counts = (self.offsets[1:] - self.offsets[:-1]).tolist()
        table = torch.zeros(len(counts), max(*counts, 1), dtype=torch.int32)
        for row, (start, count) in enumerate(zip(self.offsets.tolist(), counts, strict=False)):
            table[row, :count] = self.pages[start : start + count]
        q = torch.cat([nope, rope], dim=-1).view(len(counts), -1, self.heads, 576)
        want = reference.mla_decode(q, torch.cat([ckv, kpe], dim=-1), table, self.lens, scale=self.scale)
        return want.out.flatten(0, 1).float(), want.lse.transpose(1, 2).flatten(0, 1).float()


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
def test_it_loads_without_flashinfer_takes_the_ops_arguments_and_says_why_it_is_skipped(spec: Any) -> None:
    check_signature(OPS.get(spec.op), spec.short_name, spec.load())
    assert spec.why_not("cpu") == "flashinfer" or "cuda" in str(spec.why_not("cpu"))


def test_the_gpu_that_is_lacking_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_mla.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    assert flashinfer_mla.on_hopper("cuda") == "built for Hopper (9.0); this GPU is 10.0"
    assert flashinfer_mla.on_ampere("cuda") is None
    monkeypatch.setattr(flashinfer_mla.importlib.util, "find_spec", lambda name: None)
    assert "FlashInfer is not installed" in str(flashinfer_mla.on_ampere("cuda"))


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_the_plan_names_the_pages_in_use_and_results_come_back_in_the_ops_order(
    monkeypatch: pytest.MonkeyPatch, backend: str, num_tokens: int
) -> None:
    stand_in = ModuleType("flashinfer.mla")
    stand_in.BatchMLAPagedAttentionWrapper = Wrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer.mla", stand_in)
    q = torch.randn(3, num_tokens, 4, 576)
    cache = torch.randn(6, 64, 576)
    table = torch.tensor([[1, 2, -1], [3, -1, -1], [5, 4, 1]], dtype=torch.int32)
    lens = torch.tensor([70, 64, 130], dtype=torch.int32)
    decode = getattr(flashinfer_mla, f"mla_decode_{backend}")
    out, lse = decode(q, cache, table, lens, scale=0.1)
    want = reference.mla_decode(q, cache, table.clamp(min=0), lens, scale=0.1)
    torch.testing.assert_close(out.double(), want.out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), want.lse, rtol=1e-4, atol=1e-5)
    assert Wrapper.made[-1].backend == backend and -1 not in Wrapper.made[-1].pages.tolist()
