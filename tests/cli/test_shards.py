"""Two shards of a real run, merged, find the same as one run of two processes: equal canonical
lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "fixtures" / "kernels"
Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", ["multiplies-tail", "segfaults"])
def test_merged_shards_find_the_same_as_one_run_of_two_processes(
    cli: Cli, kernel: str, tmp_path: Path
) -> None:
    # A case for each shard.
    cases = [f"decode-kernel[kernel={kernel},kv={kv},planned=planned]" for kv in ("fp32", "bf16")]
    out = ("--out", tmp_path)

    def folder(*words: object) -> str:
        code, text, error = cli(*words, *out)
        assert code == 1, error
        return re.findall(r"^report: (.*)/report\.html$", text, re.MULTILINE)[-1]

    run = ("run", *cases, "--plugin", KERNELS / f"{kernel.replace('-', '_')}.py")
    whole = folder(*run, "-n", "2")
    merged = folder("merge", *(folder(*run, "-n", "1", "--shard", part) for part in ("1/2", "2/2")))
    _, expected, _ = cli("report", whole, "--canonical")
    assert cli("report", merged, "--canonical") == (0, expected, "")
    assert [bool(json.loads(line)["blame"]) for line in expected.splitlines()] == [True, True]


def test_shards_in_one_folder_are_cut_alike_as_they_do_not_know_of_each_other(
    cli: Cli, scenarios: Path
) -> None:
    options = ("--scenarios", scenarios, "-n", 1, "--out", "shards")
    assert cli("run", *options)[0] == 0
    (whole,) = Path("shards").iterdir()
    for part in ("1/2", "2/2"):
        assert cli("run", "--shard", part, *options)[0] == 0
    shards = [path for path in Path("shards").iterdir() if path != whole]
    code, out, err = cli("merge", *shards)
    assert (code, err) == (0, "") and "6 pass in" in out
