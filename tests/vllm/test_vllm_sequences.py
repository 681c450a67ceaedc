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
    command = [sys.executable, str(ROOT / "tools" / "vllm_sequences.py"), "--release", f"0.22.1={FAKE}"]
    environment = os.environ | {"FAKE_VLLM": bugs, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--settings", "full graphs, drafts", "--out", str(out), *words],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip


def test_a_sound_release_has_a_row_for_each_script(tmp_path: Path) -> None:
    done = tool(tmp_path, "")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "sequences.json").read_text())
    assert [(row["script"], row["verdict"]) for row in rows] == [
        (name, "pass") for name in ("abort", "cache-reuse", "lengths", "preempt", "reload", "sleep")
    ]
    assert done.stdout.startswith("| release | settings | script | verdict | answers |")
    assert "| 0.22.1 | full graphs, drafts | preempt | pass | " in (tmp_path / "sequences.md").read_text()


def test_a_release_that_does_not_start_is_one_row(tmp_path: Path) -> None:
    done = tool(tmp_path, "refuses")
    assert done.returncode == 1 and "| all | crash |" in done.stdout
    assert "vllm serve was never ready, it ended with exit code 1" in done.stdout
    assert "this vLLM refuses to start" in next(tmp_path.glob("*.log")).read_text()


@pytest.mark.nightly
def test_a_server_that_ends_is_started_again_for_each_script(tmp_path: Path) -> None:
    done = tool(tmp_path, "dies-of-preemption")
    rows = {row["script"]: row["verdict"] for row in json.loads((tmp_path / "sequences.json").read_text())}
    assert done.returncode == 1 and "one server for each script" in done.stderr
    assert (rows["preempt"], rows["sleep"]) == ("crash", "pass")


@pytest.mark.nightly
def test_a_bug_and_what_is_not_shown_are_named_under_the_table(tmp_path: Path) -> None:
    done = tool(tmp_path, "no-prefix-cache")
    assert done.returncode == 2
    assert "0.22.1, full graphs, drafts, cache-reuse: not shown: step 1 (A B A): no page came" in done.stdout
