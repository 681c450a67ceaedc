"""Which cases a run of everything can leave out: python -m trust.arrays.long_cases RUN

RUN is the folder of a run of everything. A case is left out if its seconds buy little: the cases
that stay show (almost) each pair of conditions that it shows. Prints the `long:` list of each
scenario.

- For kernels no pair is given up. For the engine `--seconds` are saved, the cheapest pairs first.
- A scenario keeps one case of the engine, and two of a kernel.
- A case on which a fault is tried stays, so a selftest tries all faults.
- Drawn cases, measurements of accuracy, cases under a tenth of a second and the sizes past the last
  class (tag `limits`) stay: pairs say nothing of them.
"""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from harness.core.cases import Case
from harness.core.records import CaseResult, Verdict
from harness.scenario.expand import expand, fault_cases
from harness.scenario.load import load_scenarios
from harness.scenario.schema import Scenario
from harness.store.run_folder import RunStore

WORTH_LEAVING_OUT = 0.1
"""Seconds. A shorter case is not worth its line."""
STAY = {"engine": 1, "kernel": 2}
"""A system -> the cases that each of its scenarios keeps."""
LIMITS = "limits"
"""The tag of sizes past the last class of a condition."""
OF_ITSELF = 1
"""What a case is worth beside its pairs: it has met a bug that pairs do not describe."""

Pair = tuple[str, tuple[int, str], tuple[int, str]]
"""The table of conditions, and two dimensions with the class of each."""


def pairs(result: CaseResult) -> set[Pair]:
    """The pairs of conditions that a case showed."""
    found: set[Pair] = set()
    for table, rows in result.shown.items():
        for row in rows:
            classes = [(place, name) for place, name in enumerate(row) if name != "-"]
            found.update((table, one, other) for one, other in combinations(classes, 2))
    return found


@dataclass(frozen=True, slots=True)
class Timed:
    """A case that passed, with its seconds and the pairs that it showed."""

    case: Case
    seconds: float
    pairs: set[Pair]


def left_out(
    timed: Iterable[Timed], fixed: Iterable[str], seconds: float
) -> tuple[list[Timed], int]:
    """The cases to leave out, and how many pairs of the engine's steps no case shows then.

    `fixed` are the ids of the cases that must stay.
    """
    timed = list(timed)
    shown = Counter(pair for one in timed for pair in one.pairs)
    staying = Counter(one.case.scenario for one in timed)
    found: list[Timed] = []
    lost = 0
    for system, rest in (("engine", seconds), ("kernel", float("inf"))):
        open_cases = [
            one
            for one in timed
            if one.case.system == system
            and not one.case.is_varied
            and LIMITS not in one.case.tags
            and one.case.id not in set(fixed)
            and one.seconds >= WORTH_LEAVING_OUT
        ]
        while rest > 0:
            priced = [
                (sum(shown[pair] == 1 for pair in one.pairs), place)
                for place, one in enumerate(open_cases)
                if staying[one.case.scenario] > STAY[system]
            ]
            if system == "kernel":
                priced = [(price, place) for price, place in priced if not price]
            if not priced:
                break
            price, place = min(
                priced, key=lambda one: (one[0] + OF_ITSELF) / open_cases[one[1]].seconds
            )
            taken = open_cases.pop(place)
            found.append(taken)
            lost += price
            rest -= taken.seconds
            staying[taken.case.scenario] -= 1
            shown.subtract(taken.pairs)
    return found, lost


Point = dict[str, list[str]]


def points(ids: Iterable[str], every: Iterable[str]) -> list[Point]:
    """Few points of a matrix that hold exactly the cases `ids`; `every` are all of its cases."""
    found = [{axis: [label] for axis, label in _labels(one).items()} for one in ids]
    merged = True
    while merged:
        merged = False
        for one, other in combinations(found, 2):
            differing = [axis for axis in one if one[axis] != other[axis]]
            if len(differing) == 1:
                [axis] = differing
                found.remove(one)
                found.remove(other)
                found.append({**one, axis: [*one[axis], *other[axis]]})
                merged = True
                break
    axes: dict[str, set[str]] = defaultdict(set)
    for case in every:
        for axis, label in _labels(case).items():
            axes[axis].add(label)
    # An axis of which every label is left out need not be named.
    return [
        {axis: labels for axis, labels in one.items() if set(labels) != axes[axis]} for one in found
    ]


def _labels(case_id: str) -> dict[str, str]:
    inner = case_id.partition("[")[2].removesuffix("]")
    return dict(part.split("=", 1) for part in inner.split(","))


def as_yaml(points: Iterable[Point]) -> str:
    """The points as the key `long` of a scenario, one in a line."""
    lines = ["long:"]
    for point in points:
        parts = (
            f"{axis}: {labels[0] if len(labels) == 1 else '[' + ', '.join(labels) + ']'}"
            for axis, labels in point.items()
        )
        # A list of many labels goes on in the next line.
        inner = textwrap.fill("{" + ", ".join(parts) + "}", 110, break_on_hyphens=False)
        lines.append("  - " + inner.replace("\n", "\n     "))
    return "\n".join(lines)


def _tried_ids(scenarios: Iterable[Scenario]) -> set[str]:
    return {case.id for scenario in scenarios for _, case in fault_cases(scenario)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=95.0, help="CPU seconds of the engine's cases"
    )
    given = parser.parse_args()
    store = RunStore.open(given.run)
    cases = {job.key: job.case for job in store.plan.jobs}
    timed = [
        Timed(cases[result.key], result.seconds, pairs(result))
        for result in store.results()
        if result.verdict is Verdict.PASS
    ]
    scenarios = {scenario.name: scenario for scenario in load_scenarios(None)}
    found, lost = left_out(timed, _tried_ids(scenarios.values()), given.seconds)
    of_scenario: dict[str, list[str]] = defaultdict(list)
    for one in found:
        of_scenario[one.case.scenario].append(one.case.id)
    for name in sorted(of_scenario):
        every = [case.id for case in expand(scenarios[name])]
        print(f"# {name}\n{as_yaml(points(of_scenario[name], every))}")
    every_pair = set().union(*(one.pairs for one in timed))
    print(
        f"{len(found)} of {len(timed)} cases, {sum(one.seconds for one in found):.0f} of"
        f" {sum(one.seconds for one in timed):.0f} s; {lost} of {len(every_pair):,} pairs lost"
    )


if __name__ == "__main__":
    main()
