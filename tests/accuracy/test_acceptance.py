"""Accepted drafts of a server beside its accuracy: counted by epoch, printed, and judged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.accuracy.acceptance import Drafts, acceptance_in_words, drafts_in, read_drafts
from harness.accuracy.answer_log import read_run
from harness.accuracy.baselines import BaselineChange, plan_update, write_baseline
from harness.accuracy.cache_hits import Hits, hits_in, keep_hits, read_hits
from harness.accuracy.script_check import Judged
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.records import Verdict
from harness.store.epochs import judged
from harness.store.run_folder import RunStore
from tests.accuracy.conftest import write_questions
from tests.accuracy.test_repeats import ASK
from tests.conftest import Cli
from tests.transcripts import Approved


def test_the_counters_of_all_engines_of_vllm_are_added(approved: Approved) -> None:
    text = "".join(
        f'vllm:spec_decode_num_{kind}_tokens_total{{engine="{engine}"}} {count}\n'
        for kind, count in (("draft", "1e+02"), ("accepted", "37.0"))
        for engine in (0, 1)
    )
    assert drafts_in(text) == Drafts(200, 74)
    assert drafts_in("vllm:num_requests_running 1.0\nsglang:spec_accept_length 2.5\n") is None
    approved(acceptance_in_words([Drafts(200, 74), Drafts(0, 0)]))


def test_hits_are_counted_from_the_metrics_of_both_engines(tmp_path: Path) -> None:
    vllm = "vllm:prefix_cache_queries_total{} 100.0\nvllm:prefix_cache_hits_total 40\n"
    sglang = 'sglang:prompt_tokens_total{a="b"} 8e1\nsglang:cached_tokens_total{a="b"} 20.0\n'
    assert (hits_in(vllm), hits_in(sglang)) == (Hits(100, 40), Hits(80, 20))
    assert hits_in("vllm:prefix_cache_hits_total 40\n") is None
    keep_hits(tmp_path, 1, Hits(100, 40).since(Hits(50, 10)))
    keep_hits(tmp_path, 2, Hits(10, 0).since(Hits(100, 40)))
    assert read_hits(tmp_path) == {1: Hits(50, 30)}, "a restarted server's counts say nothing"


def test_places_of_refused_drafts_are_kept_by_epoch(tmp_path: Path) -> None:
    epoch = Drafts(9, 6, tuple("abcdef")).since(Drafts(3, 2, ("a",)))
    assert epoch == Drafts(6, 4, tuple("bcdef"))
    (tmp_path / "acceptance.json").write_text('{"1": [3, 2, []], "2": [6, 4, ["b"]]}')
    assert read_drafts(tmp_path) == {1: Drafts(3, 2), 2: Drafts(6, 4, ("b",))}


def test_serve_check_prints_the_share_of_accepted_drafts(approved: Approved) -> None:
    events = {"spec_decode_num_draft_tokens": 10, "spec_decode_num_accepted_tokens": 4}
    approved(Judged("m", "s", events=events).lines())
    assert not any(line.startswith("drafts") for line in Judged("m", "s").lines())


@pytest.mark.parametrize(
    ("accepted", "verdict"), [(9, Verdict.PASS), (4, Verdict.FAIL), (0, Verdict.FAIL)]
)
def test_serve_check_fails_below_the_least_share_of_drafts(accepted: int, verdict: Verdict) -> None:
    events = {"spec_decode_num_draft_tokens": 10, "spec_decode_num_accepted_tokens": accepted}
    shown = Judged("m", "s", events=events, num_tokens=1)
    shown.judge_drafts(0.8)
    assert shown.verdict is verdict
    silent = Judged("m", "s", num_tokens=1)
    silent.judge_drafts(0.8)
    assert silent.verdict is Verdict.SKIP and "count no drafts" in silent.reason


@pytest.mark.nightly
def test_an_epoch_that_refuses_drafts_fails_though_all_answers_are_right(
    start_server: Callable[..., str], cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    url = start_server("drafting_server.py", "[0.9, 0.0]")
    write_questions(tmp_path, 2)
    code, out, _ = cli(
        *ASK, f"server:{url}", "--data-dir", tmp_path, "--epochs", 2, "--least-acceptance", 0.8
    )
    assert code == 1
    assert "0.9000, 0.0000" in out and "200, 200" in out
    (run,) = (tmp_path / "reports" / "runs").iterdir()
    (result,) = RunStore.open(run).results()
    assert result.accuracy is not None and [epoch.accuracy for epoch in result.accuracy.epochs] == [
        1.0,
        1.0,
    ]
    assert read_hits(run) == {1: Hits(80, 30), 2: Hits(80, 60)}
    found = [finding for finding in result.findings if finding.oracle == "acceptance"]
    assert [(finding.where, finding.cause) for finding in found] == [("epoch 2", Code.DROP)]
    assert result.looked_at["acceptance"] == 400
    with approved.raises(InputError):
        change = plan_update(read_run(run), tmp_path)
        assert change.new.acceptance == 0.9
        older = change.new.model_copy(update={"acceptance": 0.96})
        stored = write_baseline(BaselineChange(change.path, None, older, (), (), (), ()))
        write_baseline(plan_update(read_run(run), tmp_path))
    (run / "baseline").mkdir()
    shutil.copy(stored, run / "baseline")
    below = [
        finding.message
        for finding in judged(RunStore.open(run)).findings
        if finding.oracle == "acceptance"
    ]
    approved(below)
    (run / "acceptance.json").unlink()
    missing = [
        finding for finding in judged(RunStore.open(run)).findings if finding.oracle == "acceptance"
    ]
    assert [finding.cause for finding in missing] == [Code.INCOMPLETE]
