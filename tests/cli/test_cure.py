"""`mla-harness cure` from the command line: verdicts, exit codes, and mistakes in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
FAULT = "merge.ignore-context-count"


def test_a_cure_that_hides_exits_with_1_and_names_who_still_reads(cli: Cli, scenarios: Path) -> None:
    scrubbed = ("--with", "nan_to_num:merge_attn_states.out", "--with", "nan_to_num:merge_attn_states.lse")
    code, out, err = cli("cure", "merge", *scrubbed, "--scenarios", scenarios, "-n", 1)
    assert (code, err) == (1, "")
    assert f"merge[num_with_context=7] with {FAULT}" in out
    assert "hides: `finite` is silent, but context.output is still read, first by merge_attn_states/torch (out)" in out


def test_a_cure_that_removes_exits_with_0(cli: Cli, scenarios: Path) -> None:
    code, out, _ = cli("cure", "36540", "--with", f"fix:{FAULT}", "--scenarios", scenarios, "-n", 1, "--json")
    result = json.loads(out)
    assert (code, result["verdict"], result["after"], result["left"]) == (0, "removes", [], [])
    assert [reading["site"] for reading in result["before"]] == ["context.output", "context.lse"]
    assert result["num_compared"] > 0


def test_a_broken_kernel_of_a_user_is_cured_by_a_file_of_his(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path], tmp_path: Path
) -> None:
    broken = plugin("""
    scale = (x.float().abs().amax() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)
""")
    patch = tmp_path / "live_rows.py"
    patch.write_text(
        "import torch\nfrom harness import cure\n\n@cure(op='quantize_fp8')\n"
        "def live_rows(wrapped, x, *, num_live=None):\n"
        "    live = torch.arange(x.shape[0])[:, None] < num_live\n"
        "    return wrapped(torch.where(live, x, torch.zeros_like(x)), num_live=num_live)\n"
    )
    common = ("--plugin", broken, "--scenarios", scenarios, "-n", 1)
    code, out, _ = cli("cure", "quantize", "--with", patch, *common)
    assert code == 0 and "removes:" in out and "scale.pad is not read any more" in out
    code, out, _ = cli("cure", "quantize", "--with", "nan_to_num:quantize_fp8.scale", *common)
    assert code == 1 and "scale.pad is still read, first by quantize_fp8/mine" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--with", "zero:outptu"), "did you mean 'output'"),
        (("--with", "no.py"), "there is no such file"),
        (("--with", "zero:output", "--fault", "no-such-bug"), "unknown fault"),
        ((), "Missing option '--with'"),
    ],
)
def test_a_mistake_is_one_line(cli: Cli, scenarios: Path, words: tuple[str, ...], message: str) -> None:
    code, out, err = cli("cure", "merge", *words, "--scenarios", scenarios)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_broken_file_is_one_line_too(cli: Cli, scenarios: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("1 / 0\n")
    code, _, err = cli("cure", "merge", "--with", path, "--scenarios", scenarios, "-n", 1)
    assert code == 2 and err.count("\n") == 1
    assert "bad.py:1: ZeroDivisionError" in err
