"""The files of contrib/ run here against stand-ins: all of a sound package passes, and each planted
bug is found.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.contrib import fuzz_ledger, stand_ins

CONTRIB = Path(__file__).parents[2] / "contrib"
FILES = {
    "flashinfer": CONTRIB / "flashinfer" / "test_mla_reject_or_correct.py",
    "padded-rows": CONTRIB / "vllm" / "test_mla_decode_padded_rows.py",
    "sparse": CONTRIB / "vllm" / "test_sparse_mla_pipeline.py",
    "flashmla": CONTRIB / "flashmla" / "test_flash_mla_dense_decoding_fp8.py",
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Import a file of contrib/ against stand-ins with a bug."""
    monkeypatch.setenv("FLASHINFER_MLA_REJECT_DEVICE", "cpu")

    def loaded(name: str, bug: str) -> ModuleType:
        found = {**stand_ins.modules(bug), "tests.test_helpers.fuzz_ledger": fuzz_ledger}
        for module_name, module in found.items():
            monkeypatch.setitem(sys.modules, module_name, module)
        spec = importlib.util.spec_from_file_location(f"contrib_{name}", FILES[name])
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


def failures(name: str, module: Any) -> list[str]:
    """What a file reports about the package that it was loaded with."""
    found = []
    if name == "flashmla":
        param = module.TestParam
        cases = [
            param(2, 2, 140, h_q=4, is_varlen=True),
            param(2, 1, 70, h_q=4, scale_k=4.0, nan_past_end=True),
        ]
        cases.append(param(3, 1, 70, h_q=4, have_zero_seqlen_k=True, bad_unused_entries=True))
        return [wrong for case in cases if (wrong := module.test_flash_mla_fp8(case, "cpu"))]
    calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    if name == "flashinfer":
        judged = [case for case in module._CASES if case.where != "device"]
        calls = [(module._judge, (case, "fa2")) for case in (module._CONTROL, *judged)]
    elif name == "padded-rows":
        calls = [(module.test_padded_rows_are_finite, (lens, 4)) for lens in module.SEQ_LENS]
        rest = (
            module.test_live_rows_do_not_depend_on_padding,
            module.test_fp8_scale_of_a_padded_batch,
        )
        calls += [(test, (lens,)) for test in rest for lens in module.SEQ_LENS[:3]]
    else:
        test = module.test_sparse_mla_pipeline
        calls = [(test, ((1, 513, 0), 2, scores, "torch")) for scores in ("random", "plateau")]
    for call, arguments in calls:
        try:
            call(*arguments)
        except AssertionError as error:
            found.append(f"{arguments[0]}: {error}"[:200])
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_sound_package_passes(load: Callable[[str, str], Any], name: str) -> None:
    assert failures(name, load(name, "")) == []


@pytest.mark.parametrize(
    ("name", "bug"), [(name, bug) for name in FILES for bug in stand_ins.BUGS[name]]
)
def test_each_planted_bug_is_found(load: Callable[[str, str], Any], name: str, bug: str) -> None:
    assert failures(name, load(name, bug))


def test_the_cases_for_flashinfer_are_those_of_this_project() -> None:
    command = [sys.executable, CONTRIB / "flashinfer" / "generate.py", "--check"]
    assert subprocess.run(command, check=False).returncode == 0
