"""`mla-harness judge`: right kernels, cheats, a file without a decorator, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import GOOD_BODY, PLUGIN
from tests.conftest import Cli
from tests.transcripts import Approved, lines_with

CHEATS = Path(__file__).parents[2] / "trust" / "cheats"
KEEPS = """
import torch
from harness import kernel

kept = {}

@kernel(op="quantize_fp8", name="mine")
def mine(x, *, num_live=None):
    live = x if num_live is None else x[:num_live]
    scale = (live.float().abs().amax() / 448).clamp_min(1e-12)
    found = (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)
    mine = kept.setdefault(x.shape, tuple(map(torch.empty_like, found)))
    return tuple(old.copy_(new) for old, new in zip(mine, found))
"""
PLAIN = "decode-kernel[planned=unplanned]"


@pytest.fixture
def right(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.format(body=GOOD_BODY))
    return file


def test_a_right_kernel_passes_with_what_its_calls_showed(
    cli: Cli, right: Path, tmp_path: Path, approved: Approved
) -> None:
    code, out, _ = cli("judge", right, "quantize-kernel", "--seed", 5, "--out", tmp_path / "runs")
    assert code == 0 and "pass" in out and "covered: " in out
    approved(lines_with(out, "seed 5: --seed", "judged: ", "not covered: "))


def causes_of(folder: Path) -> set[str]:
    """The causes of all findings of the one run in a folder."""
    results = next(folder.glob("*/results.jsonl")).read_text().splitlines()
    return {one["cause"] for line in results for one in json.loads(line)["findings"]}


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "name",
    [
        "processes.py:imported_reference",
        "kernels.py:cached_clones",
        "kernels.py:query_alone",
        "kernels.py:never_launched",
        "processes.py:equal_to_anything",
        "processes.py:patched_clock",
    ],
)
def test_a_cheat_is_red_by_its_evidence(cli: Cli, name: str, tmp_path: Path) -> None:
    words = (PLAIN, "influence-decode", "--seed", 5, "--out", tmp_path)
    code, out, error = cli("judge", f"{CHEATS}/{name}", *words)
    assert code == 1, out + error
    assert "cheats" in causes_of(tmp_path), out


def test_a_right_kernel_that_keeps_its_output_passes_with_a_remark(
    cli: Cli, right: Path, tmp_path: Path, approved: Approved
) -> None:
    right.write_text(KEEPS)
    code, out, _ = cli("judge", right, "quantize-kernel", "--seed", 5, "--out", tmp_path / "runs")
    assert code == 0
    approved(lines_with(out, "remark"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["one_buffer_rewritten", "remembered_by_content", "falls_back"])
def test_an_unusual_kernel_that_is_right_passes(cli: Cli, name: str, tmp_path: Path) -> None:
    words = (PLAIN, "decode-empty-rows", "influence-decode", "--seed", 5, "--out", tmp_path)
    code, out, error = cli("judge", f"{CHEATS}/kernels.py:{name}", *words)
    assert code == 0, out + error


def test_a_wrong_kernel_that_does_its_own_work_is_no_cheat(
    cli: Cli, right: Path, tmp_path: Path
) -> None:
    right.write_text(right.read_text().replace("/ 448", "/ 447"))
    code, out, _ = cli("judge", right, "quantize-kernel", "--out", tmp_path / "runs")
    assert code == 1 and "cheats" not in causes_of(tmp_path / "runs"), out


@pytest.mark.nightly
def test_a_function_without_a_decorator_is_judged_by_its_op(
    cli: Cli, right: Path, tmp_path: Path
) -> None:
    plain = right.with_name("plain.py")
    text = right.read_text()
    plain.write_text(text.replace('@kernel(op="quantize_fp8", name="mine")\n', ""))
    out = tmp_path / "runs"
    code, shown, error = cli("judge", plain, "--out", out)
    assert code == 2 and "it has mine" in error and error.count("\n") == 1
    words = ("--op", "quantize_fp8", "quantize-kernel", "--out", out)
    code, shown, _ = cli("judge", f"{plain}:mine", *words)
    assert code == 0 and "pass" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nothing.py",), "nothing.py: no such file"),
        (("{right}", "--op", "mla_decode"), "name the function"),
        (("{right}:mine", "--op", "decode"), "unknown op 'decode'"),
    ],
)
def test_bad_input_is_one_line(
    cli: Cli, right: Path, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    given = [word.format(right=right) for word in words]
    code, _, error = cli("judge", *given, "--out", tmp_path)
    assert code == 2 and says in error and error.count("\n") == 1
