"""A kernel's own source in a script: this project's, and the calls of vLLM's kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.cases import Case
from harness.diagnose.script.code import inline
from tests.waiting import HANG_SECONDS

from .cases import script_of  # type: ignore[import-not-found]


def test_a_kernel_runs_from_its_source_alone(tmp_path: Path) -> None:
    found = inline("harness.ops.quantize_fp8.kernels.dense:quantize_fp8_fmax")
    assert found.name == "quantize_fp8_fmax" and "harness" not in found.code
    text = "\n".join(
        [
            "import torch",
            *found.imports,
            found.code,
            "print(quantize_fp8_fmax(torch.ones(2, 4))[1])",
        ]
    )
    path = tmp_path / "alone.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", str(path)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0 and "0.0022" in done.stdout, done.stderr


@pytest.mark.parametrize("kernel", ["vllm-cuda", "vllm-triton"])
def test_a_vllm_kernel_is_imported_by_its_own_path(kernel: str) -> None:
    params = {
        "kernel": kernel,
        "num_tokens": 3,
        "num_with_context": 2,
        "num_heads": 1,
        "v_head_dim": 8,
    }
    case = Case(
        id="x", scenario="merge-kernel", system="kernel", op="merge_attn_states", params=params
    )
    text = script_of(None, case)
    path = {
        "vllm-cuda": "vllm._custom_ops",
        "vllm-triton": "vllm.v1.attention.ops.triton_merge_attn_states",
    }[kernel]
    assert path in text and "kernel = merge_attn_states" in text.replace("_triton", "")
    assert "import importlib\n" in text and len(text.splitlines()) < 120
    compile(text, "script", "exec")
