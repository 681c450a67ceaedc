"""The page of `history --html`: what changed, at which run, and links to the pages of the runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.main import app
from harness.core import extras
from harness.report.history_page import render
from harness.store.history.entry import Covered, Entry, RunEntry
from harness.store.history.trends import trends_over
from harness.store.source import Source
from tests.report.answered_runs import HOSTILE, answered

CASE = "kv-cache-full[kv=bf16]"


def run_of(
    number: int,
    accuracy: float,
    *,
    seconds: float = 60.0,
    bad: int = 0,
    fault: str = "",
    pairs: int = 0,
) -> RunEntry:
    """A run of five cases; a self-test if it has the outcome of a fault; `pairs` of 100 shown."""
    entries = [
        Entry(CASE, "kv-cache-full", "pass", accuracies=(1.0, accuracy)),
        *(Entry(f"a[n={n}]", "a", "fail" if n < bad else "pass") for n in range(4)),
        *([Entry(f"{CASE}!kv.skip-zero-new-blocks", "kv-cache-full", fault)] if fault else []),
    ]
    return RunEntry(
        run_id=f"202611{number + 1:02}T010203Z-abcd",
        started=f"2026-11-{number + 1:02}T01:02:03+00:00",
        seconds=seconds,
        source=Source(commit=f"{number:040x}", branch=HOSTILE),
        folder="/nowhere",
        command=f"mla-harness run --seed {number} {HOSTILE}",
        entries={one.key: one for one in entries},
        coverage=(Covered("mla_decode", (pairs, 100), (pairs, 200)),) if pairs else (),
    )


def test_a_step_of_accuracy_is_told_with_its_run_and_commit(tmp_path: Path) -> None:
    runs = [run_of(n, 0.95 if n < 12 else 0.60) for n in range(20)]
    text = render(trends_over(runs), tmp_path)
    assert re.search(r"Since run 20261113T010203Z-abcd \(commit 0000000\)", text)
    assert "is 0.6000, before it was 0.9500" in text
    assert text.count('class="dot marked"') == 1
    assert HOSTILE not in text, "a branch's name and a command are text"
    assert ">run --seed 19 " in text and "mla-harness run --seed" not in text


def test_a_step_of_seconds_is_told_and_noise_is_not(tmp_path: Path) -> None:
    slow = [run_of(n, 0.9, seconds=60.0 + n % 3 + 40 * (n >= 10)) for n in range(20)]
    assert "Since run 20261111T010203Z-abcd" in render(trends_over(slow), tmp_path)
    even = [run_of(n, 0.9, seconds=60.0 + n % 3) for n in range(20)]
    assert "Since run" not in render(trends_over(even), tmp_path)


def test_the_newest_run_is_the_headline_and_faults_are_counted_apart(tmp_path: Path) -> None:
    runs = [run_of(0, 0.9), run_of(1, 0.9, bad=2), run_of(2, 0.9, fault="caught")]
    text = render(trends_over(runs), tmp_path)
    assert "In the newest run 2 cases fail; 1 of 1 injected bug caught" in text
    assert text.count('class="part caught"') == 1 and text.count('class="bar-of"') == 2
    assert "Injected bugs" not in render(trends_over(runs[:2]), tmp_path)


def test_a_bug_that_the_newest_self_test_missed_makes_the_page_red(tmp_path: Path) -> None:
    for outcome, verdict in (("caught", "pass"), ("missed", "fail"), ("wrong-blame", "fail")):
        text = render(trends_over([run_of(0, 0.9, fault=outcome), run_of(1, 0.9)]), tmp_path)
        assert f'<section id="verdict" class="{verdict}"' in text, outcome


def test_coverage_is_drawn_and_a_step_of_it_is_told(tmp_path: Path) -> None:
    runs = [run_of(n, 0.9, pairs=100 if n < 10 else 94) for n in range(20)]
    text = render(trends_over(runs), tmp_path)
    told = "passing calls show 94.0 % of the pairs, before they showed 100.0 %"
    assert f"Since run 20261111T010203Z-abcd (commit 0000000) {told}" in text
    assert 'class="key s2">triples' in text
    for others in ([run_of(n, 0.9) for n in range(3)], runs):
        name = "" if others is not runs else "a"
        assert "Conditions that passing calls" not in render(trends_over(others), tmp_path, name)


def test_one_scenario_counts_its_own_cases(tmp_path: Path) -> None:
    runs = [run_of(0, 0.9, bad=2), run_of(1, 0.9, bad=2)]
    text = render(trends_over(runs, "kv-cache-full"), tmp_path, "kv-cache-full")
    assert "the one case that could be judged passes" in text


def test_without_the_package_of_the_search_the_page_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = extras.importlib.util.find_spec
    monkeypatch.setattr(
        extras.importlib.util, "find_spec", lambda name: None if name == "ruptures" else find(name)
    )
    text = render(trends_over([run_of(n, 0.9) for n in range(8)]), tmp_path)
    assert "Steps are not marked" in text and "reports" in text


def test_the_command_writes_a_page_that_links_the_pages_of_the_runs(tmp_path: Path) -> None:
    for accuracy in (["yes"] * 8, ["yes"] * 8):
        store = answered(tmp_path / "runs", [accuracy, accuracy])
        (store.path / "summary.json").write_text(json.dumps(_summary(store.path.name)))
        (store.path / "report.html").write_text("a page")
    page = tmp_path / "site" / "index.html"
    page.parent.mkdir()
    done = CliRunner().invoke(
        app, ["history", "--history", str(tmp_path / "runs"), "--html", str(page)]
    )
    assert done.exit_code == 0, done.output
    links = re.findall(r'href="(\.\./runs/[^"]+)"', page.read_text())
    assert len(links) == 2 and all((page.parent / link).is_file() for link in links)


def _summary(run_id: str) -> dict[str, object]:
    return {
        "run_id": run_id,
        "started": "2026-11-26T00:00:00+00:00",
        "seconds": 1.0,
        "environment": {},
        "source": {},
        "cases": [
            {
                "id": "a",
                "scenario": "a",
                "verdict": "pass",
                "seconds": 1.0,
                "reason": "",
                "findings": [],
                "seed": 0,
                "device": "cpu",
                "blamed": [],
            }
        ],
        "faults": [],
        "accuracy": [],
    }


def test_pages_of_comparisons_and_releases_beside_it_are_linked(tmp_path: Path) -> None:
    runs = trends_over([run_of(0, 0.9)])
    assert "compare.html" not in render(runs, tmp_path)
    for name in ("compare.html", "bisect-vllm-host.html", "notes.html"):
        (tmp_path / name).write_text("x")
    text = render(runs, tmp_path)
    assert 'href="compare.html"' in text and 'href="bisect-vllm-host.html"' in text
    assert "notes.html" not in text
