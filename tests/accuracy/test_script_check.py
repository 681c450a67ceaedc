"""`serve-check` by a script: what its result says to whoever started the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.accuracy.script_check import CACHE_IS_OFF, Judged, ScriptCheck, check_script
from harness.cli.main import exit_code_of
from harness.core.findings import Finding
from harness.run.scripts import load_script
from tests.waiting import HANG_SECONDS

Serve = Callable[..., str]
START = "sequence_server.py"


@pytest.mark.parametrize(
    ("words", "notes"),
    [(("no-prefix-cache",), [CACHE_IS_OFF]), (("short",), [])],
)
def test_a_prefix_cache_that_is_off_is_told_from_one_that_was_not_hit(
    start_server: Serve, words: tuple[str, ...], notes: list[str]
) -> None:
    script = load_script("cache-reuse")
    url = start_server(START, *words)
    judged = check_script(ScriptCheck(url=url, script=script, timeout=HANG_SECONDS))
    assert judged.verdict == "skip" and judged.notes == notes


def test_a_single_difference_is_not_said_as_several() -> None:
    judged = Judged("toy", "abort", findings=[Finding(oracle="sequences", where="x", message="y")])
    assert judged.reason == "1 difference; first x: y"
    judged.findings *= 2
    assert judged.reason == "2 differences; first x: y"


def test_the_run_of_a_server_keeps_the_commit_that_was_checked(
    start_server: Serve, tmp_path: Path
) -> None:
    words = ["serve-check", start_server(START), "--script", "abort", "--commit", "abc1234"]
    assert exit_code_of([*words, "--out", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "run.json").read_text())["source"]["commit"] == "abc1234"
    assert json.loads((run / "summary.json").read_text())["source"]["commit"] == "abc1234"
