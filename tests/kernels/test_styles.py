"""Kernels with the calls of public libraries: a right one of each passes, a wrong one fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.ops.mla_decode.styles import STYLES
from tests.conftest import Cli
from tests.transcripts import Approved

KERNELS = Path(__file__).with_name("styled_kernels.py")


@pytest.mark.parametrize("style", STYLES)
def test_a_right_kernel_of_a_style_passes(cli: Cli, style: str, tmp_path: Path) -> None:
    words = ("decode-kernel[planned=unplanned]", "decode-empty-rows", "--seed", 2)
    code, out, error = cli("judge", f"{KERNELS}:right_{style}", *words, "--out", tmp_path)
    assert code == 0, out + error


@pytest.mark.parametrize("style", STYLES)
def test_a_kernel_of_a_style_that_skips_a_key_fails(cli: Cli, style: str, tmp_path: Path) -> None:
    words = ("decode-kernel[planned=unplanned]", "--seed", 2)
    code, out, error = cli("judge", f"{KERNELS}:wrong_{style}", *words, "--out", tmp_path)
    assert code == 1 and "FAIL" in out, out + error


def test_a_trusted_plugin_may_have_a_style_too(cli: Cli, tmp_path: Path) -> None:
    words = ("--plugin", KERNELS, "--kernel", "right-flash_mla", "--out", tmp_path)
    code, out, error = cli("run", "decode-kernel[planned=unplanned]", *words)
    assert code == 0, out + error


def test_an_unknown_style_and_a_style_of_another_op_are_refused(
    cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    file = tmp_path / "mine.py"
    text = "from harness import kernel\n@kernel(op='{op}', name='m', style='{style}')\ndef f(): 0\n"
    file.write_text(text.format(op="mla_decode", style="flash"))
    code, _, error = cli("run", "decode-kernel", "--plugin", file, "--out", tmp_path)
    assert code == 2
    approved(error)
    file.write_text(text.format(op="write_kv", style="flash_mla"))
    code, _, error = cli("run", "write-kv-kernel", "--plugin", file, "--out", tmp_path)
    assert code == 2
    approved(error)
