"""`mla-harness judge`: a right kernel, a cheat, a file without a decorator, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import GOOD_BODY, PLUGIN
from tests.conftest import Cli
from tests.transcripts import Approved, lines_with

CHEATS = Path(__file__).parents[2] / "trust" / "cheats" / "kernels.py"
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


@pytest.mark.parametrize("name", ["query_alone", "equal_to_anything", "replaced_verdict"])
def test_a_cheat_is_red(cli: Cli, name: str, tmp_path: Path) -> None:
    code, out, _ = cli(
        "judge", f"{CHEATS}:{name}", PLAIN, "influence-decode", "--seed", 5, "--out", tmp_path
    )
    assert code == 1 and ("FAIL" in out or "CRASH" in out)


def test_a_kernel_that_ignores_the_cache_is_said_to(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli(
        "judge", f"{CHEATS}:query_alone", "influence-decode", "--json", "--out", tmp_path
    )
    assert code == 1
    results = next(tmp_path.glob("*/results.jsonl")).read_text().splitlines()
    found = [one for line in results for one in json.loads(line)["findings"]]
    causes = {one["cause"] for one in found if one["oracle"] == "insensitive"}
    assert causes == {"cheats"}, out


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
