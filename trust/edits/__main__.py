"""`python -m trust.edits [NAME|unseen]...`: make each edit of the engine in memory, run cases of the engine
on it, and print what caught it and what it blamed.

The cases are the first of each scenario of the engine that a plain run has, and for wrong edits the
next ones behind them. A wrong edit is run until a case fails, and the memory to blame is looked
for. One of the scheduler that no case catches is equivalent if random schedules are as before. Exit
code 1 if a value oracle blames a right edit, or a wrong one is blamed on memory without reason.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from harness.core.cases import Case, Job
from harness.core.records import FAILED, CaseResult, Verdict
from harness.diagnose.blame import conclude, plan_trials
from harness.judge.run_case import prepare, run_case
from harness.report.markdown import table
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select
from trust.edits.edit import Edit
from trust.edits.engine import RIGHT, WRONG
from trust.edits.unseen import UNSEEN_RIGHT, UNSEEN_WRONG
from trust.mutants.schedules import trace

ALL_WRONG, ALL_RIGHT = (*WRONG, *UNSEEN_WRONG), (*RIGHT, *UNSEEN_RIGHT)
NO_VALUES = frozenset({"policy"})
"""Oracles that another right engine may fail."""
MORE = 5
"""The further cases of each scenario for an edit that its first case does not catch."""
SCHEDULE = "harness.engine.schedule."
NUM_SCHEDULES = 2000
MOST_SECONDS = 900
"""CPU time that ends an edit whose cases do not end. Another load of the machine does not count."""


def function_of(place: str) -> FunctionType:
    """The function at "module:name", behind seams."""
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = vars(found)[part]
    unwrapped = inspect.unwrap(found)
    assert isinstance(unwrapped, FunctionType)
    return unwrapped


@contextlib.contextmanager
def made(edit: Edit) -> Iterator[None]:
    """Run the edited code, for the length of the block.

    Raises ValueError unless the function has the text once.
    """
    function = function_of(edit.place)
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("def "))
    text = "\n".join(lines[start:])
    if text.count(edit.old) != 1:
        raise ValueError(f"{edit.name}: {edit.place} has {edit.old!r} {text.count(edit.old)} times")
    tree = ast.parse("from __future__ import annotations\n" + text.replace(edit.old, edit.new))
    code = compile(tree, function.__code__.co_filename, "exec")
    before = function.__code__
    function.__code__ = next(
        one
        for one in code.co_consts
        if isinstance(one, CodeType) and one.co_name == function.__name__
    )
    try:
        yield
    finally:
        function.__code__ = before


def cases() -> tuple[list[Case], list[Case]]:
    """The first case of each scenario of the engine, and the next MORE of each."""
    found: dict[str, list[Case]] = {}
    for case in select(load_scenarios(None)):
        if case.system == "engine":
            found.setdefault(case.scenario, []).append(case)
    firsts = [several[0] for several in found.values()]
    return firsts, [case for several in found.values() for case in several[1 : 1 + MORE]]


def blamed(job: Job, result: CaseResult) -> tuple[str, ...]:
    """The memory to blame for a failure, as a run looks for it."""
    trials: list[CaseResult] = []
    while more := plan_trials(job, result, trials):
        trials += [run_case(one) for one in more]
    return tuple(conclude(job, result, trials).sites)


def tried(edit: Edit, chosen: Sequence[Case], *, to_the_end: bool) -> tuple[str, str, str]:
    """What caught an edit: the oracles of the first case that failed, the case, and the blame.

    With `to_the_end` all cases run, and only oracles of values count.
    """
    with made(edit):
        for case in chosen:
            job = Job(key="edit", case=case)
            result = run_case(job)
            found = {finding.oracle for finding in result.findings}
            if result.verdict is Verdict.ERROR:
                return "error", case.id, result.reason
            if result.verdict not in FAILED or (to_the_end and found <= NO_VALUES):
                continue
            return ", ".join(sorted(found)), case.id, ", ".join(blamed(job, result))
    return "", "", ""


def changes_no_schedule(edit: Edit) -> bool:
    """Whether an edit of the scheduler or the pool decides as before in all random schedules.

    They share prefixes, collide, preempt, abort and start over in tight pools.
    """
    if not edit.place.startswith(SCHEDULE):
        return False
    before = [trace(seed) for seed in range(NUM_SCHEDULES)]
    with made(edit):
        return all(trace(seed) == right for seed, right in enumerate(before))


def word(edit: Edit, oracles: str, sites: str) -> str:
    """Whether the blame is right: memory for an edit that reads what nobody wrote, else none."""
    if not oracles:
        return "equivalent" if changes_no_schedule(edit) else "not caught"
    if not sites:
        return "none, rightly" if not edit.memory else "none"
    return "right" if edit.memory else "wrong"


def summary(rows: Sequence[tuple[str, ...]]) -> str:
    """How many of the edits in the table's rows were caught or blamed, in a line."""
    wrong = [row for row in rows if row[0] == "wrong"]
    right = [row for row in rows if row[0] == "right"]
    equivalent = sum(row[-1] == "equivalent" for row in wrong)
    # An error of ours catches nothing.
    missed = sum(row[2] in ("-", "error") for row in wrong) - equivalent
    blamed_wrongly = sum(row[-1] == "wrong" for row in wrong)
    blamed_right = sum(row[-1] == "red" for row in right)
    return (
        f"{len(wrong) - equivalent - missed} of {len(wrong) - equivalent} wrong edits caught,"
        f" {equivalent} equivalent, {blamed_wrongly} with wrong blame; {blamed_right} of"
        f" {len(right)} right ones red"
    )


class Late(BaseException):
    """An edit whose cases do not end."""


def main(names: Sequence[str]) -> int:
    """Try the edits and print the table; `unseen` are those of `unseen.py`."""
    if "unseen" in names:
        names = [*names, *(edit.name for edit in (*UNSEEN_WRONG, *UNSEEN_RIGHT))]
    torch.set_num_threads(1)
    prepare()
    firsts, others = cases()
    rows = []
    is_good = True

    def stop(signum: int, frame: object) -> None:
        raise Late

    signal.signal(signal.SIGPROF, stop)
    for is_right, edits in ((False, ALL_WRONG), (True, ALL_RIGHT)):
        for edit in (one for one in edits if not names or one.name in names):
            signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
            try:
                chosen = firsts if is_right else [*firsts, *others]
                oracles, case, sites = tried(edit, chosen, to_the_end=is_right)
            except Late:
                oracles, case, sites = "crash", "does not end", ""
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            red = "red" if oracles else "not blamed"
            blame = red if is_right else word(edit, oracles, sites)
            is_good &= blame not in ("red", "wrong")
            kind = "right" if is_right else "wrong"
            rows.append((kind, f"`{edit.name}`", oracles or "-", f"`{case or '-'}`", sites, blame))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    print(table(("edit", "name", "caught by", "in", "memory blamed", "blame"), rows))
    print(summary(rows))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
