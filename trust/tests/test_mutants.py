"""Mutants: what an operator changes, what is left alone, and what becomes of mutants that are
tried.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from harness.core.cases import Case, Job
from harness.core.errors import HarnessError
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.memory import pools
from harness.ops.map_indices.kernels import dense
from harness.run.in_process import InProcessPool
from harness.run.planning import JobPlanner, Wanted
from harness.scenario.drawn import drawn_case
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select
from tests.transcripts import Approved
from tests.waiting import wait_until, wait_until_gone
from trust.mutants import equivalence, operators, trials
from trust.mutants.operators import OPERATORS, Mutant, mutants_of, mutated
from trust.mutants.records import MutantResult, SurveyedCase

ROOT = Path(__file__).parents[2]


def changes(body: str, head: str = "def f(self, a, b, x):") -> dict[str, set[str]]:
    """Operator -> the changes that it makes in a function."""
    text = head + "\n" + textwrap.indent(textwrap.dedent(body), "    ")
    found: dict[str, set[str]] = {}
    for mutant in mutants_of("f.py", text):
        compile(mutated(text, mutant), "f.py", "exec")
        found.setdefault(mutant.operator, set()).add(mutant.change)
    return found


@pytest.mark.parametrize(
    ("operator", "body", "change"),
    [
        ("off by one", "x = a + 7", "7 -> 8"),
        ("off by one", "x = a < b", "a < b -> a <= b"),
        ("off by one", "for i in a: self.go(i)", "for i in a -> for i in list(a)[:-1]"),
        ("wrong index", "x = a[b:]", "b: -> :"),
        ("dropped copy, clear or mask", "x = a.clone()", "a.clone() -> a"),
        ("dropped copy, clear or mask", "x.zero_()", "x.zero_() -> pass"),
        ("dropped copy, clear or mask", "x = torch.where(a, b, 0)", "torch.where(a, b, 0) -> b"),
        (
            "dropped copy, clear or mask",
            "x = [i for i in a if i]",
            "[i for i in a if i] -> [i for i in a]",
        ),
        ("stale value", "x[a] = b", "x[a] = b -> pass"),
        ("stale value", "return a", f"return a -> return {operators.KEEP_LAST}(a)"),
        ("zeros to empty", "x = torch.zeros(a)", "torch.zeros -> torch.empty"),
        ("64 to 32 bits", "x = a.to(torch.int64)", "torch.int64 -> torch.int32"),
        ("swapped operands", "x = a // b", "a // b -> b // a"),
        ("swapped operands", "x = call(a, b)", "call(a, b) -> call(b, a)"),
        ("skipped branch", "if a:\n    self.go(x)", "if a -> if False"),
        ("skipped branch", "x = a if b else 0", "a if b else 0 -> a"),
        ("skipped branch", "self.go(x)", "self.go(x) -> pass"),
        ("wrong order", "self.go(x)\nself.come(x)", "self.go(x) -> self.come(x); self.go(x)"),
        ("wrong order", "x = a.popleft()", "a.popleft -> a.pop"),
    ],
)
def test_an_operator_makes_the_change_of_a_typical_bug(
    operator: str, body: str, change: str
) -> None:
    assert operator in OPERATORS
    assert change in changes(body)[operator]


@pytest.mark.parametrize(
    "body",
    [
        '"""Text 1."""',
        "assert a < 7",
        "if a > 7:\n    raise ValueError(f'{a + 1}')",
        "poison.fill_(x, a + 1)",
        "self._probe.on_logits(a[1:])",
        "self.events[a] += 1",
        "if x.is_cuda and a > 7:\n    self.go(x)",
    ],
)
def test_text_guards_and_what_the_harness_adds_are_left_alone(body: str) -> None:
    assert changes(body) == {}


@pytest.mark.nightly
def test_the_mutants_of_the_real_code_have_different_names_and_compile() -> None:
    known = trials.all_mutants()
    assert len({mutant.name for mutant in known}) == len(known) > 1500
    assert {mutant.file for mutant in known} == set(trials.UNDER_TEST)
    assert {mutant.operator for mutant in known} == set(OPERATORS)
    for mutant in known[::50]:
        text = (trials.ROOT / mutant.file).read_text(encoding="utf-8")
        assert ast.dump(mutated(text, mutant)) != ast.dump(ast.parse(text))


def test_what_only_a_branch_for_a_gpu_calls_is_left_alone() -> None:
    file = "engine/attention.py"
    text = (trials.ROOT / file).read_text(encoding="utf-8")
    names = {name for name, _ in operators.functions(ast.parse(text))}
    assert operators.ONLY_FROM_A_GPU.issubset(names)
    mutated_names = {one.function for one in mutants_of(file, text)}
    assert "causal_attention" in mutated_names and not operators.ONLY_FROM_A_GPU & mutated_names
    assert changes("return a + 7", "def f(a):") and not changes(
        "return a + 7", "def padded_causal_attention(a):"
    )


def test_what_only_a_fault_reaches_is_left_alone_and_right_code_does_not_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_other_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
        assert rows == len(tensor)
        return tensor

    monkeypatch.setattr(dense, "rows_at", no_other_rows)
    jobs = [job for job in jobs_of("map-indices") if "kernel=torch," in job.case.id]
    assert {trials.run(job)[0].verdict.value for job in jobs} == {"pass"}
    file = "ops/parts/buffer_rows.py"
    text = (trials.ROOT / file).read_text(encoding="utf-8")
    assert {one.function for one in mutants_of(file, text)} == {"row_lengths"}


def test_each_reason_names_a_mutant_of_the_code_as_it_is() -> None:
    reasons = yaml.safe_load(
        (ROOT / "trust" / "mutants" / "mutants.yaml").read_text(encoding="utf-8")
    )
    known = {(f"{mutant.file} {mutant.function}", mutant.change) for mutant in trials.all_mutants()}
    named = [(place, change) for place, changes in reasons.items() for change in changes]
    assert [
        (p, change)
        for p, change in named
        if not {(p, change), (p, re.sub(r"^[\d.]+ ", "", change))} & known
    ] == []


@pytest.mark.nightly
def test_a_seed_draws_the_same_mutants_again_and_another_seed_others() -> None:
    assert trials.drawn(50, 1) == trials.drawn(50, 1) != trials.drawn(50, 2)


def jobs_of(*selectors: str) -> list[Job]:
    planner = JobPlanner(Wanted(device="cpu"), InProcessPool())
    return planner.jobs_of(select(planner.scenarios(), selectors, seed=0))


def tried(*mutants: Mutant, jobs: list[Job]) -> list[MutantResult]:
    torch.set_num_threads(1)
    clean = {job.case.id: trials.run(job)[1] for job in jobs}
    known = {job.case.id: trials.survey(job, 0.1, clean[job.case.id]) for job in jobs}
    assert not [case.why_not for case in known.values() if case.why_not]

    def work(one: Mutant) -> MutantResult:
        return trials.trial(one, trials.cases_for(one, known, jobs), known, clean)

    results = [result for _, result in trials.in_forks(list(mutants), work, 2)]
    assert all(results)
    return [result for result in results if result]


def mutant(file: str, function: str, change: str) -> Mutant:
    """The mutant of a function with a change."""
    (found, *_) = [
        m
        for m in trials.all_mutants()
        if (m.file, m.function) == (file, function) and change in m.change
    ]
    return found


def test_a_mutant_is_killed_by_the_oracle_that_sees_it() -> None:
    wrong_slot = mutant(
        "ops/write_kv/kernels/by_slot.py", "write_kv", "slots % page_size -> page_size % slots"
    )
    unreached = mutant(
        "engine/schedule/block_pool.py", "BlockPool.flush", "self._prefix_of.clear() -> pass"
    )
    slow = mutant(
        "ops/mla_decode/kernels/tiled.py",
        "divide_by_sum",
        "torch.where(total == 0, 1.0, total) -> total",
    )
    jobs = jobs_of("write-kv-kernel")
    killed, not_reached, elsewhere = tried(wrong_slot, unreached, slow, jobs=jobs)
    assert (killed.status, killed.num_cases) == ("killed", 1)
    assert killed.by in ("crash", "reference", "sentinel")
    assert [not_reached.status, elsewhere.status] == ["not reached"] * 2


@pytest.mark.nightly
def test_the_same_mutants_give_the_same_table_and_the_code_of_this_process_stays_as_it_is() -> None:
    some = [one for one in trials.all_mutants() if one.file == "ops/write_kv/kernels/by_slot.py"][
        ::4
    ]
    jobs = jobs_of("write-kv-kernel")[:2]
    first, second = tried(*some, jobs=jobs), tried(*some, jobs=jobs)
    assert first == second
    assert {"killed"} <= {result.status for result in first}
    assert trials.run(jobs[0])[0].verdict.value == "pass"


def test_an_error_that_the_engine_raises_is_a_crash() -> None:
    wrong = mutant(
        "engine/schedule/sequence.py", "Sequence.num_uncomputed_tokens", "len(self.tokens) - self"
    )
    (result,) = tried(wrong, jobs=jobs_of("dummy-steps")[:1])
    assert result.status == "killed", result


@pytest.mark.nightly
def test_a_mutant_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MORE_SECONDS", 0.5)
    monkeypatch.setattr(trials, "TIMES", 1.0)
    endless = mutant(
        "engine/schedule/scheduler.py", "Scheduler.finish", "self.cancel(sequence) -> pass"
    )
    (result,) = tried(endless, jobs=jobs_of("dummy-steps")[:1])
    assert result.status == "killed" and result.by in ("crash", "conserved")


@pytest.mark.nightly
def test_a_change_that_no_output_shows_is_not_exercised() -> None:
    # These cases have no window, so there are no blocks to evict.
    same = mutant("engine/schedule/scheduler.py", "Scheduler._evict", "if self.window -> if False")
    (result,) = tried(same, jobs=jobs_of("dummy-steps")[:2])
    assert result.status == "not exercised"


def test_the_value_of_the_call_before_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = mutant("ops/parts/split_plan.py", "num_pages", "return (seq_lens")

    def work(one: Mutant) -> list[Any]:
        trials.inject(one)
        plan = __import__("harness.ops.parts.split_plan", fromlist=["num_pages"])
        return [plan.num_pages(torch.tensor([length])).tolist() for length in (1, 65, 129)]

    (found,) = [result for _, result in trials.in_forks([stale], work, 1)]
    assert found == [[1], [1], [2]]


def test_a_trial_that_the_clock_stopped_is_an_error_and_a_crash_of_its_code_a_kill() -> None:
    one = trials.all_mutants()[0]
    of_one = functools.partial(trials.became, one)
    assert trials.ended(of_one, trials.Died(-signal.SIGSEGV)).by == "crash"
    assert trials.ended(of_one, trials.Died(-signal.SIGXCPU)).status == "killed"
    # faulthandler ends a process with 1, and a machine without memory with SIGKILL.
    assert [trials.ended(of_one, trials.Died(code)).status for code in (1, -signal.SIGKILL)] == [
        "error",
        "error",
    ]


def test_only_cpu_time_ends_a_trial() -> None:
    # In a fork, as a trial: the kernel's count of CPU time drifts from Python's in a process of
    # many minutes.
    def work(_: int) -> str:
        with trials.time_limit(0.2):
            time.sleep(0.4)
        with pytest.raises(trials.Late), trials.time_limit(0.2):
            while True:
                pass
        return "late"

    assert list(trials.in_forks([0], work, 1)) == [(0, "late")]


def test_results_come_in_order_and_a_process_that_dies_gives_none(approved: Approved) -> None:
    def work(number: int) -> int:
        time.sleep(0.2 if number == 0 else 0.0)
        if number == 1:
            signal.raise_signal(signal.SIGKILL)
        return number * 2

    assert list(trials.in_forks([0, 1, 2, 3], work, 3)) == [
        (0, 0),
        (1, trials.Died(-signal.SIGKILL)),
        (2, 4),
        (3, 6),
    ]
    with approved.raises(HarnessError):
        trials.results_of(trials.in_forks([1], work, 1))


ENDS_WITH_ITS_PARENT = """
import os, time
from pathlib import Path
from trust.mutants import trials as mutant_trials
def work(number):
    os.symlink(str(os.getpid()), "begun")
    time.sleep(1)
    return bytes(1 << 22)
trials = mutant_trials.in_forks([0], work, 1)
mutant_trials.wait = lambda running: time.sleep(3600)
next(trials)
"""


@pytest.mark.nightly
def test_a_trial_ends_with_the_process_that_would_read_its_result(tmp_path: Path) -> None:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "poison")))
    with subprocess.Popen(
        [sys.executable, "-c", ENDS_WITH_ITS_PARENT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        wait_until((tmp_path / "begun").is_symlink, "the trial began", parent)
        parent.kill()
    wait_until_gone(int(os.readlink(tmp_path / "begun")))


def test_methods_properties_and_functions_behind_decorators_are_changed() -> None:
    files = {mutant.file: mutant.file for mutant in trials.all_mutants()}
    for file in files:
        module = __import__("harness." + file.removesuffix(".py").replace("/", "."), fromlist=["x"])
        for name, _ in operators.functions(
            ast.parse((trials.ROOT / file).read_text(encoding="utf-8"))
        ):
            found = trials.function_of(module, name, str(trials.ROOT / file))
            assert found.__code__.co_qualname == name


def test_a_method_that_no_longer_calls_super_is_changed_too() -> None:
    dropped = [one for one in trials.all_mutants() if one.change.startswith("super()")]
    assert dropped

    def work(one: Mutant) -> str:
        trials.inject(one)
        with trials.unchanged(one):
            return one.name

    assert list(trials.in_forks(dropped, work, 1)) == [(one, one.name) for one in dropped]


def test_all_cases_that_execute_a_line_are_tried_the_cheapest_of_each_scenario_first() -> None:
    one = trials.all_mutants()[0]
    cases = [
        Case(id=f"{name}{number}", scenario=name, system="engine", params={}, oracles=("finite",))
        for name in ("a", "b")
        for number in range(90)
    ]
    known = {
        case.id: SurveyedCase(
            id=case.id, seconds=1.0, steps=place, lines={one.file: one.lines}, why_not=""
        )
        for place, case in enumerate(cases)
    }
    chosen = trials.cases_for(one, known, [Job(key=case.id, case=case) for case in cases])
    assert len(chosen) == len(cases) > trials.SECOND
    assert [job.case.id for job in chosen[:4]] == ["a0", "b0", "a1", "b1"]


@pytest.mark.parametrize(("later", "by"), [("reference", "reference"), ("policy", "policy")])
def test_a_kill_by_policy_is_told_only_if_no_other_case_sees_the_change(
    monkeypatch: pytest.MonkeyPatch, later: str, by: str
) -> None:
    def found(job: Job) -> tuple[CaseResult, dict[str, torch.Tensor]]:
        oracle = {"a": "policy", "b": later}[job.case.id]
        findings = (Finding(oracle=oracle), Finding(oracle="policy"))
        verdict = Verdict.FAIL
        return CaseResult(
            key="k", id=job.case.id, scenario="s", verdict=verdict, findings=findings
        ), {}

    monkeypatch.setattr(trials, "run", found)
    one = trials.all_mutants()[0]
    cases = [Case(id=name, scenario="s", system="engine", oracles=("finite",)) for name in "ab"]
    known = {
        case.id: SurveyedCase(id=case.id, seconds=1.0, steps=1, lines={}, why_not="")
        for case in cases
    }
    jobs = [Job(key=case.id, case=case) for case in cases]
    clean: dict[str, dict[str, torch.Tensor]] = {"a": {}, "b": {}}

    def work(mutant: Mutant) -> MutantResult:
        return trials.trial(mutant, jobs, known, clean)

    ((_, result),) = trials.in_forks([one], work, 1)
    assert isinstance(result, MutantResult)
    assert (result.status, result.by) == ("killed", by)
    assert result.case == ("b" if by == "reference" else "a")


@pytest.mark.nightly
def test_each_kernel_and_each_wider_choice_of_the_engine_is_drawn_often_enough() -> None:
    drawn = equivalence.drawn_ids()
    assert len(set(map(repr, drawn))) == len(drawn)
    for more in equivalence.WIDER:
        assert sum(given == more for _, _, given in drawn) >= equivalence.ENOUGH, more
    scenarios = {one.name: one for one in load_scenarios(None)}
    counts: Counter[str] = Counter()
    for name, id_, more in drawn:
        case = drawn_case(scenarios[name], id_)
        assert case is not None
        if case.system == "kernel":
            kernel = more.get("kernel") or case.params.model_dump()["kernel"]
            counts[f"{case.op}/{kernel}"] += 1
    assert min(counts.values()) >= equivalence.ENOUGH, counts


def test_a_difference_of_outputs_is_put_in_words(approved: Approved) -> None:
    clean = {"nan out": torch.tensor([3.0, 4.0, 3.0, 4.0])}
    assert trials.difference({"nan out": clean["nan out"].clone()}, clean) == ""
    approved(trials.difference({"nan out": clean["nan out"][:2]}, clean))
    moved = {"nan out": clean["nan out"] + torch.tensor([0.0, 0.0, 0.0, 0.35])}
    approved(trials.difference(moved, clean))


def test_a_mutant_may_map_the_largest_pool_of_a_case() -> None:
    # Page numbers past 32,768 of pages that lie 2**25 elements apart: addresses, hardly any memory.
    largest = 5 * 2**39

    def work(_: int) -> int:
        trials.limit_memory()
        return pools.untouched(largest).numel()

    assert list(trials.in_forks([1], work, 1)) == [(1, largest)]
