"""tools/survey_document.py: what a survey's page says of combinations, refusals and the options that fail together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.core.cases import Case, Job
from harness.core.records import CaseResult, Finding, Verdict
from harness.engines.vllm.params import VllmParams
from harness.store.run_folder import RunStore

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"engines": {"vllm": "0.33.0"}, "gpus": [{"name": "H200", "uuid": "", "memory_bytes": 1}], "torch": "2.14"}


def stored(folder: Path, *rows: tuple[Verdict, str, dict[str, Any]]) -> RunStore:
    """A run of one combination for each row: its verdict, its words, its options."""
    cases = [
        Case(id=f"s[{number}]", scenario="s", system="vllm", params=VllmParams(**options))
        for number, (_, _, options) in enumerate(rows)
    ]
    jobs = [Job(key=case.id, case=case) for case in cases]
    store = RunStore.create(folder, jobs, command="survey", options={})
    store.note_environment(MACHINE)
    for job, (verdict, words, _) in zip(jobs, rows, strict=True):
        findings = (Finding(oracle="crash", message=words),) if verdict is Verdict.CRASH else ()
        store.add(CaseResult.of(job, verdict, reason=words, findings=findings))
    return store


def test_the_page_names_refusals_the_options_of_a_crash_and_a_second_run(tmp_path: Path) -> None:
    crash = "ended: AssertionError: no"
    bad = {"canary": "hybrid", "kv": "fp8_e4m3"}
    store = stored(
        tmp_path / "first",
        (Verdict.PASS, "", {}),
        (Verdict.PASS, "", {"canary": "hybrid"}),
        (Verdict.PASS, "", {"kv": "fp8_e4m3", "runner": "v2"}),
        (Verdict.SKIP, "vLLM refuses these options: no", {"runner": "v2"}),
        (Verdict.CRASH, crash, {**bad, "runner": "v2"}),
        (Verdict.CRASH, crash, {**bad, "graph": "full"}),
    )
    one = {
        "options": {"kv": "fp8_e4m3"},
        "combinations": ["s[4]"],
        "trials": 3,
        "is_smallest": True,
        "command": "serve",
    }
    (store.path / "survey.json").write_text(json.dumps([one]))
    again = stored(tmp_path / "again", *[(Verdict.CRASH, crash, bad)] * 5)
    command = [sys.executable, "tools/survey_document.py", str(store.path), "--again", str(again.path)]
    page = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "| 6 | 6 | 0 | 0 | 2 | 1 | 3 |" in page, "a result without answers is not judged"
    assert "| 1 | vLLM refuses these options: no |" in page
    assert "2 combinations with `kv=fp8_e4m3` `canary=hybrid` fail alike (crash, AssertionError)" in page
    assert "vllm serve fixtures/canary-hybrid" in page and "--kv-cache-dtype fp8" in page
    assert "1 not right with `kv=fp8_e4m3`, after 3 trials:" in page
    assert f"| `s[4]` | crash | crash | {crash} |" in page and f"| `s[5]` | crash |  | {crash} |" in page
