"""tools/vllm_sequences.py on a stand-in for vLLM: the table, and a server that ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("httpx")

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).parent / "fake"


def tool(out: Path, bugs: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "vllm_sequences.py"), "run", "--release", f"0.22.1={FAKE}"]
    environment = os.environ | {"FAKE_VLLM": bugs, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--settings", "full graphs, drafts", "--out", str(out), *words],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip


SCRIPTS = ("cache-reuse", "lengths", "abort", "reload", "sleep", "preempt")


def test_a_sound_release_has_a_row_for_each_script(tmp_path: Path) -> None:
    done = tool(tmp_path, "")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "sequences.json").read_text())
    assert [(row["script"], row["verdict"]) for row in rows] == [(name, "pass") for name in SCRIPTS]
    assert "\n| release | settings | script | verdict | answers |" in done.stdout
    assert "| 0.22.1 | full graphs, drafts | preempt | pass | " in (tmp_path / "sequences.md").read_text()


def test_a_release_that_does_not_start_is_one_row(tmp_path: Path) -> None:
    done = tool(tmp_path, "refuses")
    assert done.returncode == 1 and "| all | crash |" in done.stdout
    assert "vllm serve was never ready, it ended with exit code 1" in done.stdout
    assert "this vLLM refuses to start" in next(tmp_path.glob("*.log")).read_text()


@pytest.mark.nightly
def test_after_a_server_that_ends_another_takes_the_scripts_that_are_left(tmp_path: Path) -> None:
    done = tool(tmp_path, "dies-of-preemption", "--script", "cache-reuse", "--script", "sleep", "--script", "preempt")
    rows = {row["script"]: row for row in json.loads((tmp_path / "sequences.json").read_text())}
    assert done.returncode == 1 and [row["verdict"] for row in rows.values()] == ["crash", "pass", "crash"]
    assert "vllm serve ended with exit code 7 while it was asked" in rows["preempt"]["reason"]


def test_the_page_has_the_releases_side_by_side(tmp_path: Path) -> None:
    page, files = tmp_path / "page.md", [tmp_path / "a.json", tmp_path / "b.json"]
    page.write_text("# Page\n\n## Seen\n\nof before\n\n## Own\n\nkept\n")
    passed = {"verdict": "pass", "num_tokens": 8, "num_answers": 1, "ties": [], "drift": 0.1, "seconds": 2.0}
    row = {"release": "0.30.0", "settings": "eager", "script": "preempt", "events": {"num_preemptions": 3}}
    failed = {"verdict": "fail", "reason": "1 differences", "release": "0.33.0"}
    files[0].write_text(json.dumps([row | passed | failed, row | {"verdict": "crash", "reason": "of before"}]))
    files[1].write_text(json.dumps([row | passed]))
    command = [sys.executable, str(ROOT / "tools" / "vllm_sequences.py"), "render", *map(str, files)]
    subprocess.run([*command, "--docs", str(page)], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    text = page.read_text()
    assert "| settings | script | 0.30.0 | 0.33.0 |" in text and text.endswith("\n\n## Own\n\nkept\n")
    cells = "8 tokens, 0 ties, drift 0.100, 3 preempted, 2.0 s"
    assert f"| eager | preempt | pass: {cells} | fail: {cells} |" in text
    assert "- 0.33.0, eager, preempt: 1 differences" in text and "of before" not in text


@pytest.mark.nightly
def test_a_bug_and_what_is_not_shown_are_named_under_the_table(tmp_path: Path) -> None:
    done = tool(tmp_path, "no-prefix-cache")
    assert done.returncode == 2
    assert "0.22.1, full graphs, drafts, cache-reuse: not shown: step 1 (A B A): no page came" in done.stdout
