"""What is counted of a serving run, and a planted bug for each count that is not kept."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from torch_poison.patterns import Poison

from harness.core.cases import Job
from harness.core.engine_params import EngineParams
from harness.engine.engine import ReferenceEngine
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import model_config
from harness.engine.schedule.sequence import Sequence
from harness.judge.probes.notes import Notes
from harness.judge.run_case import run_case
from harness.judge.targets import serving
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select

from .planted_sequences import MISSED, PLANTED, Planted, cases, catchers, plant  # type: ignore[import-not-found]

AFTER, BEFORE = cases()
BUGS = {bug.name: bug for bug in PLANTED}
PAGE = Path(__file__).parents[2] / "docs" / "data" / "sequences.md"
TABLE = PAGE.with_suffix("") / "sequences.csv"


@pytest.mark.first(8)
@pytest.mark.parametrize("name", BUGS)
def test_each_planted_bug_is_caught_by_the_case_that_it_names(name):
    with plant(BUGS[name]):
        assert catchers(AFTER[BUGS[name].shown_by])
    assert not catchers(AFTER[BUGS[name].shown_by])


def test_the_page_has_every_planted_bug_and_most_were_missed_before():
    text = TABLE.read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["bug"] for row in rows} == set(BUGS)
    assert sum(MISSED.search(row["before"]) is not None for row in rows) >= 25
    assert "NOT CAUGHT" not in text + PAGE.read_text(encoding="utf-8") and len(BEFORE) > 150


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("preempted-leaks-its-last-page", "blocks that are free or owned"),
        ("preempted-leaks-its-last-page", "owners of blocks"),
        ("abort-leaks-pages", "free blocks after the last request"),
        ("abort-leaves-the-request-waiting", "tokens of request"),
        ("last-token-missing", "tokens of request"),
        ("preempted-answers-again-from-the-prompt", "rows of logits of request"),
        ("last-to-arrive-is-first", "requests that run while an earlier one waits"),
        ("first-to-arrive-is-preempted", "requests that run while an earlier one waits"),
        ("one-request-too-many", "requests above max_num_seqs"),
        ("budget-counts-requests", "tokens above max_batched_tokens"),
        ("last-page-is-never-given", "requests that did not end"),
    ],
)
def test_each_count_that_is_not_kept_is_named(name, broken):
    with plant(BUGS[name]):
        findings = run_case(Job(key="job", case=AFTER[BUGS[name].shown_by])).findings
    assert any(
        finding.oracle in ("conserved", "policy") and finding.tensor.startswith(broken)
        for finding in findings
    )


@pytest.mark.parametrize(
    "name", ["second-best-token", "tokens-of-two-requests-swapped", "token-of-the-step-before"]
)
def test_tokens_sees_another_token_than_the_largest_logit(name):
    with plant(BUGS[name]):
        assert catchers(AFTER[BUGS[name].shown_by])[0] == "tokens"


@pytest.fixture
def engine():
    """An engine with two running requests of a page and more each."""
    params = EngineParams(
        layers=("mla",), kv="fp32", requests=((70, 9), (70, 9)), max_batched_tokens=256
    )
    model = CausalLM(model_config(params)).reset_parameters(0).eval().requires_grad_(False)
    poison = Poison("nan", frozenset())
    made = ReferenceEngine(model, params, poison, 100, Notes(params, poison))
    for first in (1, 2):
        made.add_request([first] * 70, 9)
    made.step()
    return made


def broken(engine):
    return {
        count.name
        for count in serving._counts_of_step(engine, engine.probe.answers)
        if count.found != count.expected
    }


def test_a_sound_step_keeps_every_count(engine):
    assert broken(engine) == set()


def test_a_block_that_is_free_and_owned_is_counted(engine):
    engine.pool.free([engine.scheduler.running[0].blocks[0]])
    assert broken(engine) == {"blocks that are free twice, or free and owned", "owners of blocks"}


def test_a_page_that_two_requests_write_to_is_counted(engine):
    first, second = engine.scheduler.running
    engine.pool.free([second.blocks[1]])
    second.blocks[1] = first.blocks[1]
    engine.pool.share([first.blocks[1]])
    assert broken(engine) == {"blocks with two owners and different tokens"}


@pytest.mark.parametrize(
    ("tokens", "computed", "is_torn"), [(1, 64, False), (2, 64, True), (1, 63, True)]
)
def test_two_requests_may_share_a_full_page_with_the_same_tokens(tokens, computed, is_torn):
    first, second = (Sequence(number, [fill] * 70, 1) for number, fill in enumerate((1, tokens)))
    for sequence in (first, second):
        sequence.blocks, sequence.num_computed_tokens = [7], computed
    assert (serving.torn_blocks([first, second], {7}) == {7}) is is_torn


def test_a_state_has_one_owner():
    first, second = (Sequence(number, [1] * 70, 1, state_block=7) for number in range(2))
    assert serving.torn_blocks([first, second], {7}) == {7}


def test_a_flush_that_keeps_the_cache_is_counted():
    keeps = Planted(
        "flush-keeps-the-cache",
        "harness.engine.engine:ReferenceEngine.flush",
        "self.runner.clear(self.pool.flush())",
        "pass",
        "prefix-cache",
    )
    case = select(load_scenarios(None), ["prefix-cache"])[0]
    assert "conserved" not in catchers(case)
    with plant(keeps):
        assert "conserved" in catchers(case)
