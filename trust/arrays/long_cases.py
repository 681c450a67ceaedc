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
import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from harness.core.cases import Case
from harness.core.conditions.table import space_at
from harness.core.records import CaseResult, Verdict
from harness.scenario.expand import LIMITS, fault_cases
from harness.scenario.load import load_scenarios
from harness.scenario.matrix import Labels, case_id, points
from harness.scenario.schema import Scenario
from harness.store.run_folder import RunStore

WORTH_LEAVING_OUT = 0.1
"""Seconds. A shorter case is not worth its line."""
OF_ITSELF = 1
"""What a case is worth beside its pairs: it has met a bug that pairs do not describe."""

Class = tuple[str, str]
"""A dimension, and a class of it."""
Pair = tuple[str, Class, Class]
"""An op, or the engine, and two of its classes."""


def pairs(result: CaseResult) -> set[Pair]:
    """The pairs of conditions that a case showed. Points that other classes coded are left out."""
    found: set[Pair] = set()
    for key, words in result.shown.items():
        space = space_at(key)
        if space is None:
            continue
        for word in words:
            classes = space.decoded(word).items()
            found.update((space.op, one, other) for one, other in combinations(classes, 2))
    return found


@dataclass(frozen=True, slots=True)
class Timed:
    """A case that passed, with its seconds and the pairs that it showed."""

    case: Case
    seconds: float
    pairs: set[Pair]


class Choice:
    """The cases that are left out so far, and what the others still show."""

    def __init__(self, timed: Sequence[Timed]) -> None:
        self.left_out: list[Timed] = []
        self.num_lost = 0
        """How many pairs no case shows any more."""
        self._shown = Counter(pair for one in timed for pair in one.pairs)
        self._staying = Counter(one.case.scenario for one in timed)

    def leave_out(
        self, timed: Iterable[Timed], *, seconds: float, keep: int, most_lost: float
    ) -> None:
        """Leave out cases of `timed`, those that cost most for what they show first, until so many
        seconds are saved.

        Each scenario keeps `keep` cases. A case that alone shows more than `most_lost` pairs stays.
        """
        open_cases = {one.case.id: one for one in timed}
        while seconds > 0:
            prices = {
                name: price
                for name, one in open_cases.items()
                if self._staying[one.case.scenario] > keep
                and (price := self._price(one)) <= most_lost
            }
            if not prices:
                return
            name = min(
                prices, key=lambda name: (prices[name] + OF_ITSELF) / open_cases[name].seconds
            )
            taken = open_cases.pop(name)
            self.left_out.append(taken)
            self.num_lost += prices[name]
            self._staying[taken.case.scenario] -= 1
            self._shown.subtract(taken.pairs)
            seconds -= taken.seconds

    def _price(self, one: Timed) -> int:
        """The pairs that no other case shows."""
        return sum(self._shown[pair] == 1 for pair in one.pairs)


def left_out(
    timed: Sequence[Timed], fixed: Collection[str], seconds: float
) -> tuple[list[Timed], int]:
    """The cases to leave out, and how many pairs no case shows then.

    `fixed` are the ids of the cases that must stay.
    """
    may_go = [
        one
        for one in timed
        if one.seconds >= WORTH_LEAVING_OUT
        and one.case.id not in fixed
        and not one.case.is_varied
        and LIMITS not in one.case.tags
    ]
    engine, kernel = (
        [one for one in may_go if one.case.system == system] for system in ("engine", "kernel")
    )
    choice = Choice(timed)
    choice.leave_out(engine, seconds=seconds, keep=1, most_lost=math.inf)
    choice.leave_out(kernel, seconds=math.inf, keep=2, most_lost=0)
    return choice.left_out, choice.num_lost


Point = dict[str, list[str]]


def covering_points(chosen: Iterable[Labels], every: Iterable[Labels]) -> list[Point]:
    """Few points that hold exactly the `chosen` labels of a matrix; `every` are all of its
    labels.
    """
    found = [{axis: [label] for axis, label in labels.items()} for labels in chosen]
    while merged := _merged(found):
        found = merged
    axes: dict[str, set[str]] = defaultdict(set)
    for labels in every:
        for axis, label in labels.items():
            axes[axis].add(label)
    # An axis of which every label is left out need not be named.
    return [
        {axis: labels for axis, labels in one.items() if set(labels) != axes[axis]} for one in found
    ]


def _merged(points: list[Point]) -> list[Point]:
    """`points` with the first two that differ in one axis as one; empty if there are none."""
    for one, other in combinations(points, 2):
        differing = [axis for axis in one if one[axis] != other[axis]]
        if len(differing) == 1:
            [axis] = differing
            both = {**one, axis: [*one[axis], *other[axis]]}
            return [*(point for point in points if point not in (one, other)), both]
    return []


def as_yaml(found: Iterable[Point]) -> str:
    """Points as the key `long` of a scenario, one in a line."""
    lines = ["long:"]
    for point in found:
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
    scenarios = load_scenarios(None)
    found, lost = left_out(timed, _tried_ids(scenarios), given.seconds)
    names = {one.case.id for one in found}
    for scenario in sorted(scenarios, key=lambda scenario: scenario.name):
        every = [] if scenario.fuzz else [point.labels for point in points(scenario)]
        chosen = [labels for labels in every if case_id(scenario.name, labels) in names]
        if chosen:
            print(f"# {scenario.name}\n{as_yaml(covering_points(chosen, every))}")
    every_pair = set().union(*(one.pairs for one in timed))
    print(
        f"{len(found)} of {len(timed)} cases, {sum(one.seconds for one in found):.0f} of"
        f" {sum(one.seconds for one in timed):.0f} s; {lost} of {len(every_pair):,} pairs lost"
    )


if __name__ == "__main__":
    main()
