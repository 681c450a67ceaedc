"""Small scenario folders and plug-in files for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SCENARIO = """
name: {name}
summary: quantize_fp8 of a padded batch
refs: [vllm-project/vllm#37442]
tags: [quantization]
system: kernel
op: quantize_fp8
matrix:
  kernel: [torch, torch-fmax]
  num_live: [1, 8]
"""

MERGE = """
name: merge
summary: merge_attn_states with tokens that have no context
refs: [vllm-project/vllm#36540]
system: kernel
op: merge_attn_states
params: {kernel: torch}
matrix:
  num_with_context: [7, 12]
faults:
  - name: merge.ignore-context-count
    caught_by: finite
    blames: [context.output, context.lse]
    on: {num_with_context: 7}
"""

PLUGIN = """
import torch
from harness import kernel

@kernel(op="quantize_fp8", name="mine")
def mine(x, *, num_live=None):
    {body}
"""

GOOD_BODY = """
    live = x if num_live is None else x[:num_live]
    scale = (live.float().abs().amax() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)
"""


@pytest.fixture
def scenarios(tmp_path: Path) -> Path:
    """A folder with one scenario of four cheap cases, and one of two cases with a fault."""
    folder = tmp_path / "scenarios"
    folder.mkdir()
    (folder / "quantize.yaml").write_text(SCENARIO.format(name="quantize"))
    (folder / "merge.yaml").write_text(MERGE)
    return folder


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[[str], Path]:
    """Write a plug-in with a kernel `mine` for quantize_fp8 with this body."""

    def write(body: str) -> Path:
        path = tmp_path / "my_kernel.py"
        path.write_text(PLUGIN.format(body=body))
        return path

    return write
