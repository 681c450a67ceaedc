"""A table of a run's cases by any of their values, such as kernels by sites."""

from __future__ import annotations

from collections import Counter

from harness.core.cases import Case
from harness.core.errors import InputError
from harness.core.records import CaseResult
from harness.core.registry import nearest
from harness.scenario.variant import shown
from harness.store.run_folder import RunStore


def pivot(store: RunStore, shape: str) -> tuple[list[str], list[list[str]]]:
    """The titles and rows of a table with the values `shape`: `kernel,kv/site,pattern` is ROWS/COLUMNS.

    A cell counts the verdicts of its cases, a failure with its first oracle. Raises InputError for a value that no case
    of the run has.
    """
    before, _, after = shape.partition("/")
    if not before or not after:
        raise InputError(f"--pivot {shape}: write ROWS/COLUMNS, such as kernel,kv/site,pattern")
    rows, columns = before.split(","), after.split(",")
    jobs = store.jobs_by_key()
    cases = [(result, _values(jobs[result.key].case)) for result in store.results()]
    known = sorted({name for _, values in cases for name in values})
    for name in (*rows, *columns):
        if name not in known:
            raise InputError(f"--pivot: no case of the run has {name!r}; {nearest(name, known, see='')}")
    cells: dict[tuple[str, ...], dict[str, Counter[str]]] = {}
    titles: dict[str, None] = {}
    for result, values in cases:
        title = " ".join(values.get(name, "") for name in columns)
        titles[title] = None
        row = cells.setdefault(tuple(values.get(name, "") for name in rows), {})
        row.setdefault(title, Counter())[_outcome(result)] += 1
    return [*rows, *titles], [[*key, *(_words(row.get(title)) for title in titles)] for key, row in cells.items()]


def _values(case: Case) -> dict[str, str]:
    """What a case may be sorted by: its parameters, and its scenario, op, kernel, pattern and sites."""
    sites, kernels = case.poison.sites, case.kernels()
    own = {"scenario": case.scenario, "system": case.system, "pattern": next(iter(case.poison.patterns), "")}
    own["site"] = sites[0] if len(sites) == 1 else f"{len(sites)} sites"
    return {name: shown(value) for name, value in case.values().items()} | own | kernels


def _outcome(result: CaseResult) -> str:
    oracle = result.findings[0].oracle if result.findings else ""
    return " ".join(filter(None, (result.verdict.value, oracle)))


def _words(counts: Counter[str] | None) -> str:
    """`pass` for one case, `3 pass, 1 fail finite` for several."""
    if counts is None:
        return ""
    if counts.total() == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
