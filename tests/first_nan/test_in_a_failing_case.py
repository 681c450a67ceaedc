"""What the recorder saw joins the blame of a failing case: stored, printed, and in the page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from harness.core.cases import AskFirstNan, Case, Job, PoisonPlan
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, FirstNan, Verdict
from harness.diagnose.session import Session, recorded_job, why_not_recorded, with_first_nan
from harness.report.causes import causes
from harness.report.console import console_for
from harness.report.run_view import RunView
from harness.report.terminal import print_cause
from harness.report.wording import first_nan_lines
from harness.report.write import write_reports
from harness.store.run_folder import RunStore
from mla_harness_vllm.params import VllmParams
from tests.transcripts import Approved

SEEN = FirstNan(
    writer="mla_decode/<b>tiled</b>",
    tensor="out",
    layer=1,
    step=4,
    phase="decode",
    request="2",
    where="row 0, element 3",
    bits="0x7fc00000 float32",
    finite=("q",),
    not_finite=("kv_cache past the lengths",),
    reader="mla_decode/tiled",
    reader_at="out, step 4",
    sites=("kv.new",),
)


def job(system: str = "engine", key: str = "a") -> Job:
    op = "write_kv" if system == "kernel" else None
    params = {"task": "gsm_symbolic"} if system == "accuracy" else {}
    poison = PoisonPlan(sites=("kv.new", "output"))
    return Job(
        key=key, case=Case(id=key, scenario="s", system=system, op=op, params=params, poison=poison)
    )


def failure(of: Job) -> CaseResult:
    finding = Finding(oracle="finite", tensor="logits", message="NaN")
    return CaseResult(
        key=of.key, id=of.case.id, scenario="s", verdict=Verdict.FAIL, findings=(finding,)
    )


class Pool:
    """Answers each job with what a worker with the recorder would."""

    num_workers = 1

    def __init__(self) -> None:
        self.asked: list[Job] = []

    def run(self, jobs: list[Job], on_start: Any = None) -> Any:
        self.asked += jobs
        for one in jobs:
            yield failure(one).model_copy(update={"first_nan": SEEN, "sites": one.sites})


def test_a_failing_engine_case_is_run_once_more_for_the_sites_to_blame() -> None:
    pool, own = Pool(), job()
    found = with_first_nan(pool, [own], {"a": Blame(sites=("kv.new",), how="so")})  # type: ignore[arg-type]
    assert [one.ask for one in pool.asked] == [AskFirstNan(sites=("kv.new",))]
    assert found == {"a": Blame(sites=("kv.new",), how="so", first_nan=SEEN)}
    assert recorded_job(own, Blame()).ask == AskFirstNan(sites=("kv.new", "output"))


def test_a_failing_case_of_vllm_is_served_once_more_with_fewer_questions() -> None:
    pool, own = Pool(), job("vllm")
    params = VllmParams(limit=None, epochs=5, compare_eager=True, max_num_seqs=64)
    own = own.model_copy(
        update={"case": own.case.model_copy(update={"params": params}), "directory": "/answers"}
    )
    found = with_first_nan(pool, [own], {"a": Blame(how="not sought")})  # type: ignore[arg-type]
    assert found["a"].first_nan == SEEN and found["a"].sites == ()
    (asked,) = pool.asked
    assert asked.case.params == VllmParams(limit=32, epochs=1, compare_eager=False, max_num_seqs=64)
    # Its answers are not those of the measurement.
    assert asked.directory is None


def test_what_other_ranks_saw_is_told_below_the_first_writer(approved: Approved) -> None:
    seen = SEEN.model_copy(
        update={"rank": 1, "num_ranks": 2, "other_ranks": ("rank 0: o_proj wrote output",)}
    )
    first, other, reader = first_nan_lines(Blame(first_nan=seen))
    approved(first)
    approved(other)
    assert reader.startswith("first reader: ")


@pytest.mark.parametrize("system", ["kernel", "accuracy", "vllm-host"])
def test_what_is_no_case_of_the_engine_or_of_vllm_is_not_run_again(system: str) -> None:
    pool, own = Pool(), job(system)
    assert why_not_recorded(own)
    (blame,) = Session(pool).explain([(own, failure(own))]).values()  # type: ignore[arg-type]
    assert blame.first_nan is None
    assert not any(isinstance(asked.ask, AskFirstNan) for asked in pool.asked)


def test_many_failures_do_not_cost_many_runs() -> None:
    pool, jobs = Pool(), [job(key=str(number)) for number in range(30)]
    blames = Session(pool).explain([(one, failure(one)) for one in jobs])  # type: ignore[arg-type]
    assert sum(isinstance(asked.ask, AskFirstNan) for asked in pool.asked) == 8
    assert sum(blame.first_nan is not None for blame in blames.values()) == 8


def test_the_statement_says_what_when_whose_and_what_was_still_good(approved: Approved) -> None:
    approved(SEEN.model_copy(update={"rank": 2}).statement)
    approved(FirstNan().statement)


def test_the_terminal_shows_it_below_the_blame(approved: Approved) -> None:
    stream = io.StringIO()
    own, blame = job(), Blame(sites=("kv.new",), how="so", first_nan=SEEN)
    (cause,) = causes([failure(own)], {own.key: own}, {own.key: blame})
    print_cause(console_for(stream), cause, {"again": "again"})
    lines = stream.getvalue().splitlines()
    at = next(number for number, line in enumerate(lines) if "blame: kv.new" in line)
    approved(lines[at : at + 5])
    assert first_nan_lines(Blame()) == first_nan_lines(None) == []


def test_the_page_shows_it_escaped(tmp_path: Path) -> None:
    own = job()
    store = RunStore.create(tmp_path, [own], command="test")
    store.add(failure(own))
    store.add_blame("a", Blame(sites=("kv.new",), how="so"))
    store.add_blame("a", Blame(sites=("kv.new",), how="so", first_nan=SEEN))
    assert store.blames()["a"].first_nan == SEEN
    write_reports(RunView(store))
    page = (store.path / "report.html").read_text(encoding="utf-8")
    assert "first writer" in page and "first reader" in page
    assert "mla_decode/&lt;b&gt;tiled&lt;/b&gt; wrote out" in page and "<b>tiled</b>" not in page
