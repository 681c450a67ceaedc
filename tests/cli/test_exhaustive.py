"""`mla-harness run` leaves out cases that would repeat a crash, and `--exhaustive` runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SCENARIO  # type: ignore[import-not-found]

Cli = Callable[..., tuple[int, str, str]]


def totals(cli: Cli, *words: object, code: int = 1) -> dict[str, int]:
    ended, out, err = cli("run", *words, "-n", 1, "--json", "--history", "none")
    assert ended == code, err
    return {name: count for name, count in json.loads(out)["totals"].items() if count}


@pytest.mark.nightly
def test_a_storm_of_crashes_is_three_and_a_continued_run_can_have_all(
    cli: Cli, tmp_path: Path, plugin: Callable[[str], Path]
) -> None:
    folder = tmp_path / "six"
    folder.mkdir()
    (folder / "six.yaml").write_text(
        SCENARIO.format(name="six").replace("[torch, torch-fmax]", "[torch]").replace("[1, 8]", "[1, 2, 3, 4, 5, 6]")
    )
    path = plugin("raise RuntimeError(f'no block {id(x):#x}')")
    words = ("--plugin", path, "--kernel", "mine", "--scenarios", folder)
    assert totals(cli, *words, "--out", tmp_path / "runs") == {"crash": 3, "skip": 3}
    again = ("--resume", "latest", "--out", tmp_path / "runs")
    # A continued run keeps what was left out.
    assert totals(cli, *again) == {"crash": 3, "skip": 3}
    assert totals(cli, *again, "--exhaustive") == {"crash": 6}
    assert totals(cli, *words, "--exhaustive") == {"crash": 6}
    code, out, _ = cli("run", *words, "-n", 1, "--history", "none")
    assert code == 1
    assert (
        "skipped 3 cases: not run: 3 cases before it crashed in quantize_fp8/mine with the same reason (six["
        in " ".join(out.split())
    )
    assert "; --exhaustive runs it" in out


def test_each_shard_counts_for_itself(cli: Cli, tmp_path: Path, plugin: Callable[[str], Path]) -> None:
    folder = tmp_path / "eight"
    folder.mkdir()
    live = "[1, 2, 3, 4, 5, 6, 7, 8]"
    (folder / "eight.yaml").write_text(
        SCENARIO.format(name="eight").replace("[torch, torch-fmax]", "[torch]").replace("[1, 8]", live)
    )
    path = plugin("raise RuntimeError('no')")
    words = ("--plugin", path, "--kernel", "mine", "--scenarios", folder)
    assert totals(cli, *words, "--shard", "1/2") == {"crash": 3, "skip": 1}
