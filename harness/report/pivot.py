"""A table of a run's cases by any of their values, such as kernels by sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.core.cases import Case
from harness.core.errors import InputError
from harness.core.extras import pandas
from harness.core.records import CaseResult
from harness.core.registry import nearest
from harness.scenario.variant import shown
from harness.store.run_folder import RunStore


def pivot(store: RunStore, shape: str) -> tuple[list[str], list[list[str]]]:
    """The titles and rows of a table with the values `shape`: `kernel,kv/site,pattern` is ROWS/COLUMNS.

    A cell counts the verdicts of its cases, a failure with its first oracle. Raises InputError for a value that no case
    of the run has, and without pandas.
    """
    before, _, after = shape.partition("/")
    if not before or not after:
        raise InputError(f"--pivot {shape}: write ROWS/COLUMNS, such as kernel,kv/site,pattern")
    rows, columns = before.split(","), after.split(",")
    jobs = store.jobs_by_key()
    cases = pandas.DataFrame(
        [_values(jobs[result.key].case) | {"outcome": _outcome(result)} for result in store.results()]
    ).fillna("")
    known = sorted(cases.columns.drop("outcome", errors="ignore"))
    for name in (*rows, *columns):
        if name not in known:
            raise InputError(f"--pivot: no case of the run has {name!r}; {nearest(name, known, see='')}")
    column = cases[columns].agg(" ".join, axis=1)
    cells = cases.groupby([*(cases[name] for name in rows), column], sort=False)["outcome"].agg(_words)
    table = cells.unstack(fill_value="", sort=False).reset_index()
    return [*rows, *table.columns[len(rows) :]], table.to_numpy().tolist()


def _values(case: Case) -> dict[str, str]:
    """What a case may be sorted by: its parameters, and its scenario, op, kernel, pattern and sites."""
    sites, kernels = case.poison.sites, case.kernels()
    own = {"scenario": case.scenario, "system": case.system, "pattern": next(iter(case.poison.patterns), "")}
    own["site"] = sites[0] if len(sites) == 1 else f"{len(sites)} sites"
    return {name: shown(value) for name, value in case.values().items()} | own | kernels


def _outcome(result: CaseResult) -> str:
    if "rejects" in result.looked_at:
        # What a corrupted call came to.
        return f"{result.verdict.value} {result.findings[0].cause if result.findings else result.cause}"
    oracle = result.findings[0].oracle if result.findings else ""
    return " ".join(filter(None, (result.verdict.value, oracle)))


def _words(outcomes: Iterable[str]) -> str:
    """`pass` for one case, `3 pass, 1 fail finite` for several."""
    counts = Counter(outcomes)
    if counts.total() == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
