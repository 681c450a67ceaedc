"""Trends in the page: what the history says of these cases, and nothing where it says nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.records import CaseResult, Finding, Verdict
from harness.report import page
from harness.report.run_view import RunView
from harness.report.trend_chart import past_of, trend_view
from harness.store.history.entry import RunEntry
from harness.store.history.trends import CaseTrend, FaultTrend, Flakiness, ScenarioTrend, Trends
from harness.store.run_folder import RunStore
from harness.store.source import Source

HOSTILE = "<script>alert(1)</script>"


def runs(count: int) -> tuple[RunEntry, ...]:
    return tuple(
        RunEntry(
            run_id=f"run-{n}",
            started=f"2026-11-{n + 1:02}T06:00:00+00:00",
            source=Source(commit=f"{n:040x}", branch=HOSTILE, changes="d" * (n == 1)),
        )
        for n in range(count)
    )


def case_trend(verdicts: str, flaky: Flakiness | None = None) -> CaseTrend:
    return CaseTrend("decode[n=0]", "decode", verdicts, (1.0,) * len(verdicts), (None,) * len(verdicts), flaky)


def trends(verdicts: str, *, seconds: tuple[float | None, ...], accuracies: tuple[float | None, ...] = ()) -> Trends:
    count = len(verdicts)
    scenario = ScenarioTrend(
        "decode", tuple(int(v == "p") for v in verdicts), tuple(int(v in "fce") for v in verdicts),
        tuple(int(v == "s") for v in verdicts), seconds, accuracies or (None,) * count, (0,) * count,
    )  # fmt: skip
    fault = FaultTrend("kv.x", "decode[n=0]", "decode", "." + "y" * (count - 2) + "n", (1.0,) * count)
    flaky = Flakiness(num_groups=4, num_mixed=1, num_runs=9, verdicts={"pass": 8, "fail": 1})
    return Trends(runs(count), (scenario,), (case_trend(verdicts, flaky),), (fault,))


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        ("pppp", "passed in 3 of 3 runs before this one; pass in all of them"),
        ("pppf", "passed in 3 of 3 runs before this one; fail is new"),
        ("ppff", "passed in 2 of 3 runs before this one; fail since run-2, commit 0000000"),
        ("pcff", "passed in 1 of 3 runs before this one; fail since run-2, commit 0000000"),
        ("p.pf", "passed in 2 of 2 runs before this one; fail is new"),
        ("...f", "not run before"),
        ("pf", "passed in 1 of 1 run before this one; fail is new"),
    ],
)
def test_one_sentence_says_since_when_a_case_ends_as_it_does(verdicts: str, text: str) -> None:
    assert past_of(case_trend(verdicts), runs(len(verdicts))) == text


def test_one_bar_stands_for_each_run_that_had_the_scenario() -> None:
    found = trend_view(trends("p.fs", seconds=(1.0, None, 1.0, 4.0)))
    assert found is not None
    (line,) = found.lines
    assert [bar.css for bar in line.bars] == ["pass", "fail", "skip"]
    places = [bar.x for bar in line.bars]
    assert places == sorted(places) and line.bars[-1].x + line.bars[-1].width <= line.width
    assert line.description == "not all passed in 1 of 3 runs"
    (fault,) = found.fault_lines
    assert [bar.css for bar in fault.bars] == ["pass", "pass", "fail"]
    assert fault.description == "not caught in 1 of 3 runs"


def test_a_time_that_left_its_usual_range_is_said_and_a_gap_is_not_bridged() -> None:
    found = trend_view(trends("p" * 7, seconds=(1.0, None, 1.0, 1.0, 1.0, 1.0, 4.0)))
    assert found is not None and found.lines[0].seconds is not None
    spark = found.lines[0].seconds
    assert spark.note == "4.0 times the usual" and spark.last == "4.0 s"
    assert spark.path.count("M") == 2 and spark.path.count("L") == 4
    heights = [float(y) for y in re.findall(r"[ML]\S+ (\S+?)(?=[ML]|$)", spark.path)]
    assert heights[-1] < heights[0], "more time is drawn higher"
    for seconds in ((1.0, 1.1, 0.9, 1.0, 1.0, 1.0, 1.05), (None, None, None, 1.0, 1.0, 1.0, 4.0)):
        quiet = trend_view(trends("p" * 7, seconds=seconds))
        assert quiet is not None and quiet.lines[0].seconds is not None and quiet.lines[0].seconds.note == ""


def test_a_fallen_accuracy_is_drawn_lower_on_a_scale_from_0_to_1() -> None:
    found = trend_view(trends("pppf", seconds=(1.0,) * 4, accuracies=(1.0, 1.0, 1.0, 0.25)))
    assert found is not None and found.lines[0].accuracy is not None
    spark = found.lines[0].accuracy
    assert (spark.last, spark.note) == ("0.2500", "-0.7500")
    assert spark.y == pytest.approx(4 + 0.75 * 22, abs=0.1)


def test_without_an_earlier_run_there_are_no_trends() -> None:
    assert trend_view(None) is None and trend_view(Trends((), (), ())) is None
    assert trend_view(Trends(runs(1), (), (case_trend("p"),))) is None


def test_the_page_has_a_section_of_trends_only_with_them_and_escapes_what_is_in_it(tmp_path: Path) -> None:
    case = Case(id="decode[n=0]", scenario="decode", system="kernel", op="write_kv")
    store = RunStore.create(tmp_path, [Job(key=case.id, case=case)], command="x")
    findings = (Finding(oracle="finite", tensor="out"),)
    store.add(CaseResult(key=case.id, id=case.id, scenario="decode", verdict=Verdict.FAIL, findings=findings))
    assert 'id="trends"' not in page.render(RunView(store))
    text = page.render(RunView(store), trends("ppff", seconds=(1.0, 1.0, 1.0, 1.0)))
    assert 'id="trends"' in text and 'href="#trends"' in text and "4 runs from 2026-11-01 to 2026-11-04" in text
    assert "1 of 4 groups" in text and "8 pass, 1 fail" in text, "the flaky case"
    assert "fail since run-2" in text, "the page of the failing case"
    assert HOSTILE not in text and "&lt;script&gt;alert(1)" in text
