"""One root cause is one block, in the terminal, on the page and in Markdown; one finding is one
fact.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, FirstNan, Shrunk, Verdict
from harness.diagnose.blame import NO_MEMORY, OUT_OF_TIME
from harness.report import markdown, page
from harness.report.causes import RootCause, causes, facts, kernel_of
from harness.report.console import console_for
from harness.report.progress import LiveProgress
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.store.run_folder import RunStore
from tests.transcripts import Approved, lines_with, page_text

NAN = Finding(oracle="finite", tensor="out", message="NaN in live rows of out: 12 elements")
OFF = Finding(oracle="reference", tensor="out", message="out differs from the float64 reference")
BLIND = Finding(
    oracle="non_interference", tensor="lse", cause="one_value", message="equal elements of lse"
)


def case(name: str, **params: object) -> Case:
    scenario = name.partition("[")[0]
    poison = PoisonPlan(sites=("kv.tail",))
    return Case(
        id=name, scenario=scenario, system="kernel", op="mla_decode", params=params, poison=poison
    )


def result(
    one: Case, *findings: Finding, verdict: Verdict = Verdict.FAIL, reason: str = ""
) -> CaseResult:
    found = (
        {"findings": findings, "reason": reason or findings[0].message}
        if findings or reason
        else {}
    )
    return CaseResult(key=one.id, id=one.id, scenario=one.scenario, verdict=verdict, **found)


def store_of(
    root: Path, results: Sequence[CaseResult], cases: Sequence[Case], **options: object
) -> RunStore:
    store = RunStore.create(
        root, [Job(key=one.id, case=one) for one in cases], command="x", options=dict(options)
    )
    for one in results:
        store.add(one)
    return store


def found(
    cases: Sequence[Case], results: Sequence[CaseResult], blames: dict[str, Blame]
) -> list[RootCause]:
    return causes(results, {one.id: Job(key=one.id, case=one) for one in cases}, blames)


def test_a_cause_joins_cases_of_several_scenarios_and_those_that_were_not_tried(
    approved: Approved,
) -> None:
    cases = [
        case(f"{name}[kernel=tiled,n={n}]", num_heads=n)
        for name in ("decode", "batches")
        for n in (4, 2, 8)
    ]
    blames = {
        cases[0].id: Blame(sites=("kv.tail",)),
        cases[4].id: Blame(sites=("kv.tail", "kv.new")),
    }
    (cause,) = found(cases, [result(one, NAN) for one in cases], blames)
    assert cause.scenarios == {
        "decode": 3,
        "batches": 3,
    }
    approved(cause.title)
    assert cause.sites == {"kv.tail"} and cause.num_blamed == 2
    approved(cause.blame_line)
    assert cause.first.id == "batches[kernel=tiled,n=2]"


@pytest.mark.parametrize("other", ["kernel", "memory", "writer", "symptom", "fault"])
def test_another_kernel_memory_writer_symptom_or_fault_is_another_cause(other: str) -> None:
    cases = [case("decode[kernel=tiled,n=1]"), case("decode[kernel=tiled,n=2]")]
    results = [result(one, NAN) for one in cases]
    blames = {
        one.id: Blame(sites=("kv.tail",), first_nan=FirstNan(writer="mla_decode/tiled"))
        for one in cases
    }
    if other == "kernel":
        cases[1] = case("decode[kernel=triton,n=2]", kernel="triton")
        results[1] = result(cases[1], NAN)
        blames[cases[1].id] = blames.pop("decode[kernel=tiled,n=2]")
    elif other == "memory":
        blames[cases[1].id] = Blame(sites=("kv.free",))
    elif other == "writer":
        blames[cases[1].id] = Blame(
            sites=("kv.tail",), first_nan=FirstNan(writer="merge_attn_states/torch")
        )
    elif other == "symptom":
        results[1] = result(cases[1], OFF)
    else:
        results[1] = results[1].model_copy(update={"fault": "kv.tail-masked-by-multiply"})
    assert [len(cause.members) for cause in found(cases, results, blames)] == [1, 1]


def test_crashes_of_one_line_are_one_cause_whatever_their_numbers() -> None:
    cases = [case(f"decode[kernel=tiled,n={n}]") for n in range(3)]
    raised = [
        Finding(oracle="crash", message=f"raised ValueError: {n}", at="mine.py:4 in decode")
        for n in range(3)
    ]
    results = [
        result(one, finding, verdict=Verdict.CRASH)
        for one, finding in zip(cases, raised, strict=True)
    ]
    results[2] = result(
        cases[2], raised[2].model_copy(update={"at": "mine.py:9 in other"}), verdict=Verdict.CRASH
    )
    assert [len(cause.members) for cause in found(cases, results, {})] == [2, 1]


def test_the_kernel_is_the_one_that_the_id_names() -> None:
    assert kernel_of(case("decode[kernel=tiled]", kernel="tiled")) == "mla_decode/tiled"
    engine = Case(
        id="serve[kernel=triton]",
        scenario="serve",
        system="engine",
        params={"decode_kernel": "triton"},
    )
    assert kernel_of(engine) == "mla_decode/triton"
    assert kernel_of(engine.model_copy(update={"id": "serve"})) == "engine"


def test_a_fact_is_told_once_with_the_oracles_that_see_it_and_a_vacuous_one_is_not() -> None:
    again = NAN.model_copy(update={"tensor": "logits of epoch 0"})
    assert facts([BLIND, OFF, NAN]) == [(NAN, ("reference",))]
    assert len(facts([again, again.model_copy(update={"tensor": "logits of epoch 1"})])) == 1
    assert facts([BLIND]) == [(BLIND, ())], "when there is nothing else, it is the finding"
    assert [
        finding.tensor for finding, _ in facts([NAN, OFF.model_copy(update={"tensor": "lse"})])
    ] == ["out", "lse"]


@pytest.fixture
def failing(tmp_path: Path) -> RunStore:
    """160 failures of one cause in four scenarios, and a skipped case."""
    cases = [case(f"decode-{n % 4}[kernel=tiled,n={n}]", num_heads=n + 1) for n in range(160)]
    skipped = case("gpu[kernel=tiled]")
    results = [result(one, NAN, OFF, BLIND) for one in cases]
    results.append(result(skipped, verdict=Verdict.SKIP, reason="no CUDA device on this machine"))
    store = store_of(tmp_path, results, [*cases, skipped], plugins=["/k/mine.py"])
    store.add_blame(
        cases[0].id, Blame(sites=("kv.tail",), how="`finite` fires when kv.tail alone is poisoned")
    )
    return store


def printed(store: RunStore, **options: bool) -> str:
    stream = io.StringIO()
    print_run(console_for(stream), RunView(store), **options)
    return stream.getvalue()


def test_one_cause_is_one_block_in_the_terminal_with_its_commands(failing: RunStore) -> None:
    text = printed(failing)
    assert text.count("FAIL") == 1 and len(text.splitlines()) < 25
    for part in (
        "mla_decode/tiled: 160 cases of 4 scenarios",
        "blame: kv.tail",
        "decode-0 40",
        "again: mla-harness run 'decode-0[kernel=tiled,n=0]' --plugin /k/mine.py",
        "shrink: mla-harness shrink 'decode-0[kernel=tiled,n=0]' --plugin /k/mine.py",
        (
            "script: mla-harness repro 'decode-0[kernel=tiled,n=0]' --plugin /k/mine.py --script"
            " bug.py"
        ),
        "also seen by reference",
        "skipped 1 case: no CUDA device",
        "160 fail, 1 skip",
    ):
        assert part in text, part
    assert BLIND.message not in text


def test_one_cause_is_one_card_on_the_page_and_one_entry_in_markdown(
    failing: RunStore, approved: Approved
) -> None:
    text = page.render(RunView(failing))
    assert text.count('<div class="card group') == 1
    approved(lines_with(page_text(text), "mla_decode/tiled: 160 cases"))
    assert text.count("mla-harness shrink") == 1
    assert markdown.render(RunView(failing)).count("- **fail**") == 1


def test_the_table_of_scenarios_is_printed_on_request_only(
    failing: RunStore, tmp_path: Path
) -> None:
    assert "decode-3   " not in printed(failing) and "decode-3   " in printed(
        failing, with_table=True
    )
    green = case("decode[kernel=tiled]")
    lines = printed(
        store_of(tmp_path / "green", [result(green, verdict=Verdict.PASS)], [green])
    ).splitlines()
    assert lines[0].startswith("1 pass in") and lines[-1].startswith("report: ")
    assert not any(line.startswith(("decode", "scenario")) for line in lines)


def test_prose_wraps_at_words_and_commands_do_not_wrap(tmp_path: Path) -> None:
    one = case("decode[kernel=tiled," + ",".join(f"parameter{n}={n}" for n in range(20)) + "]")
    long = NAN.model_copy(update={"message": "word " * 60 + "last"})
    store = store_of(tmp_path, [result(one, long)], [one])
    lines = printed(store).splitlines()
    assert all(
        len(line) < 140 for line in lines if "mla-harness" not in line and one.id not in line
    )
    assert "word last" in " ".join(line.strip() for line in lines)
    assert any(
        line.startswith("  again: mla-harness run") and line.endswith("]'") for line in lines
    )


def test_of_failures_that_are_alike_the_first_is_printed_at_once() -> None:
    stream = io.StringIO()
    cases = [case(f"decode[kernel=tiled,n={n}]") for n in range(3)]
    with LiveProgress(console_for(stream), len(cases)) as live:
        for one in cases:
            live.on_start(Job(key=one.id, case=one))
            live.on_result(result(one, NAN))
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("FAIL decode[kernel=tiled,n=0]")


def test_each_failure_is_printed_on_request() -> None:
    stream = io.StringIO()
    cases = [case(f"decode[kernel=tiled,n={n}]") for n in range(3)]
    with LiveProgress(console_for(stream), len(cases), every_failure=True) as live:
        for one in cases:
            live.on_result(result(one, NAN))
    assert [line.partition(":")[0] for line in stream.getvalue().splitlines()] == [
        f"FAIL {one.id}" for one in cases
    ]


def test_a_shrunk_case_gives_the_command(failing: RunStore) -> None:
    small = case("decode-1[kernel=tiled]@num_heads=1")
    failing.add_shrunk(
        Shrunk(
            key="decode-1[kernel=tiled,n=1]",
            id="decode-1[kernel=tiled,n=1]",
            case=small,
            oracle="finite",
            finding=NAN,
        )
    )
    ((_, commands),) = RunView(failing).causes
    assert commands["smallest"].startswith("mla-harness run 'decode-1[kernel=tiled]@num_heads=1'")
    assert "shrink" not in commands


def test_the_clearest_case_is_the_example_and_of_equally_clear_ones_the_smallest() -> None:
    excess = {"n=1": 1.1, "n=4": 20_000.0, "n=2": 18_000.0}
    cases = [case(f"decode[kernel=tiled,{name}]", num_heads=int(name[2:])) for name in excess]
    results = [
        result(one, OFF.model_copy(update={"excess": ratio}))
        for one, ratio in zip(cases, excess.values(), strict=True)
    ]
    (cause,) = found(cases, results, {})
    assert [one.id[-4:-1] for one in cause.members] == ["n=2", "n=4", "n=1"]


def test_a_failure_without_poison_is_said_to_be_no_matter_of_memory() -> None:
    one = case("decode[kernel=tiled]")
    (cause,) = found([one], [result(one, OFF)], {one.id: Blame(how=NO_MEMORY)})
    assert cause.blame_line == NO_MEMORY


LATE = Blame(cause=Code.OUT_OF_TIME, how=OUT_OF_TIME)


def test_a_search_that_ran_out_of_time_is_said_beside_what_the_findings_name(
    tmp_path: Path,
) -> None:
    one, other = case("decode[kernel=tiled,n=1]"), case("merge[kernel=tiled,n=1]")
    named = result(one, NAN.model_copy(update={"site": "kv.tail"}))
    causes_of_both = found(
        [one, other], [named, result(other, OFF)], {one.id: LATE, other.id: LATE}
    )
    lines = {cause.first.id: cause.blame_line for cause in causes_of_both}
    assert lines == {
        one.id: f"kv.tail (named by the findings; {OUT_OF_TIME})",
        other.id: OUT_OF_TIME,
    }
    store = store_of(tmp_path, [named, result(other, OFF)], [one, other])
    for key in (one.id, other.id):
        store.add_blame(key, LATE)
    stream = io.StringIO()
    print_run(console_for(stream), RunView(store))
    assert stream.getvalue().count("ran out of time") == 2
    assert page.render(RunView(store)).count(OUT_OF_TIME) >= 2


def test_a_blame_that_was_found_counts_more_than_one_that_was_not(approved: Approved) -> None:
    cases = [case(f"decode[kernel=tiled,n={n}]", num_heads=n) for n in (1, 2)]
    blames = {cases[0].id: LATE, cases[1].id: Blame(sites=("kv.tail",), how="alone")}
    (cause,) = found(cases, [result(one, NAN) for one in cases], blames)
    approved(cause.blame_line)
