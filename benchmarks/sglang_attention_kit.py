"""SGLang's own attention suite (sgl-project/sglang#26517) over MLA and sparse MLA, plainly or under
poison. One GPU and SGLang, which brings the suite's cases and references along.

    python -m pytest benchmarks/sglang_attention_kit.py
    python -m pytest benchmarks/sglang_attention_kit.py -p torch_poison.pytest_plugin --poison nan

A case that passes plainly and fails under poison reads memory that nothing wrote. The suite runs
each backend through SGLang's `ForwardBatch`: eagerly, and decodes through a captured graph whose
replay has fewer requests than its capture.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import unittest
from typing import Any

import pytest
import torch

KIT = "sglang.test.kits.attention_unittest"
MLA_SHAPE = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "hidden_size": 1024,
    "max_context_len": 256,
    "dtype": torch.bfloat16,
}
"""DeepSeek's latents, which every kernel takes. The suite's own are smaller."""
PAGE_SIZES = {"flashmla": 64}
"""Of backends that take one size alone."""


def _module(name: str) -> Any:
    return importlib.import_module(f"{KIT}.{name}")


def _mla_cases() -> list[Any]:
    made = []
    for backend in ("triton", "flashinfer", "flashmla", "fa3"):
        for case in _module("attention_methods.mla_attention").make_mla_cases(backend):
            page = PAGE_SIZES.get(backend, case.page_size)
            made.append(dataclasses.replace(case, page_size=page))
    return made


def _sparse_cases() -> list[Any]:
    return list(_module("attention_methods.dsa_attention").make_dsa_sparse_cases("dsa"))


def _named(case: Any) -> str:
    return f"{case.backend}-{case.name}"


if torch.cuda.is_available() and importlib.util.find_spec("sglang"):
    MLA, SPARSE = _mla_cases(), _sparse_cases()
else:
    MLA, SPARSE = [], []
DECODES = [case for case in MLA if case.forward_mode.is_decode()]

pytestmark = pytest.mark.skipif(not MLA, reason="needs a GPU and SGLang")


@pytest.mark.parametrize("case", MLA, ids=_named)
def test_mla(case: Any) -> None:
    _module("attention_methods.mla_attention").run_mla_attention_case(
        unittest.TestCase(), case, **MLA_SHAPE
    )


@pytest.mark.parametrize("case", DECODES, ids=_named)
def test_mla_decodes_in_a_graph(case: Any) -> None:
    _module("runner_modes.cuda_graph_decode_runner").run_mla_cuda_graph_decode_case(
        unittest.TestCase(), case, **MLA_SHAPE
    )


@pytest.mark.parametrize("case", SPARSE, ids=_named)
def test_sparse_mla(case: Any) -> None:
    _module("attention_methods.dsa_attention").run_dsa_sparse_attention_case(
        unittest.TestCase(), case
    )
