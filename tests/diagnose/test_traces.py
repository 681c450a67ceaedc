"""Drawn traces against the server with pages: bugs are found, shrunk and exported; near ties are no
bugs.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.script import PagePool, Script, ScriptStep, StepRequest, requests_of
from harness.cli.main import exit_code_of
from harness.diagnose.traces import TraceCheck, TraceDraws, answer, drawn_step, smaller
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS

pytest.importorskip("httpx")

START = "sequence_server.py"


def found_by(url: str, **more: Any) -> dict[str, Any]:
    return answer(
        TraceCheck(url=url, timeout=HANG_SECONDS, **{"fuzz": 12, "shrink_seconds": 0.0, **more})
    )["found"]


@pytest.mark.nightly
def test_a_long_check_says_how_far_it_is(
    start_server: Callable[..., str], approved: Approved
) -> None:
    said: list[dict[str, Any]] = []
    answer(TraceCheck(url=start_server(START), timeout=HANG_SECONDS, fuzz=21), said.append)
    approved([one["words"] for one in said])


@pytest.mark.parametrize("pool", [PagePool(4, 24), PagePool(16, 40), PagePool(64, 4000)])
def test_each_drawn_request_fits_the_pool(pool: PagePool) -> None:
    lengths = set()
    for seed in range(200):
        step = drawn_step(random.Random(seed), pool)
        for request in requests_of(Script(name="fuzz", summary="", steps=(step,)), step, pool):
            assert (
                len(request.prompt) >= 1
                and len(request.prompt) + request.max_tokens <= pool.page * pool.num_pages
            )
            lengths.add(len(request.prompt))
    assert {pool.page - 1, pool.page, pool.page + 1} <= lengths
    assert pool.num_pages < 1000 or {511, 512, 513, 2047, 2049} <= lengths


def test_a_seed_and_what_was_seen_decide_the_trace() -> None:
    one, other = TraceDraws(3, PagePool(4, 24)), TraceDraws(3, PagePool(4, 24))
    assert [one.next(number) for number in range(5)] == [other.next(number) for number in range(5)]
    kept = Script(name="fuzz", summary="", steps=(ScriptStep(ask=("a:77",)),))
    other.kept[frozenset({"hits"})], other.seen[frozenset({"hits"})] = kept, 1
    assert any(kept.steps[0] in other.next(number).steps for number in range(9))


def test_adapters_and_schemas_leave_the_rest_of_a_draw_as_it_was() -> None:
    more = {"models": ["alpha"], "schemas": ["flag", "number"]}
    plain, other = TraceDraws(3, PagePool(4, 24)), TraceDraws(3, PagePool(4, 24), more=more)
    traces = [(plain.next(number), other.next(number)) for number in range(20)]
    steps = [step for _, trace in traces for step in trace.steps]
    for old, trace in traces:
        assert (
            trace.but(steps=tuple(step.but(models=(), schemas=()) for step in trace.steps)) == old
        )
    for name, known in more.items():
        drawn = {value for step in steps for value in getattr(step, name)}
        assert drawn == {None, *known} and not all(getattr(step, name) for step in steps)
    assert Script.model_validate(traces[0][1].model_dump(mode="json")) == traces[0][1]


def test_a_smaller_trace_keeps_what_belongs_to_a_request() -> None:
    given = {"together": True, "max_tokens": "8", "abort_after": (None, 3), "arrive_ms": (0, 5)}
    step = ScriptStep(
        ask=("a:1p s:3", "b:2p"), models=(None, "alpha"), schemas=("flag", "number"), **given
    )
    trace = Script(name="fuzz", summary="", steps=(step, ScriptStep(ask=("c:1",), max_tokens="1")))
    found = [one.steps for one in smaller(trace)]
    assert (step,) in found and (trace.steps[1],) in found
    given |= {"abort_after": (3,), "arrive_ms": (5,)}
    alone = ScriptStep(ask=("b:2p",), models=("alpha",), schemas=("number",), **given)
    assert (alone, trace.steps[1]) in found
    assert any(steps[0].ask == ("s:3", "b:2p") for steps in found) and any(
        not steps[0].together for steps in found
    )


@pytest.mark.parametrize(
    ("text", "num_tokens", "is_obeyed"),
    [
        ('{ "flag": true }', 9, True),
        ('{"fl', 9, False),
        ('{"fl', 20, True),
        ('"red"', 20, False),
        ("", 20, True),
    ],
)
def test_an_answer_obeys_its_schema_as_a_whole_or_as_far_as_its_budget(
    text: str, num_tokens: int, is_obeyed: bool
) -> None:
    assert (
        StepRequest("a:1", (17,), 20, "own", schema="flag").obeyed_by(text, num_tokens) == is_obeyed
    )


@pytest.mark.parametrize(
    ("text", "num_tokens", "before"),
    [
        ('a prompt{"flag":true}', 4, "a prompt"),
        ('a prompt{"fl', 3, "a prompt"),
        # The token that ends the answer has no text.
        ('a prompt{"flag":true}', 14, "a prompt"),
        ('a prompt{"flag":true}', 15, ""),
        # Of a neighbour's schema, and of no schema.
        ('"red"', 3, ""),
        ('"', 1, ""),
        ("a prompt", 3, ""),
        ("", 3, ""),
    ],
)
def test_text_before_an_answer_is_told_from_an_answer_of_another_schema(
    text: str, num_tokens: int, before: str
) -> None:
    request = StepRequest("a:1", (17,), 3, "own", schema="flag")
    assert request.text_before(text, num_tokens) == before


@pytest.mark.nightly
def test_a_prompt_in_the_text_of_an_answer_is_told_once_and_the_traces_go_on(
    start_server: Callable[..., str],
) -> None:
    """vllm-project/vllm#48853: the tokens are right, so later traces show as much as before."""
    found = found_by(start_server(START, "prompt-in-text"), fuzz=12)
    assert (found["verdict"], len(found["findings"])) == ("fail", 1)
    assert "characters stand before the answer that obeys the schema" in found["findings"][0]
    assert any("12 traces by the counters" in note for note in found["notes"])
    both = found_by(start_server(START, "prompt-in-text", "loses-last-token"), fuzz=12)
    assert " tokens instead of " in " ".join(both["findings"])


# How small a trace gets in two seconds depends on the machine. A search that ends by itself gets it
# to eight.
@pytest.mark.parametrize(
    ("seconds", "most"), [("2", 20), pytest.param(str(HANG_SECONDS), 8, marks=pytest.mark.nightly)]
)
def test_a_bug_is_found_shrunk_and_shown_by_a_script_without_the_harness(
    start_server: Callable[..., str], tmp_path: Path, seconds: str, most: int, approved: Approved
) -> None:
    url, runs = start_server(START, "loses-last-token"), tmp_path / "runs"
    assert (
        exit_code_of(
            ["serve-check", url, "--fuzz", "9", "--shrink-seconds", seconds, "--out", str(runs)]
        )
        == 1
    )
    (folder,) = runs.iterdir()
    trace = json.loads((folder / "trace.yaml").read_text())
    assert sum(len(step["ask"]) for step in trace["steps"]) <= most
    shown = subprocess.run(
        [sys.executable, str(folder / "trace.py")], capture_output=True, text=True, cwd=tmp_path
    )
    assert shown.returncode == 1 and " tokens instead of " in shown.stdout
    assert "harness" not in (folder / "trace.py").read_text()
    sound = subprocess.run(
        [sys.executable, str(folder / "trace.py"), start_server(START)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert sound.returncode == 0
    approved(sound.stdout)


@pytest.mark.nightly
@pytest.mark.parametrize("more", [(), ("schemas",)])
def test_near_ties_are_no_bug(start_server: Callable[..., str], more: tuple[str, ...]) -> None:
    found = found_by(start_server(START, "near-tie", *more), fuzz=6)
    assert (found["verdict"], any("schema" in tie for tie in found["ties"])) == ("pass", bool(more))


@pytest.mark.nightly
def test_the_server_is_asked_for_its_adapters_and_schemas(
    start_server: Callable[..., str], approved: Approved
) -> None:
    found = found_by(start_server(START, "adapters", "schemas"), fuzz=3)
    assert (found["verdict"], found["script"]) == ("pass", "fuzz,seed=0,draws=2")
    approved(found["notes"][:2])
    found = found_by(start_server(START, "schemas", "ignores-schemas"), fuzz=1)
    assert (found["script"], "schemas" in " ".join(found["notes"])) == ("fuzz,seed=0", False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bug", "shown"),
    [
        ("grammar-of-neighbour", "does not obey the schema"),
        ("adapter-of-neighbour", " instead of "),
    ],
)
def test_a_grammar_and_an_adapter_of_another_request_are_found_and_shown_by_a_script(
    start_server: Callable[..., str], tmp_path: Path, bug: str, shown: str, approved: Approved
) -> None:
    found = found_by(start_server(START, bug), shrink_seconds=2.0)
    assert found["verdict"] == "fail" and shown in " ".join(found["findings"])
    (tmp_path / "trace.py").write_text(found["python"])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "trace.py")], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1 and shown in done.stdout
    sound = start_server(START, "adapters", "schemas")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "trace.py"), sound], capture_output=True, text=True
    )
    assert done.returncode == 0
    approved(done.stdout)


@pytest.mark.nightly
def test_a_draw_keeps_to_the_length_of_the_model(start_server: Callable[..., str]) -> None:
    found = found_by(start_server(START, "short"), fuzz=4)
    assert (found["verdict"], found["not_shown"]) == ("pass", [])


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("bug", "failed", "answers"),
    [("drifts", "3 of 3", "1 diff"), ("alternates", "3 of 3", "2 diff")],
)
def test_a_trace_that_fails_says_how_often_and_what_its_requests_answer_alone(
    start_server: Callable[..., str], bug: str, failed: str, answers: str
) -> None:
    notes = " ".join(found_by(start_server(START, bug))["notes"])
    assert f"fails in {failed} tries" in notes and f"alone: {answers}" in notes
    assert ("nats: 8.900, 0.000" in notes or "; 8.900, 0.000" in notes) == (bug == "alternates")


@pytest.mark.parametrize(("server", "verdict"), [("refuses", "skip"), ("refuses-later", "fail")])
def test_traces_end_where_a_server_answers_no_more(
    start_server: Callable[..., str], server: str, verdict: str
) -> None:
    found = found_by(start_server(START, server), fuzz=40)
    told = [*found["not_shown"], *found["findings"]]
    assert found["verdict"] == verdict
    assert any("3 traces in a row had no answer to compare" in one for one in told)


def test_fuzz_stands_alone() -> None:
    assert (
        exit_code_of(["serve-check", "http://127.0.0.1:9/v1", "--fuzz", "3", "--script", "abort"])
        == 2
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "bug",
    [
        "hash-without-past",
        "found-after-eviction",
        "kept-after-preemption",
        "abort-keeps-slot",
        "prompt-as-decode",
        "drifts",
        "dies-of-preemption",
        "row-of-neighbour",
        "late-reads-short",
        "grammar-of-neighbour",
        "adapter-of-neighbour",
    ],
)
def test_each_planted_bug_is_found(start_server: Callable[..., str], bug: str) -> None:
    assert found_by(start_server(START, bug))["verdict"] == "fail"


@pytest.mark.nightly
@pytest.mark.parametrize("more", [(), ("adapters", "schemas")])
def test_a_sound_server_passes(start_server: Callable[..., str], more: tuple[str, ...]) -> None:
    found = found_by(start_server(START, *more), fuzz=30, seed=5)
    assert (found["verdict"], found["findings"], found["ties"]) == ("pass", [], [])
