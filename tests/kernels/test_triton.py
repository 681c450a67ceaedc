"""Where Triton kernels say they can run, and their own tests under Triton's interpreter, in a
process of their own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code
from harness.core.kernels import KernelSpec
from harness.memory import triton_interpreter
from harness.memory.triton_interpreter import interpreter_is_on, unavailable
from tests.waiting import HANG_SECONDS

TRITON = [spec for spec in KERNELS if spec.short_name == "triton"]
HERE = Path(__file__).parent


def test_six_ops_have_a_triton_kernel() -> None:
    assert sorted(spec.op for spec in TRITON) == [
        "map_indices",
        "merge_attn_states",
        "mla_decode",
        "mla_decode_plan",
        "quantize_fp8",
        "write_kv",
    ]


@pytest.mark.parametrize("spec", TRITON, ids=lambda spec: spec.op)
def test_without_the_interpreter_a_cpu_is_refused_with_the_variable_to_set(
    spec: KernelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert "TRITON_INTERPRET=1" in str(spec.why_not("cpu"))
    assert spec.why_not("cuda") is None


def test_under_the_interpreter_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert "unset it" in str(unavailable("cuda"))


def test_a_machine_without_triton_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert unavailable("cuda").cause == unavailable("cpu").cause == Code.NOT_INSTALLED
    assert "pip install" in str(unavailable("cpu"))


@pytest.mark.parametrize(
    "installed, known", [("3.7.1", True), ("3.7.1+cpu", True), ("3.6.0", False), ("3.8.0", False)]
)
def test_only_interpreters_of_known_versions_are_repaired(
    installed: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed)
    assert (unavailable("cpu") is None) == known
    if not known:
        with pytest.raises(RuntimeError, match=re.escape(f"Triton {installed} is not repaired")):
            triton_interpreter.prepare()


@pytest.mark.skipif(
    interpreter_is_on(), reason="this process interprets: the files run by themselves"
)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("interpreted_types.py", "not nightly"),
        ("interpreted_kernels.py", "not nightly"),
        pytest.param("interpreted_kernels.py", "nightly", marks=pytest.mark.nightly),
    ],
)
def test_the_kernels_pass_their_tests_under_the_interpreter(name: str, when: str) -> None:
    # The interpreter is chosen when Triton is imported, so it needs a process that has not done so.
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", when]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(HERE / name)],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=HERE.parent.parent,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout
