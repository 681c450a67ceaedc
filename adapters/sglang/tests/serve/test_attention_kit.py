"""The script that runs SGLang's own attention suite, with a stand-in for the suite."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks/sglang_attention_kit.py"
METHODS = "sglang.test.kits.attention_unittest.attention_methods"


@dataclass(frozen=True)
class SuiteCase:
    """What the script reads of a case of the suite."""

    name: str
    backend: str
    page_size: int
    is_decode: bool

    @property
    def forward_mode(self) -> Any:
        return SimpleNamespace(is_decode=lambda: self.is_decode)


def script() -> Any:
    spec = spec_from_file_location("sglang_attention_kit", SCRIPT)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_has_no_case() -> None:
    assert script().MLA == [] and script().SPARSE == []


def test_each_backend_gets_the_cases_of_the_suite_in_pages_that_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = []

    def cases(backend: str) -> tuple[SuiteCase, ...]:
        return SuiteCase("extend", backend, 16, False), SuiteCase("decode", backend, 16, True)

    def run(_: Any, case: SuiteCase, **shape: Any) -> None:
        ran.append((case.backend, case.page_size, shape["kv_lora_rank"]))

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    root = ModuleType("sglang")
    root.__spec__ = ModuleSpec("sglang", None)
    mla, sparse = ModuleType("mla_attention"), ModuleType("dsa_attention")
    vars(mla).update(make_mla_cases=cases, run_mla_attention_case=run)
    vars(sparse).update(make_dsa_sparse_cases=cases)
    for name, module in {
        "sglang": root,
        f"{METHODS}.mla_attention": mla,
        f"{METHODS}.dsa_attention": sparse,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    loaded = script()
    assert len(loaded.MLA) == 8 and len(loaded.DECODES) == 4 and len(loaded.SPARSE) == 2
    for case in loaded.MLA:
        loaded.test_mla(case)
    pages = {backend: page for backend, page, _ in ran}
    assert pages == {"triton": 16, "flashinfer": 16, "flashmla": 64, "fa3": 16}
    assert {rank for *_, rank in ran} == {512}
