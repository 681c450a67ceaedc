"""FlashInfer's MLA wrapper as it is declared, and what it is handed: checked with a stand-in for
its module.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.cause_codes import Code, WhyNot
from harness.core.ops import OPS
from harness.kernels.plugins import check_signature
from harness.ops.mla_decode import reference as mla_decode_reference
from harness.ops.parts.record_formats import decode, encode, store
from mla_harness_adapters import base
from mla_harness_flashinfer import mla as flashinfer_mla
from mla_harness_flashinfer import records as flashinfer_records
from mla_harness_flashinfer.tables import KERNELS
from tests.transcripts import Approved


class Wrapper:
    """Answers with dense attention over the pages that the plan names."""

    made: list[Any] = []  # noqa: RUF012

    def __init__(self, workspace: torch.Tensor, backend: str) -> None:
        self.backend, self.workspace = backend, workspace
        Wrapper.made.append(self)

    def plan(self, *given: Any) -> None:
        (
            self.starts,
            self.offsets,
            self.pages,
            self.lens,
            self.heads,
            rank,
            rope,
            self.page,
            self.causal,
            self.scale,
            *_,
        ) = given
        assert (rank, rope) == (512, 64) and self.causal

    def run(
        self,
        nope: torch.Tensor,
        rope: torch.Tensor,
        ckv: torch.Tensor,
        kpe: torch.Tensor,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert options == {"return_lse": True, "return_lse_base_on_e": True}
        counts = (self.offsets[1:] - self.offsets[:-1]).tolist()
        table = torch.zeros(len(counts), max(*counts, 1), dtype=torch.int32)
        for row, (start, count) in enumerate(zip(self.offsets.tolist(), counts, strict=False)):
            table[row, :count] = self.pages[start : start + count]
        q = torch.cat([nope, rope], dim=-1).view(len(counts), -1, self.heads, 576)
        want = mla_decode_reference.expected(
            q, torch.cat([ckv, kpe], dim=-1), table, self.lens, scale=self.scale
        )
        return want.out.float(), want.lse.float()


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec.name)
def test_it_loads_without_flashinfer_takes_the_ops_arguments_and_says_why_it_is_skipped(
    spec: Any,
) -> None:
    check_signature(OPS.get(spec.op), spec.short_name, spec.load())
    assert spec.why_not("cpu").cause == Code.NO_DEVICE


def test_the_gpu_that_is_lacking_is_named(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    found = SimpleNamespace(origin="flashinfer.py")
    monkeypatch.setattr(flashinfer_mla.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    other_gpu = flashinfer_mla.on_hopper("cuda")
    assert other_gpu.cause == Code.NO_DEVICE
    assert flashinfer_mla.on_ampere("cuda") is None
    monkeypatch.setattr(flashinfer_mla.importlib.util, "find_spec", lambda name: None)
    nothing = flashinfer_mla.on_ampere("cuda")
    assert nothing.cause == Code.NOT_INSTALLED
    approved([str(other_gpu), str(nothing)])


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
    want = mla_decode_reference.expected(q, cache, table.clamp(min=0), lens, scale=0.1)
    torch.testing.assert_close(out.double().flatten(0, 1), want.out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        lse.double().transpose(1, 2).flatten(0, 1), want.lse, rtol=1e-4, atol=1e-5
    )
    assert Wrapper.made[-1].backend == backend and -1 not in Wrapper.made[-1].pages.tolist()


def test_the_nvfp4_reader_gets_codes_and_scales_of_one_head_and_its_rows_are_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dequantize(
        codes: Any,
        scales: Any,
        table: torch.Tensor,
        lens: torch.Tensor,
        k_scale: torch.Tensor,
        v_scale: torch.Tensor,
        out: torch.Tensor,
        _: torch.Tensor,
        kv_layout: str,
    ) -> None:
        assert (
            kv_layout == "NHD"
            and codes[0].shape == (4, 64, 1, 64)
            and scales[0].shape == (4, 64, 1, 8)
        )
        assert scales[0].dtype == torch.float8_e4m3fn and lens.dtype == torch.int32
        for b, length in enumerate(lens.tolist()):
            for at in range(length):
                page, offset = int(table[b, at // 64]), at % 64
                record = torch.cat(
                    (codes[0][page, offset, 0], scales[0][page, offset, 0].view(torch.uint8))
                )
                out[b, at, 0] = decode(record[None], "nvfp4_linear", float(k_scale))[0]

    stand_in = ModuleType("flashinfer.quantization")
    stand_in.nvfp4_kv_dequantize_paged = dequantize  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer.quantization", stand_in)
    x = torch.randn(70, 128)
    storage = torch.zeros(4, 2, 64, 72, dtype=torch.uint8)
    slots = torch.cat((torch.arange(64, 69), torch.arange(128, 192), torch.arange(192, 193)))
    records = encode(x, "nvfp4_linear", 0.5)
    store(records, storage[:, 1], slots, "nvfp4_linear")
    table, starts = (
        torch.tensor([[1, 0], [2, 3]], dtype=torch.int32),
        torch.tensor([0, 5, 70], dtype=torch.int32),
    )
    out = flashinfer_records.read_nvfp4(
        storage[:, 1], table, starts, record_format="nvfp4_linear", scale=0.5
    )
    torch.testing.assert_close(
        out.double(), decode(records, "nvfp4_linear", 0.5), rtol=0.005, atol=0
    )


def test_a_release_without_the_nvfp4_reader_is_named(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(flashinfer_records, "on_ampere", lambda device: None)
    monkeypatch.setattr(base, "installed_version", lambda engine: "0.6.14")
    approved(str(flashinfer_records.on_ampere_since_0_6_16("cuda")))
    monkeypatch.setattr(base, "installed_version", lambda engine: "0.6.16.post3")
    assert flashinfer_records.on_ampere_since_0_6_16("cuda") is None
    monkeypatch.setattr(flashinfer_records, "on_ampere", lambda device: WhyNot("no GPU"))
    assert flashinfer_records.on_ampere_since_0_6_16("cuda") == WhyNot("no GPU")
