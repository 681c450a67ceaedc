"""A failing kernel of an engine leaves as a script that needs torch and the engine, and in a
minute.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.cases import Case, PoisonPlan
from harness.core.catalog import ENGINES, KERNELS
from harness.core.kernels import KernelSpec
from harness.diagnose.script.code import MARKER, without_bug
from harness.diagnose.script.export import _BLOCKER
from harness.diagnose.script.recipes import OP_SCENES
from harness.diagnose.shrink import POWERS, reductions
from tests.waiting import HANG_SECONDS

from .cases import script_of  # type: ignore[import-not-found]

OF_ENGINES = [spec for spec in KERNELS if spec.origin in ENGINES and spec.op in OP_SCENES]

STAND_IN = '''
import torch
def decode_attention_fwd(*, q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits, num_kv_splits,
                         sm_scale, page_size, k_scale, v_scale, is_mla):
    """Right over finite memory: slots past a length are multiplied by zero instead of left out."""
    for row, length in enumerate(b_seq_len.tolist()):
        if length == 0:
            continue
        blocks = req_to_token[row, : -(-length // page_size)].long()
        keys, values = (x[blocks, :, 0].flatten(0, 1).float() for x in (k_buffer, v_buffer))
        used = (torch.arange(len(keys)) < length).float()
        scores = q[row].float() @ torch.nan_to_num(keys).T * sm_scale + (1 - used) * -1e30
        o[row] = (scores.softmax(-1) @ (values * used[:, None])).to(o.dtype)
        lse[row] = scores.logsumexp(-1)
'''  # noqa: E501


def failing() -> Case:
    params = {
        "kernel": "vllm-triton",
        "kv": "bf16",
        "seq_lens": [1, 70],
        "num_heads": 2,
        "num_spare_blocks": 1,
    }
    return Case(
        id="decode-kernel[kernel=vllm-triton,kv=bf16]",
        scenario="decode-kernel",
        system="kernel",
        op="mla_decode",
        params=params,
        poison=PoisonPlan(sites=("kv.tail",)),
        oracles=("finite",),
    )


def ran(text: str, folder: Path, python_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script where the stand-in for vLLM can be imported, and this project cannot."""
    path = folder / "script.py"
    path.write_text(text)
    command = [sys.executable, "-c", _BLOCKER, "script", str(path), str(folder)]
    environ = {**os.environ, "PYTHONPATH": str(python_path)}
    return subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("spec", OF_ENGINES, ids=lambda spec: spec.name)
def test_the_script_of_an_engines_kernel_imports_torch_and_the_engine_only(
    spec: KernelSpec,
) -> None:
    params = {"kernel": spec.short_name} | (
        {"kv": spec.kv[0]} if spec.op in ("mla_decode", "write_kv") else {}
    )
    case = Case(
        id="x",
        scenario="s",
        system="kernel",
        op=spec.op,
        params=params,
        poison=PoisonPlan(sites=("output",)),
    )
    text = script_of(None, case)
    assert text.count(MARKER) == 1
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert {name.partition(".")[0] for name in imported} <= {
        "torch",
        "importlib",
        "inspect",
        "functools",
        "dataclasses",
        "typing",
    }
    packages = "vllm|flashinfer|lmdeploy|sglang|sgl_kernel|harness|mla_harness"
    called = set(re.findall(rf'"((?:{packages})[\w.]*)"', text))
    assert called and not any("harness" in name for name in called)


@pytest.mark.nightly
def test_the_script_shows_the_bug_of_the_installed_engine_without_this_project(
    tmp_path: Path,
) -> None:
    module = tmp_path / "site" / "vllm" / "v1" / "attention" / "ops" / "triton_decode_attention.py"
    module.parent.mkdir(parents=True)
    module.write_text(STAND_IN)
    text = script_of(None, failing())
    shown = ran(text, tmp_path, tmp_path / "site")
    assert shown.returncode == 1 and "AssertionError" in shown.stderr, shown.stderr
    assert ran(without_bug(text), tmp_path, tmp_path / "site").stdout == "passes\n"
    module.write_text(
        STAND_IN.replace("values * used[:, None]", "torch.nan_to_num(values) * used[:, None]")
    )
    assert ran(text, tmp_path, tmp_path / "site").stdout == "passes\n"
    module.unlink()
    assert "ModuleNotFoundError" in ran(text, tmp_path, tmp_path / "nothing").stderr


def test_the_sizes_of_an_engines_kernel_are_not_shrunk() -> None:
    case = failing()
    own = case.model_copy(update={"params": case.params.model_copy(update={"kernel": "tiled"})})
    for name in set(POWERS) & set(type(case.params).model_fields):
        assert not list(reductions(case, case, name))
        assert list(reductions(own, own, name))
    assert list(reductions(case, case, "seq_lens"))
