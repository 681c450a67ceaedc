"""A plug-in with a Triton kernel gets the repaired interpreter, without a word about it in the
plug-in.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transcripts import Approved, lines_with

Cli = Callable[..., tuple[int, str, str]]
PLUGIN = Path(__file__).parent / "triton_plugin.py"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@pytest.mark.nightly
def test_its_products_in_bfloat16_are_right_under_the_interpreter(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock, the interpreter multiplies the integers that hold them."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    code, out, err = cli(
        "run", "decode-kernel[kv=bf16]", "--plugin", PLUGIN, "-n", 1, "--device", "cpu", "--json"
    )
    assert code == 0, err
    cases = json.loads(out)["cases"]
    assert [case["verdict"] for case in cases] == ["pass"] * len(cases) and len(cases) >= 2


def in_a_new_process(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )


REPAIRS = """
from harness.memory.triton_interpreter import repair_when_imported
{before}
repair_when_imported()
repair_when_imported()
{after}
from triton.runtime.interpreter import InterpreterBuilder
print(getattr(InterpreterBuilder, "repaired_by_mla_harness", False))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_interpreter_is_repaired_whenever_it_is_imported(when: str) -> None:
    words = {"before": "", "after": ""} | {when: "import triton.runtime.interpreter"}
    done = in_a_new_process(REPAIRS.format(**words), TRITON_INTERPRET="1")
    assert done.stdout == "True\n", done.stderr


def test_a_version_that_nobody_repaired_is_refused_in_words(approved: Approved) -> None:
    code = "import harness.memory.triton_interpreter as t\nt.REPAIRED_VERSIONS = ('0.1',)\n"
    done = in_a_new_process(code + REPAIRS.format(before="", after=""), TRITON_INTERPRET="1")
    approved(lines_with(done.stderr, "0.1"))


def test_a_plugin_without_triton_imports_none(tmp_path: Path) -> None:
    plugin = tmp_path / "plain.py"
    plugin.write_text(
        "from harness import kernel\n\n@kernel(op='quantize_fp8', name='p')\ndef p(x, *,"
        " num_live=None): ...\n"
    )
    code = (
        "import sys\nfrom harness.kernels.plugins import"
        f" load_plugin\nload_plugin({str(plugin)!r})\n"
    )
    done = in_a_new_process(code + "print('triton' in sys.modules)")
    assert done.stdout == "False\n", done.stderr
