"""Kernels with the calls of public libraries: a right one of each passes, a wrong one fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.core.errors import InputError
from harness.kernels.adapters import adapted, check
from harness.ops.mla_decode.styles import STYLES
from tests.conftest import Cli
from tests.transcripts import Approved

KERNELS = Path(__file__).with_name("styled_kernels.py")
LAYERS = Path(__file__).with_name("layer_modules.py")


CALLS = {
    style: ("decode-kernel[planned=unplanned]",) for style in STYLES if not style.endswith("ps64")
} | {style: ("decode-lengths",) for style in STYLES if style.endswith("ps64")}
"""Cases for each style. One without lengths can be asked about full pages alone."""
MARKED = [
    style
    if style in ("flash_mla", "vllm_decode", "trace_prefill_ps1")
    else pytest.param(style, marks=pytest.mark.nightly)
    for style in STYLES
]


@pytest.mark.first(1)
@pytest.mark.parametrize("style", MARKED)
def test_a_right_kernel_of_a_style_passes(cli: Cli, style: str, tmp_path: Path) -> None:
    words = (*CALLS[style], "--seed", 2, "--out", tmp_path)
    code, out, error = cli("judge", f"{KERNELS}:right_{style}", *words)
    assert code == 0, out + error


@pytest.mark.first(1)
@pytest.mark.parametrize("style", MARKED)
def test_a_kernel_of_a_style_that_skips_a_key_fails(cli: Cli, style: str, tmp_path: Path) -> None:
    words = (*CALLS[style], "--seed", 2, "--out", tmp_path)
    code, out, error = cli("judge", f"{KERNELS}:wrong_{style}", *words)
    assert code == 1 and "FAIL" in out, out + error


@pytest.mark.first(1)
@pytest.mark.parametrize(("word", "code"), [("right", 0), ("wrong", 1)])
def test_a_ragged_prefill_is_judged(cli: Cli, word: str, code: int, tmp_path: Path) -> None:
    words = ("context-kernel", "--seed", 2, "--out", tmp_path)
    found, out, error = cli("judge", f"{KERNELS}:{word}_varlen", *words)
    assert found == code, out + error


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "code"), [("right", 0), ("wrong", 1), ("half_split", 1), ("no_norm", 1)]
)
def test_a_module_of_a_whole_layer_is_judged(
    cli: Cli, name: str, code: int, tmp_path: Path
) -> None:
    words = ("layer-kernel", "reject-layer", "--seed", 2, "--out", tmp_path)
    found, out, error = cli("judge", f"{LAYERS}:{name}", *words)
    assert found == code, out + error
    # Its weights are drawn when it is made, which is not the evidence of a cheat.
    assert "random numbers" not in out


def returning(lse: torch.Tensor) -> Callable[..., Any]:
    return lambda *args, **kwargs: (torch.zeros(2), lse)


def test_an_lse_to_base_2_in_another_order_is_the_ops_lse() -> None:
    found = torch.randn(2, 3, 4)
    words = {"lse_base": "2", "lse_order": "B S H"}
    _, lse = adapted("mla_decode", words, returning(found))()
    assert torch.allclose(lse, found.transpose(1, 2) * math.log(2))


@pytest.mark.parametrize(
    ("op", "words", "says"),
    [
        ("mla_decode", {"lse_base": "10"}, "write 'e' or '2'"),
        ("mla_decode", {"lse_order": "B S"}, "write the axes B H S"),
        ("write_kv", {"lse_base": "2"}, "has no lse"),
    ],
)
def test_an_lse_that_the_op_does_not_have_is_refused(
    op: str, words: dict[str, str], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        check(op, "mine", words)


def test_every_style_is_in_the_table_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "judge-your-kernel.md").read_text()
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert rows >= set(STYLES) | {"varlen", "layer"}


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
